-- SPDX-License-Identifier: Apache-2.0
-- write:
local function op(table, name, old, value)
	local key = P .. table
	if call('HGET', key, name) ~= old then
		return {-116}
	end
	call('HSET', key, name, value)
	return {0}
end
