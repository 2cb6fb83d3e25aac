-- SPDX-License-Identifier: Apache-2.0
-- write:
-- Three arguments for each slice: id, size, references to add
local function op(...)
	local v = {...}
	for i = 1, #v, 3 do
		local field = 'k' .. v[i] .. '_' .. v[i + 1]
		local known = call('HGET', P .. 'sliceRef', field)
		local n = (known and tonumber(known) + 1 or 0) + tonumber(v[i + 2]) - 1
		call('HSET', P .. 'sliceRef', field, n)
	end
	return {0}
end
