-- SPDX-License-Identifier: Apache-2.0
-- For removals: returns 0 when the file or the entry differs from the expected one.
if k[3] ~= A[7] or call('HGET', P .. 'd' .. dir, A[4]) ~= A[6] then
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
