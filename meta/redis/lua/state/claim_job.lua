-- SPDX-License-Identifier: Apache-2.0
-- write:
local function op(name, now, before, after)
	local last = tonumber(call('GET', P .. name) or 0)
	if last > tonumber(before) and last <= tonumber(after) then
		return {0}
	end
	call('SET', P .. name, now)
	log('SET(%s,%s)', name, now)
	return {1}
end
