-- SPDX-License-Identifier: Apache-2.0
-- write 1: attr rules usage lost acl
local function in_setgid_dir(a, dir, who)
	local bits = mode_of(a)
	if type_of(a) == DIR then
		a = set_mode(a, bit.bor(bits, 1024))
	elseif has(bits, 1032) == 1032 and checks(who) and who_uid(who) ~= 0 and
		not in_group(who, sub(dir, 8, 11)) then
		a = set_mode(a, bits - 1024)
	end
	return sub(a, 1, 7) .. sub(dir, 8, 11) .. sub(a, 12)
end
-- Sets the storage tier from the directory, and the ACL from its default rule. nil: the rule is
-- missing.
local function with_tail_of(dir, a, mode)
	local def4, acls = sub(acls_of(dir), 5, 8), NONE8
	if def4 ~= '\0\0\0\0' and type_of(a) ~= SYMLINK then
		local def = call('HGET', P .. 'acl', (parse('>I4', def4)))
		if not def then
			return nil
		end
		local bits = mode_of(a)
		local rule
		bits, rule = inherit(def, bits - bits % 512 + mode % 512)
		a = set_mode(a, bits)
		acls = pack('>I4', rule and acl_id(rule) or 0) ..
			(type_of(a) == DIR and def4 or '\0\0\0\0')
	end
	return set_tail(a, acls, tier_of(dir))
end
-- a: the record that the inode would have in a plain directory. mode: the requested mode, before
-- umask. name: '' for an inode without a name, which session `sid` keeps.
local function op(dir, parent, parent8, name, ino, ino8, a, who, now, stats, mode, target, line, sid)
	local e = may_add(who, parent8, dir)
	if e then
		return {e}
	end
	local there = name ~= '' and call('HGET', P .. 'd' .. parent, name)
	if there then
		return {EEXIST, there, call('GET', P .. 'i' .. dec(sub(there, 2, 9))) or ''}
	end
	local kind = type_of(a)
	if has(byte(dir, 1), 32) ~= 0 then
		a = set_flags(a, 32)
	end
	if has(mode_of(dir), 1024) ~= 0 then
		a = in_setgid_dir(a, dir, who)
	end
	if #dir > 72 then
		a = with_tail_of(dir, a, tonumber(mode))
		if not a then
			return {ENODATA}
		end
	end
	put(ino, a)
	if name == '' then
		call('SADD', P .. 'session' .. sid, ino)
	else
		call('HSET', P .. 'd' .. parent, name, char(kind) .. ino8)
		use_dir(stats, parent, 0, 0, 1, 1)
	end
	if kind == SYMLINK then
		call('SET', P .. 's' .. ino, target)
	elseif kind == DIR then
		make_stats(stats, ino)
	end
	dir = count_dirs(parent, parent8, dir, now, kind == DIR and 1 or 0)
	use_volume(1, 1)
	log('CREATE(%s,%n,%s%s):%s', parent, name, line, tostring(kind == DIR), ino)
	return {0, a, dir}
end
