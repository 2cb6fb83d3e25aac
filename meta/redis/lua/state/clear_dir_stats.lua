-- SPDX-License-Identifier: Apache-2.0
-- write:
local function op()
	call('DEL', P .. 'dirDataLength', P .. 'dirUsedSpace', P .. 'dirUsedInodes')
	return {0}
end
