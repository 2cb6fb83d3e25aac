-- SPDX-License-Identifier: Apache-2.0
-- write: lost
local function op(name, n, log_name)
	skip_lost()
	local v = call('INCRBY', P .. name, n)
	log('INCR_COUNTER(%s,%s)', log_name, n)
	return {0, call('GET', P .. name)}
end
