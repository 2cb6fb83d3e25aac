-- SPDX-License-Identifier: Apache-2.0
-- bare
-- The optimistic path: deletes a file with one name that this client does not have open, from
-- cached attributes of the file and the directory (optimistic.c).
-- ARGV: the answer's key and number, directory, name, inode, entry, record, the expected record of
-- the directory (flags to group, parent to end), the space freed; of a file with length that
-- length, both with a minus sign, and what `delfiles` gets: its name and the moment
local A, P, call, sub = ARGV, KEYS[1], redis.call, string.sub
local dir, ino = A[3], A[5]
local key = P .. A[1]
local k = call('MGET', key, P .. 'i' .. dir, P .. 'i' .. ino)
local done, d = k[1], k[2]
if done == A[2] then
	return 1
end
if not d or k[3] ~= A[7] or sub(d, 1, 11) .. sub(d, 64) ~= A[8] or
	call('HGET', P .. 'd' .. dir, A[4]) ~= A[6] or
	call('HEXISTS', P .. 'zcachefs:top', ino) == 1 then
	return 0
end
call('HDEL', P .. 'd' .. dir, A[4])
call('DEL', P .. 'i' .. ino, P .. 'x' .. ino, P .. 'p' .. ino)
call('INCRBY', P .. 'usedSpace', A[9])
call('DECR', P .. 'totalInodes')
if call('HINCRBY', P .. 'dirUsedInodes', dir, '-1') == -1 and
	call('HEXISTS', P .. 'dirUsedSpace', dir) == 0 then
	call('HDEL', P .. 'dirUsedInodes', dir)
else
	call('HINCRBY', P .. 'dirUsedSpace', dir, A[9])
	if A[10] then
		call('HINCRBY', P .. 'dirDataLength', dir, A[10])
	end
end
if A[10] then
	call('ZADD', P .. 'delfiles', A[12], A[11])
end
