-- SPDX-License-Identifier: Apache-2.0
-- write:
-- 1: neither is a member.
local function op(a, b)
	return {call('ZREM', P .. 'delfiles', a, b) > 0 and 0 or 1}
end
