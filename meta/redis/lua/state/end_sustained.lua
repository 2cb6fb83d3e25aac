-- SPDX-License-Identifier: Apache-2.0
-- write: attr rules usage dispose
-- stale: '1' for the session of another client, which cannot update the quotas of the owner itself.
local function op(ino, ino8, sid, now, stale)
	if call('SREM', P .. 'session' .. sid, ino) == 0 then
		return {ENOENT}
	end
	local a = get(ino)
	if not a or nlink_of(a) ~= 0 then
		return {0}
	end
	local data, length = delete_inode(ino, a, now)
	if stale == '1' then
		local owners = {userQuota = int(uid_of(a)), groupQuota = int(gid_of(a))}
		for name, id in pairs(owners) do
			if call('HEXISTS', P .. name, id) == 1 then
				call('HINCRBY', P .. name .. 'UsedSpace', id, int(-blocks(a) * 4096))
				call('HINCRBY', P .. name .. 'UsedInodes', id, -1)
			end
		end
	end
	log('DELSUSTAINED(%s,%s)', sid, ino)
	return {0, a, data and 1 or 0, length}
end
