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
	local old8 = length8_of(a)
	local hi, lo = halves(old8)
	local end_hi, end_lo = halves(end8)
	if end_hi > hi or (end_hi == hi and end_lo > lo) then
		a = set_length(a, end8)
	end
	a = set_mtime_ctime(a, mtime, now)
	put(ino, a)
	local parents = use_length(stats, ino, a, old8)
	log('WRITE(%s):%d', line, n)
	return {0, a, old8, n, parents}
end
