-- SPDX-License-Identifier: Apache-2.0
-- write:
-- before '': in any case. Otherwise returns 1 unless the session expires before that. Marks it as
-- ended (expiry 0), and removes the locks in its list. JuiceFS does not list shared BSD locks:
-- dead_locks finds those of its sessions.
local function op(sid, before)
	local expire = call('ZSCORE', P .. 'allSessions', sid)
	if before ~= '' and not (expire and tonumber(expire) < tonumber(before)) then
		return {1}
	end
	if expire then
		call('ZADD', P .. 'allSessions', 0, sid)
	end
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
