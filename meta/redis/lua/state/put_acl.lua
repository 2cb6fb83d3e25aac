-- SPDX-License-Identifier: Apache-2.0
-- write: attr rules lost acl
local function op(rule)
	return {0, acl_id(rule)}
end
