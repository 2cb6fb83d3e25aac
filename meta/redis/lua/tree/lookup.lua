-- SPDX-License-Identifier: Apache-2.0
-- read:
-- Returns the entry and the inode's record.
local function op(parent, name)
	local entry = call('HGET', P .. 'd' .. parent, name)
	if not entry then
		return {-2}
	end
	return {0, entry, call('GET', P .. 'i' .. dec(sub(entry, 2, 9)))}
end
