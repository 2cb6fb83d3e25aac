-- SPDX-License-Identifier: Apache-2.0
-- bare: optimistic unchanged
-- Moves a non-directory with one name to the trash, using cached attributes of it and of the
-- directory. ARGV: 9 the record afterwards, 10 the trash directory, 11 the name there, 12 minus its
-- space, 13 its space; of a file with length: 14 minus the length, 15 the length
call('HDEL', P .. 'd' .. dir, A[4])
call('HSET', P .. 'd' .. A[10], A[11], A[6])
call('SET', P .. 'i' .. ino, A[9])
use(dir, '-1', -1, A[12], A[14])
use(A[10], '1', 1, A[13], A[15])
