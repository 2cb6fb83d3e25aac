-- SPDX-License-Identifier: Apache-2.0
-- bare: optimistic unchanged
-- Moves a non-directory with one name to the trash, from cached attributes of it and of the
-- directory. Last: the record afterwards, the trash, the name there, its space with a minus sign and
-- without; of a file with length that length, in both ways
call('HDEL', P .. 'd' .. dir, A[4])
call('HSET', P .. 'd' .. A[10], A[11], A[6])
call('SET', P .. 'i' .. ino, A[9])
use(dir, '-1', -1, A[12], A[14])
use(A[10], '1', 1, A[13], A[15])
