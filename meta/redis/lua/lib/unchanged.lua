-- SPDX-License-Identifier: Apache-2.0
-- Ends the script when it has run before, or when directory, file or entry have changed.
local k = call('MGET', key, P .. 'i' .. dir, P .. 'i' .. ino)
local done, d = k[1], k[2]
if done == A[2] then
	return 1
end
if not d or k[3] ~= A[7] or sub(d, 1, 11) .. sub(d, 64) ~= A[8] or
	call('HGET', P .. 'd' .. dir, A[4]) ~= A[6] then
	return 0
end
