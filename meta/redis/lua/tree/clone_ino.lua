-- SPDX-License-Identifier: Apache-2.0
-- write: attr rules usage length chunks
-- name '': detached. owner: uid and gid, 8 bytes. expected, found: as in lib/chunks.lua
local function op(src, ino, ino8, parent, parent8, name, preserve, owner, now, stats, expected, found)
	local a = get(src)
	if not a then
		return {ENOENT}
	end
	local kind = type_of(a)
	local hi, lo = halves(length8_of(a))
	local n = kind == FILE and hi * 64 + math.ceil(lo / CHUNK) or 0
	if n > MAX_LOOP and expected ~= a then
		return {EBUSY, a}
	end
	if name ~= '' and call('HEXISTS', P .. 'd' .. parent, name) == 1 then
		return {EEXIST}
	end
	if kind ~= DIR then
		a = set_nlink(a, 1)
	end
	a = set_parent(a, parent8)
	if preserve ~= '1' then
		a = sub(a, 1, 3) .. owner .. now .. now .. now .. sub(a, 48)
	end
	if name ~= '' then
		call('HSET', P .. 'd' .. parent, name, char(kind) .. ino8)
	else
		call('ZADD', P .. 'detachedNodes', (parse('>i8', now)), ino)
	end
	put(ino, a)
	local x = call('HGETALL', P .. 'x' .. src)
	for i = 1, #x, 2 do
		call('HSET', P .. 'x' .. ino, x[i], x[i + 1])
	end
	local function copy(indx)
		for _, r in ipairs(call('LRANGE', P .. 'c' .. src .. '_' .. indx, 0, -1)) do
			call('RPUSH', P .. 'c' .. ino .. '_' .. indx, r)
			local id8 = sub(r, 5, 12)
			if id8 ~= NONE8 then
				call('HINCRBY', P .. 'sliceRef',
					'k' .. dec(id8) .. '_' .. int((parse('>I4', sub(r, 13, 16)))), 1)
			end
		end
	end
	if n > MAX_LOOP then
		for i = 1, #found, 4 do
			copy(int((parse('>I4', sub(found, i, i + 3)))))
		end
	else
		for indx = 0, n - 1 do
			copy(indx)
		end
	end
	if kind == SYMLINK then
		local target = call('GET', P .. 's' .. src)
		if target then
			call('SET', P .. 's' .. ino, target)
		end
	elseif kind == DIR then
		for _, h in ipairs({'dirDataLength', 'dirUsedSpace', 'dirUsedInodes'}) do
			local v = call('HGET', P .. h, src)
			if v then
				call('HSET', P .. h, ino, v)
			end
		end
	end
	-- The clone of the parent has the parent's statistics already.
	use_volume(blocks(a), 1)
	log('CLONE(%s,%s,%s,%s)', src, parent, ino, preserve)
	return {0, a}
end
