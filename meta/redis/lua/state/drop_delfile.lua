-- SPDX-License-Identifier: Apache-2.0
-- write:
local function op(a, b)
	call('ZREM', P .. 'delfiles', a, b)
	return {0}
end
