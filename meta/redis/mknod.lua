-- SPDX-License-Identifier: Apache-2.0
-- write: attr rules usage acl
-- a: the inode's record as it would be in a plain directory. mode: as asked for, before umask.
local function op(parent, parent8, name, ino, ino8, a, who, now, stats, skip_ms, mode, target, line)
	local dir = get(parent)
	if not dir then
		return {ENOENT}
	end
	local e = may_add(who, parent8, dir)
	if e then
		return {e}
	end
	local there = call('HGET', P .. 'd' .. parent, name)
	if there then
		return {EEXIST, there, call('GET', P .. 'i' .. dec(sub(there, 2, 9))) or ''}
	end
	local kind = type_of(a)
	a = set_parent(set_flags(a, has(byte(dir, 1), 32)), parent8)
	local acls, bits = NONE8, mode_of(a)
	if has(mode_of(dir), 1024) ~= 0 then
		a = sub(a, 1, 7) .. sub(dir, 8, 11) .. sub(a, 12)
		if kind == DIR then
			bits = bit.bor(bits, 1024)
		elseif has(bits, 1032) == 1032 and checks(who) and who_uid(who) ~= 0 and
			not in_group(who, sub(dir, 8, 11)) then
			bits = bits - 1024
		end
	end
	local def4 = sub(acls_of(dir), 5, 8)
	if def4 ~= '\0\0\0\0' and kind ~= SYMLINK then
		local def = call('HGET', P .. 'acl', (parse('>I4', def4)))
		if not def then
			return {ENODATA}
		end
		local rule
		bits, rule = inherit(def, bits - bits % 512 + tonumber(mode) % 512)
		acls = pack('>I4', rule and acl_id(rule) or 0) .. (kind == DIR and def4 or '\0\0\0\0')
	end
	a = set_tail(set_mode(a, bits), acls, tier_of(dir))
	put(ino, a)
	call('HSET', P .. 'd' .. parent, name, char(kind) .. ino8)
	if kind == SYMLINK then
		call('SET', P .. 's' .. ino, target)
	elseif kind == DIR then
		make_stats(stats, ino)
	end
	local touched
	dir, touched = touch(parent, parent8, dir, now, skip_ms, kind == DIR and 1 or 0)
	use_volume(1, 1)
	if kind == SYMLINK or kind ~= FILE then
		use_dir(stats, parent, 0, 0, 1, 1)
	else
		use_entry(stats, parent, a, 1)
	end
	log('CREATE(%s,%s,%s%s):%s', parent, escape(name), line, tostring(touched), ino)
	return {0, a, dir}
end
