-- SPDX-License-Identifier: Apache-2.0
-- write:
-- Removes every lock of the session; JuiceFS does not list shared BSD locks, so those of its
-- sessions may be missed.
local function op(sid)
	for _, key in ipairs(call('SMEMBERS', P .. 'locked' .. sid)) do
		local mine = {}
		for _, field in ipairs(call('HKEYS', key)) do
			if sub(field, 1, #sid + 1) == sid .. '_' then
				mine[#mine + 1] = field
			end
		end
		for _, field in ipairs(mine) do
			call('HDEL', key, field)
		end
	end
	call('DEL', P .. 'locked' .. sid)
	return {0}
end
