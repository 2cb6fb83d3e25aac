-- SPDX-License-Identifier: Apache-2.0
-- write: attr rules usage length chunks
-- expected, found: arguments of the second call (lib/chunks.lua)
local function op(ino, length8, now, open, stats, expected, found)
	local a, e = get_file(ino, open)
	if not a then
		return {e}
	end
	local old8 = length8_of(a)
	if old8 == length8 then
		return {0, a, old8, {}}
	end
	local first, pos = place(old8)
	local last, rest = place(length8)
	if first > last or (first == last and pos > rest) then
		first, pos, last, rest = last, rest, first, pos
	end
	if last - first > MAX_LOOP and expected ~= a then
		return {EBUSY, a}
	end
	if first == last then
		zero(ino, first, pos, rest - pos, 'RPUSH')
	else
		zero(ino, first, pos, CHUNK - pos, 'RPUSH')
		zero_whole(ino, first + 1, last, expected == a and found)
		zero(ino, last, 0, rest, 'RPUSH')
	end
	remember_top(ino, old8, length8)
	a = set_mtime_ctime(set_length(a, length8), now, now)
	put(ino, a)
	local parents = use_length(stats, ino, a, old8)
	log('TRUNCATE(%s,%s,%s,0)', ino, dec(old8), dec(length8))
	return {0, a, old8, parents}
end
