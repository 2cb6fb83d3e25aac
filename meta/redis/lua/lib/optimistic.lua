-- SPDX-License-Identifier: Apache-2.0
-- The beginning of a script of the optimistic path (optimistic.c); lib/noted.lua is its end. ARGV:
-- 1 key and 2 number of the stored answer, 3 directory, 4 name, 5 inode, 6 entry, 7 record, 8 the
-- expected record of the directory (flags to group, parent to end). Returns 1 when the script has
-- already run.
local A, P, call, sub = ARGV, KEYS[1], redis.call, string.sub
local dir, ino = A[3], A[5]
local key = P .. A[1]
local k = call('MGET', key, P .. 'i' .. dir, P .. 'i' .. ino)
local done, d = k[1], k[2]
if done == A[2] then
	return 1
end
if done and sub(done, 1, 16) > A[2] then
	return 0 -- a late copy, as in lib/answer.lua
end
if not d or sub(d, 1, 11) .. sub(d, 64) ~= A[8] then
	return 0
end
