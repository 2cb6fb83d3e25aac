-- SPDX-License-Identifier: Apache-2.0
-- write:
local function op(key, value, fresh)
	if fresh == '1' and call('HEXISTS', P .. 'zcachefs:record', key) == 1 then
		return {-17}
	end
	call('HSET', P .. 'zcachefs:record', key, value)
	return {0}
end
