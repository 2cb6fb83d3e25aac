-- SPDX-License-Identifier: Apache-2.0
-- Counts a change of length from old8, in the volume and in every directory that names the file.
-- Returns these directories and their number of names, when the file's record does not contain its
-- parent.
local function use_length(stats, ino, a, old8)
	local parents = {}
	if length8_of(a) == old8 then
		return parents
	end
	local hi, lo = halves(length8_of(a))
	local old_hi, old_lo = halves(old8)
	local d = blocks(a) - blocks_of(old8)
	use_volume(d, 0)
	if nlink_of(a) == 0 then
		return parents
	end
	if has_parent(a) then
		use_dir(stats, dec(parent8_of(a)), hi - old_hi, lo - old_lo, d, 0)
		return parents
	end
	local p = call('HGETALL', P .. 'p' .. ino)
	for i = 1, #p, 2 do
		local n = tonumber(p[i + 1])
		if n > 0 then
			use_dir(stats, p[i], n * (hi - old_hi), n * (lo - old_lo), n * d, 0)
			parents[#parents + 1] = p[i]
			parents[#parents + 1] = n
		end
	end
	return parents
end
-- Notes the largest number of chunks before a truncation: the lists of chunks beyond the new length
-- still exist. The deletion of the file needs the number, because JuiceFS searches lists only up to
-- the length in `delfiles`.
local function remember_top(ino, old8, length8)
	local hi, lo = halves(old8)
	local top = hi * 64 + math.ceil(lo / 67108864)
	local new_hi, new_lo = halves(length8)
	if top > new_hi * 64 + math.ceil(new_lo / 67108864) then
		local known = tonumber(call('HGET', P .. 'zcachefs:top', ino) or 0)
		if top > known then
			call('HSET', P .. 'zcachefs:top', ino, int(top))
		end
	end
end
-- Writes the record of a file whose bytes up to end8 have changed. Returns the record, the length
-- before, and the result of use_length.
local function put_written(stats, ino, a, end8, mtime, now)
	local old8 = length8_of(a)
	local hi, lo = halves(old8)
	local end_hi, end_lo = halves(end8)
	if end_hi > hi or (end_hi == hi and end_lo > lo) then
		a = set_length(a, end8)
	end
	a = set_mtime_ctime(a, mtime, now)
	put(ino, a)
	return a, old8, use_length(stats, ino, a, old8)
end
