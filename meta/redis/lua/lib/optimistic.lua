-- SPDX-License-Identifier: Apache-2.0
-- The beginning of a script of the optimistic path (optimistic.c); lib/noted.lua is its end. ARGV:
-- 1 key and 2 number of the stored answer, 3 directory, 4 name, 5 inode, 6 entry, 7 record, 8 the
-- expected record of the directory (flags to group, parent to end)
local A, P, call, sub = ARGV, KEYS[1], redis.call, string.sub
local dir, ino = A[3], A[5]
local key = P .. A[1]
