-- SPDX-License-Identifier: Apache-2.0
-- write 2: attr rules usage
-- sid: the session that keeps the inode without a name; '0': the inode has a name.
local function op(dir, a, parent, ino, parent8, ino8, name, who, now, stats, sid)
	local e = may_add(who, parent8, dir)
	if e then
		return {e}
	end
	if not a then
		return {ENOENT}
	end
	if type_of(a) == DIR or has(byte(a, 1), 3) ~= 0 then
		return {EPERM}
	end
	-- An unlinked inode that is only kept open, or an inode in the trash, cannot be linked again.
	if (nlink_of(a) == 0) ~= (sid ~= '0') then
		return {ENOENT}
	end
	if is_trash(parent8_of(a)) then
		return {EPERM}
	end
	if call('HEXISTS', P .. 'd' .. parent, name) == 1 then
		return {EEXIST}
	end
	if sid ~= '0' then
		if call('SREM', P .. 'session' .. sid, ino) == 0 then
			return {ENOENT}
		end
		a = set_parent(a, parent8)
	else
		if has_parent(a) then
			call('HINCRBY', P .. 'p' .. ino, dec(parent8_of(a)), 1)
		end
		call('HINCRBY', P .. 'p' .. ino, parent, 1)
		a = set_parent(a, NONE8)
	end
	a = set_ctime(set_nlink(a, nlink_of(a) + 1), now)
	put(ino, a)
	call('HSET', P .. 'd' .. parent, name, char(type_of(a)) .. ino8)
	use_entry(stats, parent, a, 1)
	log('LINK(%s,%s,%n,false):%d', ino, parent, name, nlink_of(a))
	return {0, a}
end
