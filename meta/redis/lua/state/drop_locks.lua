-- SPDX-License-Identifier: Apache-2.0
-- write:
-- Removes the locks in the session's list. JuiceFS does not list shared BSD locks: dead_locks finds
-- those of its sessions.
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
