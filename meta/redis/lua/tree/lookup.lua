-- SPDX-License-Identifier: Apache-2.0
-- read:
-- The entry and the inode's attributes.
local function op(parent, name)
	local entry = call('HGET', P .. 'd' .. parent, name)
	if not entry then
		return {-2}
	end
	return {0, entry, call('GET', P .. 'i' .. dec(sub(entry, 2, 9)))}
end
