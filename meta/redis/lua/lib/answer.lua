-- SPDX-License-Identifier: Apache-2.0
-- A client sends a script again when its answer was lost; the script must not run twice. Therefore
-- the answer is stored under the key of the calling thread (ARGV[1]), with the number of the
-- request (ARGV[2]). The key ends with its lifetime in ms, which is longer than any client waits. A
-- request that comes after a later one of its thread is a late copy, and no client waits for its answer.
local function answer(kept, ...)
	local last = kept and sub(kept, 1, 16)
	if last == ARGV[2] then
		return cmsgpack.unpack(sub(kept, 17))
	end
	if last and last > ARGV[2] then
		return {-5}
	end
	local new = op(...)
	if new[1] >= 0 then
		call('SET', P .. ARGV[1], ARGV[2] .. cmsgpack.pack(new), 'PX', string.match(ARGV[1], '%d+$'))
	end
	return new
end
