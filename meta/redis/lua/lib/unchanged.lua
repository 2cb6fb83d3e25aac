-- SPDX-License-Identifier: Apache-2.0
-- For removals: returns 1 when the script has already run, 0 when the directory, the file or the
-- entry differs from the expected one.
local k = call('MGET', key, P .. 'i' .. dir, P .. 'i' .. ino)
local done, d = k[1], k[2]
if done == A[2] then
	return 1
end
if done and sub(done, 1, 16) > A[2] then
	return 0 -- a late copy, as in lib/answer.lua
end
if not d or k[3] ~= A[7] or sub(d, 1, 11) .. sub(d, 64) ~= A[8] or
	call('HGET', P .. 'd' .. dir, A[4]) ~= A[6] then
	return 0
end
-- Adds n (1 or -1; `one` is n as text) names to the statistics of a directory. length: nil for none.
local function use(where, one, n, space, length)
	if call('HINCRBY', P .. 'dirUsedInodes', where, one) == n and
		call('HEXISTS', P .. 'dirUsedSpace', where) == 0 then
		call('HDEL', P .. 'dirUsedInodes', where)
		return
	end
	call('HINCRBY', P .. 'dirUsedSpace', where, space)
	if length then
		call('HINCRBY', P .. 'dirDataLength', where, length)
	end
end
