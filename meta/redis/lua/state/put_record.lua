-- SPDX-License-Identifier: Apache-2.0
-- write:
local function op(table, name, value, fresh)
	local key = P .. table
	if fresh == '1' and call('HEXISTS', key, name) == 1 then
		return {-17}
	end
	if fresh == '1' then -- records in another form, which nothing reads: they hold keys of groups
		call('DEL', P .. 'zcachefs:record')
	end
	call('HSET', key, name, value)
	return {0}
end
