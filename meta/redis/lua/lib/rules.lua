-- SPDX-License-Identifier: Apache-2.0
-- The rules of meta/engine/rules.h. who: u32 uid, u32 gid, u8 check, u32 more groups
local ENOENT, EIO, EAGAIN, EACCES, EBUSY, EEXIST = -2, -5, -11, -13, -16, -17
local ENOTDIR, EISDIR, EINVAL, EFBIG, EPERM, ENOTEMPTY, ENODATA = -20, -21, -22, -27, -1, -39, -61
local has = bit.band
local function who_uid(who)
	return (parse('>I4', who))
end
local function checks(who)
	return byte(who, 9) == 1
end
local function in_group(who, gid4)
	if sub(who, 5, 8) == gid4 then
		return true
	end
	for i = 10, #who, 4 do
		if sub(who, i, i + 3) == gid4 then
			return true
		end
	end
	return false
end
-- nil or EACCES for a rwx mask (not x of files). An inode with an access rule passes: the client has
-- checked the rule.
local function access(who, a, mask)
	if who_uid(who) == 0 or sub(acls_of(a), 1, 4) ~= '\0\0\0\0' then
		return nil
	end
	local bits = mode_of(a)
	if sub(who, 1, 4) == sub(a, 4, 7) then
		bits = floor(bits / 64)
	elseif in_group(who, sub(a, 8, 11)) then
		bits = floor(bits / 8)
	end
	return has(bits, mask) ~= mask and EACCES or nil
end
-- a: the directory's record, false: there is none.
local function may_add(who, dir8, a)
	if not a then
		return ENOENT
	end
	if type_of(a) ~= DIR then
		return ENOTDIR
	end
	if is_trash(dir8) or is_trash(parent8_of(a)) then
		return ENOENT
	end
	if has(byte(a, 1), 1) ~= 0 then
		return EPERM
	end
	return checks(who) and access(who, a, 3) or nil
end
local function may_remove(who, dir8, a, victim)
	if type_of(a) ~= DIR then
		return ENOTDIR
	end
	local uid = who_uid(who)
	if (is_trash(dir8) or is_trash(parent8_of(a))) and uid ~= 0 then
		return EPERM
	end
	if has(byte(a, 1), 3) ~= 0 then
		return EPERM
	end
	local e = checks(who) and access(who, a, 3)
	if e then
		return e
	end
	if has(mode_of(a), 512) ~= 0 and uid ~= 0 and uid ~= uid_of(a) and uid ~= uid_of(victim) then
		return EACCES
	end
	return has(byte(victim, 1), 3) ~= 0 and EPERM or nil
end
-- Checks a change that append-only and immutable inodes refuse.
local function may_change(a)
	if not a then
		return ENOENT
	end
	return has(byte(a, 1), 3) ~= 0 and EPERM or nil
end
-- Writes the directory when its link count changes, except in the trash, where link counts do not
-- depend on entries. Returns the record afterwards.
local function count_dirs(dir, dir8, a, now, nlink_d)
	if nlink_d == 0 or is_trash(dir8) then
		return a
	end
	a = set_mtime_ctime(set_nlink(a, nlink_of(a) + nlink_d), now, now)
	put(dir, a)
	return a
end
