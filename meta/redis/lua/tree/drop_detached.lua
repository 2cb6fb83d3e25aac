-- SPDX-License-Identifier: Apache-2.0
-- write: attr rules usage dispose
local function op(ino, ino8, now)
	if not call('ZSCORE', P .. 'detachedNodes', ino) then
		return {ENOENT}
	end
	if call('HLEN', P .. 'd' .. ino) > 0 then
		return {ENOTEMPTY}
	end
	call('ZREM', P .. 'detachedNodes', ino)
	local a = get(ino)
	if not a then
		return {0}
	end
	if type_of(a) == DIR then
		drop_stats(ino)
	end
	local data, length = delete_inode(ino, a, now)
	log('CLEANUP(%s)', ino)
	return {0, a, data and 1 or 0, length}
end
