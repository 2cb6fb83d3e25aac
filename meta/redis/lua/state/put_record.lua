-- SPDX-License-Identifier: Apache-2.0
-- write:
local function op(table, name, value, fresh)
	local key = P .. table
	if fresh == '1' and call('HEXISTS', key, name) == 1 then
		return {-17}
	end
	-- Deletes records of an older form, which contain keys of cache groups and are not read.
	if fresh == '1' then
		call('DEL', P .. 'zcachefs:record')
	end
	call('HSET', key, name, value)
	return {0}
end
