-- SPDX-License-Identifier: Apache-2.0
-- write 1: attr rules usage lost acl
local MODE, UID, GID, ATIME, MTIME, CTIME, ATIME_NOW, MTIME_NOW = 1, 2, 4, 8, 16, 32, 64, 128
local FLAGS, KILL_SUID, KILL_SGID, TIER, IS_OPEN = 256, 512, 1024, 2048, 32768
local KERNEL_MADE = KILL_SUID + KILL_SGID + IS_OPEN
local function check(who, set, a, uid4, gid4)
	if is_trash(parent8_of(a)) and has(set, IS_OPEN) == 0 then
		return EPERM
	end
	local asked = has(set, bit.bnot(KERNEL_MADE))
	if has(asked, bit.bnot(FLAGS)) ~= 0 then
		if has(byte(a, 1), 1) ~= 0 then
			return EPERM
		end
		if has(byte(a, 1), 2) ~= 0 and
			has(asked, bit.bnot(ATIME_NOW + MTIME_NOW + FLAGS)) ~= 0 then
			return EPERM
		end
	end
	if not checks(who) or who_uid(who) == 0 then
		return nil
	end
	local owner = sub(who, 1, 4) == sub(a, 4, 7)
	if has(set, FLAGS + TIER) ~= 0 or (not owner and has(set, MODE + ATIME + MTIME) ~= 0) then
		return EPERM
	end
	if has(set, ATIME_NOW + MTIME_NOW) ~= 0 and not owner and access(who, a, 2) then
		return EACCES
	end
	if has(set, UID) ~= 0 and (uid4 ~= sub(a, 4, 7) or not owner) then
		return EPERM
	end
	if has(set, GID) ~= 0 and
		(not owner or (gid4 ~= sub(a, 8, 11) and not in_group(who, gid4))) then
		return EPERM
	end
	return nil
end
-- line: the changelog text of the request
local function op(old, ino, set, mode, uid4, gid4, flags, tier, atime, mtime, ctime, who, now, line)
	set, mode = tonumber(set), tonumber(mode)
	if not old then
		return {ENOENT}
	end
	local e = check(who, set, old, uid4, gid4)
	if e then
		return {e}
	end
	local a, bits, kind = old, mode_of(old), type_of(old)
	if has(set, MODE) ~= 0 then
		bits = mode
		if has(bits, 1024) ~= 0 and checks(who) and who_uid(who) ~= 0 and
			not in_group(who, sub(a, 8, 11)) then
			bits = bits - 1024
		end
	end
	if has(set, UID + GID) ~= 0 then
		if kind ~= DIR then
			local kill = (who_uid(who) ~= 0 or has(bits, 8) ~= 0) and 3072 or 2048
			bits = has(bits, bit.bnot(kill))
		end
		if has(set, UID) ~= 0 then
			a = sub(a, 1, 3) .. uid4 .. sub(a, 8)
		end
		if has(set, GID) ~= 0 then
			a = sub(a, 1, 7) .. gid4 .. sub(a, 12)
		end
	end
	if has(set, KILL_SUID) ~= 0 and kind ~= DIR then
		if has(bits, 8) ~= 0 or has(set, KILL_SGID) ~= 0 then
			bits = has(bits, bit.bnot(1024))
		end
		bits = has(bits, bit.bnot(2048))
	end
	if has(set, FLAGS) ~= 0 then
		a = set_flags(a, tonumber(flags))
	end
	if has(set, TIER) ~= 0 then
		a = set_tail(a, acls_of(a), tonumber(tier))
	end
	if has(set, ATIME + ATIME_NOW) ~= 0 then
		a = sub(a, 1, 11) .. (has(set, ATIME_NOW) ~= 0 and now or atime) .. sub(a, 24)
	end
	if has(set, MTIME + MTIME_NOW) ~= 0 then
		a = sub(a, 1, 23) .. (has(set, MTIME_NOW) ~= 0 and now or mtime) .. sub(a, 36)
	end
	if has(set, bit.bnot(KERNEL_MADE)) == 0 and bits == mode_of(old) then
		return {0, old, old}
	end
	a = set_ctime(set_mode(a, bits), has(set, CTIME) ~= 0 and ctime or now)
	local acls = acls_of(a)
	if sub(acls, 1, 4) ~= '\0\0\0\0' and bits ~= mode_of(old) then
		local rule = call('HGET', P .. 'acl', (parse('>I4', acls)))
		if not rule then
			return {ENODATA}
		end
		a = set_tail(a, pack('>I4', acl_id(chmod_rule(rule, bits))) .. sub(acls, 5), tier_of(a))
	end
	put(ino, a)
	log_setattr(ino, line, a)
	return {0, a, old}
end
