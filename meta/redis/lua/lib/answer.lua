-- SPDX-License-Identifier: Apache-2.0
-- A script that is sent again because its answer was lost must not run twice. Its answer is
-- therefore stored for longer than any client waits for it, under the key of the calling thread
-- (ARGV[1], which ends with the lifetime) and the number of the request (ARGV[2]).
local function answer(kept, ...)
	if kept and sub(kept, 1, 16) == ARGV[2] then
		return cmsgpack.unpack(sub(kept, 17))
	end
	local new = op(...)
	if new[1] >= 0 then
		call('SET', P .. ARGV[1], ARGV[2] .. cmsgpack.pack(new), 'PX', string.match(ARGV[1], '%d+$'))
	end
	return new
end
