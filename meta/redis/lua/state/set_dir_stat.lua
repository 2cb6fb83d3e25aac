-- SPDX-License-Identifier: Apache-2.0
-- write:
local function op(dir, length, space, inodes)
	call('HSET', P .. 'dirDataLength', dir, length)
	call('HSET', P .. 'dirUsedSpace', dir, space)
	call('HSET', P .. 'dirUsedInodes', dir, inodes)
	return {0}
end
