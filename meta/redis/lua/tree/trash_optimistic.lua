-- SPDX-License-Identifier: Apache-2.0
-- bare
-- The optimistic path: moves a non-directory with one name to the trash, from cached attributes of
-- it and of the directory (optimistic.c).
-- ARGV: the answer's key and number, directory, name, inode, entry, record, the expected record of
-- the directory (flags to group, parent to end), the record afterwards, the trash, the name there,
-- its space with a minus sign and without; of a file with length that length, in both ways
local A, P, call, sub = ARGV, KEYS[1], redis.call, string.sub
local dir, ino, trash = A[3], A[5], A[10]
local key = P .. A[1]
local k = call('MGET', key, P .. 'i' .. dir, P .. 'i' .. ino)
local done, d = k[1], k[2]
if done == A[2] then
	return 1
end
if not d or k[3] ~= A[7] or sub(d, 1, 11) .. sub(d, 64) ~= A[8] or
	call('HGET', P .. 'd' .. dir, A[4]) ~= A[6] then
	return 0
end
call('HDEL', P .. 'd' .. dir, A[4])
call('HSET', P .. 'd' .. trash, A[11], A[6])
call('SET', P .. 'i' .. ino, A[9])
if call('HINCRBY', P .. 'dirUsedInodes', dir, '-1') == -1 and
	call('HEXISTS', P .. 'dirUsedSpace', dir) == 0 then
	call('HDEL', P .. 'dirUsedInodes', dir)
else
	call('HINCRBY', P .. 'dirUsedSpace', dir, A[12])
	if A[14] then
		call('HINCRBY', P .. 'dirDataLength', dir, A[14])
	end
end
if call('HINCRBY', P .. 'dirUsedInodes', trash, '1') == 1 and
	call('HEXISTS', P .. 'dirUsedSpace', trash) == 0 then
	call('HDEL', P .. 'dirUsedInodes', trash)
else
	call('HINCRBY', P .. 'dirUsedSpace', trash, A[13])
	if A[15] then
		call('HINCRBY', P .. 'dirDataLength', trash, A[15])
	end
end
