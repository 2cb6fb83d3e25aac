-- SPDX-License-Identifier: Apache-2.0
-- bare: optimistic
-- Creates a non-directory, using cached attributes of its parent. ARGV: 9 a symlink's target
local k = call('MGET', key, P .. 'i' .. dir)
local done, d = k[1], k[2]
if done == A[2] then
	return 1
end
if done and sub(done, 1, 16) > A[2] then
	return 0 -- a late copy, as in lib/answer.lua
end
if not d or sub(d, 1, 11) .. sub(d, 64) ~= A[8] or
	call('HSETNX', P .. 'd' .. dir, A[4], A[6]) == 0 then
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
