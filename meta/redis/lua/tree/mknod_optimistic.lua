-- SPDX-License-Identifier: Apache-2.0
-- bare: optimistic
-- Creates a non-directory, using cached attributes of its parent. ARGV: 9 a symlink's target
if call('HSETNX', P .. 'd' .. dir, A[4], A[6]) == 0 then
	return 0
end
call('SET', P .. 'i' .. ino, A[7])
if A[9] then
	call('SET', P .. 's' .. ino, A[9])
end
call('INCRBY', P .. 'usedSpace', '4096')
call('INCR', P .. 'totalInodes')
if call('HINCRBY', P .. 'dirUsedInodes', dir, '1') == 1 and
	call('HEXISTS', P .. 'dirUsedSpace', dir) == 0 then
	call('HDEL', P .. 'dirUsedInodes', dir)
else
	call('HINCRBY', P .. 'dirUsedSpace', dir, '4096')
end
