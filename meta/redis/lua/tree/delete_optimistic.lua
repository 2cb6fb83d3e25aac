-- SPDX-License-Identifier: Apache-2.0
-- bare: optimistic unchanged
-- Deletes a file with one name that this client does not have open, using cached attributes of the
-- file and the directory. ARGV: 9 minus its space; of a file with length: 10 minus the length, 11
-- its member of `delfiles`, 12 the time in seconds
if call('HEXISTS', P .. 'zcachefs:top', ino) == 1 then
	return 0
end
call('HDEL', P .. 'd' .. dir, A[4])
call('DEL', P .. 'i' .. ino, P .. 'x' .. ino, P .. 'p' .. ino)
call('INCRBY', P .. 'usedSpace', A[9])
call('DECR', P .. 'totalInodes')
use(dir, '-1', -1, A[9], A[10])
if A[10] then
	call('ZADD', P .. 'delfiles', A[12], A[11])
end
