-- SPDX-License-Identifier: Apache-2.0
-- write: attr rules usage length chunks
local function op(ino, mode, off8, end8, now, open, stats, expected, found, line)
	local a, e = get_file(ino, open)
	if not a then
		return {e}
	end
	mode = tonumber(mode)
	local old8 = length8_of(a)
	local hi, lo = halves(old8)
	local off_hi, off_lo = halves(off8)
	local end_hi, end_lo = halves(end8)
	local grows = end_hi > hi or (end_hi == hi and end_lo > lo)
	if has(mode, 18) ~= 0 and (off_hi < hi or (off_hi == hi and off_lo < lo)) then
		local first, pos = place(off8)
		local last, rest = place(grows and old8 or end8)
		if last - first > MAX_LOOP and expected ~= a then
			return {EBUSY, a}
		end
		-- A hole in a hole needs no record.
		if first == last then
			zero(ino, first, pos, rest - pos, 'RPUSHX')
		else
			if pos > 0 then
				zero(ino, first, pos, CHUNK - pos, 'RPUSHX')
				first = first + 1
			end
			zero_whole(ino, first, last, expected == a and found)
			zero(ino, last, 0, rest, 'RPUSHX')
		end
	end
	local parents
	a, old8, parents = put_written(stats, ino, a, has(mode, 1) == 0 and end8 or old8, now, now)
	log('FALLOCATE(%s,%s)', line, dec(length8_of(a)))
	return {0, a, old8, parents}
end
