-- SPDX-License-Identifier: Apache-2.0
-- write:
-- kind: lockf and lockp of inode n, or the list `locked` of session n
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
