-- SPDX-License-Identifier: Apache-2.0
-- write:
local function op(name, key, limits, space, inodes, line)
	call('HSET', P .. name, key, limits)
	call('HSET', P .. name .. 'UsedSpace', key, space)
	call('HSET', P .. name .. 'UsedInodes', key, inodes)
	log('SETQUOTA(%s)', line)
	return {0}
end
