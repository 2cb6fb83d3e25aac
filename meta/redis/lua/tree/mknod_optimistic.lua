-- SPDX-License-Identifier: Apache-2.0
-- bare
-- The optimistic path: makes a non-directory, from cached attributes of its parent (optimistic.c).
-- ARGV: the answer's key and number, directory, name, inode, entry, record, the expected record of
-- the directory (flags to group, parent to end), a symlink's target
local A, P, call, sub = ARGV, KEYS[1], redis.call, string.sub
local dir = A[3]
local key = P .. A[1]
local k = call('MGET', key, P .. 'i' .. dir)
local done, d = k[1], k[2]
if done == A[2] then
	return 1
end
if not d or sub(d, 1, 11) .. sub(d, 64) ~= A[8] or
	call('HSETNX', P .. 'd' .. dir, A[4], A[6]) == 0 then
	return 0
end
call('SET', P .. 'i' .. A[5], A[7])
if A[9] then
	call('SET', P .. 's' .. A[5], A[9])
end
call('INCRBY', P .. 'usedSpace', '4096')
call('INCR', P .. 'totalInodes')
if call('HINCRBY', P .. 'dirUsedInodes', dir, '1') == 1 and
	call('HEXISTS', P .. 'dirUsedSpace', dir) == 0 then
	call('HDEL', P .. 'dirUsedInodes', dir)
else
	call('HINCRBY', P .. 'dirUsedSpace', dir, '4096')
end
