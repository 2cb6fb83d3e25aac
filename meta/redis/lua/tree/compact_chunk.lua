-- SPDX-License-Identifier: Apache-2.0
-- write: refs
-- head: the records that the client has read; `merged` replaces them, except the first `skipped`
-- ones.
local function op(ino, indx, head, skipped, merged, id, size, trash, now_s, line)
	local key, n = P .. 'c' .. ino .. '_' .. indx, #head / 24
	local field = 'k' .. id .. '_' .. size
	local there = call('LRANGE', key, 0, n - 1)
	if #there ~= n or table.concat(there) ~= head then
		call('HSET', P .. 'sliceRef', field, -1)
		return {-11}
	end
	skipped = tonumber(skipped)
	call('LTRIM', key, n, -1)
	call('LPUSH', key, merged)
	for i = skipped, 1, -1 do
		call('LPUSH', key, there[i])
	end
	call('HDEL', P .. 'sliceRef', field)
	local gone = {}
	for i = skipped + 1, n do
		gone[#gone + 1] = there[i]
	end
	local replaced, dead = pairs_of(gone), ''
	if trash == '0' then
		dead = drop_refs(replaced)
	elseif replaced ~= '' then
		call('HSET', P .. 'delSlices', id .. '_' .. now_s, replaced)
	end
	log('COMPACTCHUNK(%s)', line)
	return {0, dead}
end
