-- SPDX-License-Identifier: Apache-2.0
-- write:
local function op(id, size)
	local field = 'k' .. id .. '_' .. size
	local n = call('HGET', P .. 'sliceRef', field)
	if n and tonumber(n) < 0 then
		call('HDEL', P .. 'sliceRef', field)
		log('DELETESLICE(%s,%s)', id, size)
	end
	return {0}
end
