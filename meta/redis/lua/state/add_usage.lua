-- SPDX-License-Identifier: Apache-2.0
-- write:
-- Four arguments for each directory: inode, length, space, inodes
local function op(space, inodes, ...)
	local v = {...}
	if space ~= '0' then
		call('INCRBY', P .. 'usedSpace', space)
	end
	if inodes ~= '0' then
		call('INCRBY', P .. 'totalInodes', inodes)
	end
	for i = 1, #v, 4 do
		if call('HEXISTS', P .. 'dirUsedInodes', v[i]) == 1 then
			call('HINCRBY', P .. 'dirDataLength', v[i], v[i + 1])
			call('HINCRBY', P .. 'dirUsedSpace', v[i], v[i + 2])
			call('HINCRBY', P .. 'dirUsedInodes', v[i], v[i + 3])
			log('DIRSTAT(%s,%s,%s,%s)', v[i], v[i + 1], v[i + 2], v[i + 3])
		end
	end
	return {0}
end
