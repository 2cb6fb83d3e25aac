-- SPDX-License-Identifier: Apache-2.0
-- write:
local function op(name, now, before)
	if tonumber(call('GET', P .. name) or 0) > tonumber(before) then
		return {0}
	end
	call('SET', P .. name, now)
	log('SET(%s,%s)', name, now)
	return {1}
end
