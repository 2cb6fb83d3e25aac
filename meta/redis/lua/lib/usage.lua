-- SPDX-License-Identifier: Apache-2.0
-- Usage of the volume and of directories. Space is counted in blocks of 4 KiB, lengths in 32-bit
-- halves: Lua numbers hold both exactly.
local function int(v)
	return fmt('%.0f', v)
end
local function halves(length8)
	return parse('>I4I4', length8)
end
local function blocks_of(length8)
	local hi, lo = halves(length8)
	return math.max(1, hi * 1048576 + math.ceil(lo / 4096))
end
local function blocks(a)
	return type_of(a) == FILE and blocks_of(length8_of(a)) or 1
end
local function use_volume(n_blocks, inodes)
	if n_blocks ~= 0 then
		call('INCRBY', P .. 'usedSpace', int(n_blocks * 4096))
	end
	if inodes ~= 0 then
		call('INCRBY', P .. 'totalInodes', inodes)
	end
end
local function forget_stats(dir)
	call('HDEL', P .. 'dirDataLength', dir)
	call('HDEL', P .. 'dirUsedSpace', dir)
	call('HDEL', P .. 'dirUsedInodes', dir)
end
-- Leaves a directory without statistics alone: queries compute its statistics. Forgets statistics that
-- would leave +-CFS_USAGE_MAX.
local function use_dir(stats, dir, hi, lo, n_blocks, inodes)
	if stats == '0' then
		return
	end
	if math.abs(n_blocks) >= 1048576 then
		local used = tonumber(call('HGET', P .. 'dirUsedSpace', dir) or 0)
		if math.abs(used + n_blocks * 4096) >= 4611686018427387904 then
			return forget_stats(dir)
		end
	end
	if inodes ~= 0 then
		-- The sum shows that the value was 0 or missing: removes the field if it was missing.
		if call('HINCRBY', P .. 'dirUsedInodes', dir, inodes) == inodes and
			call('HEXISTS', P .. 'dirUsedSpace', dir) == 0 then
			call('HDEL', P .. 'dirUsedInodes', dir)
			return
		end
	elseif call('HEXISTS', P .. 'dirUsedInodes', dir) == 0 then
		return
	end
	if hi ~= 0 then
		call('HINCRBY', P .. 'dirDataLength', dir, int(hi * 4294967296))
	end
	if lo ~= 0 then
		call('HINCRBY', P .. 'dirDataLength', dir, int(lo))
	end
	if n_blocks ~= 0 then
		call('HINCRBY', P .. 'dirUsedSpace', dir, int(n_blocks * 4096))
	end
end
-- Counts a name of the inode as added (1) or removed (-1).
local function use_entry(stats, dir, a, sign)
	local hi, lo = 0, 0
	if type_of(a) == FILE then
		hi, lo = halves(length8_of(a))
	end
	use_dir(stats, dir, sign * hi, sign * lo, sign * blocks(a), sign)
end
local function make_stats(stats, dir)
	if stats == '0' then
		return
	end
	call('HSET', P .. 'dirDataLength', dir, '0')
	call('HSET', P .. 'dirUsedSpace', dir, '0')
	call('HSET', P .. 'dirUsedInodes', dir, '0')
end
local function drop_stats(dir)
	forget_stats(dir)
	call('HDEL', P .. 'dirQuota', dir)
	call('HDEL', P .. 'dirQuotaUsedSpace', dir)
	call('HDEL', P .. 'dirQuotaUsedInodes', dir)
end
