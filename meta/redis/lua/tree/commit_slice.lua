-- SPDX-License-Identifier: Apache-2.0
-- write 1: attr rules usage length
local function op(a, ino, indx, record, end8, mtime, now, stats, line)
	if not a then
		return {ENOENT}
	end
	if type_of(a) ~= FILE then
		return {EPERM}
	end
	local n = call('RPUSH', P .. 'c' .. ino .. '_' .. indx, record)
	local old8, parents
	a, old8, parents = put_written(stats, ino, a, end8, mtime, now)
	log('WRITE(%s):%d', line, n)
	return {0, a, old8, n, parents}
end
