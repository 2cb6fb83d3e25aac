-- SPDX-License-Identifier: Apache-2.0
-- write:
-- kind: lockf or lockp (n is an inode), or locked (n is a session)
local function op(kind, n, sid)
	if call('ZSCORE', P .. 'allSessions', sid) then
		return {-11}
	end
	local key = P .. kind .. n
	if kind == 'locked' then
		call('DEL', key)
		return {0}
	end
	for _, field in ipairs(call('HKEYS', key)) do
		if sub(field, 1, #sid + 1) == sid .. '_' then
			call('HDEL', key, field)
		end
	end
	return {0}
end
