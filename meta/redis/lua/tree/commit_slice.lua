-- SPDX-License-Identifier: Apache-2.0
-- write 1: attr rules usage length lost acl
-- Applies attribute changes of the same commit: set, mode, uid, gid, atime.
local function change(a, v)
	local set, mode = parse('>I4I4', v)
	local acls = acls_of(a)
	if has(set, 1) ~= 0 and mode ~= mode_of(a) then
		a = set_mode(a, mode)
		if sub(acls, 1, 4) ~= '\0\0\0\0' then
			local rule = call('HGET', P .. 'acl', (parse('>I4', acls)))
			a = rule and set_tail(a, pack('>I4', acl_id(chmod_rule(rule, mode))) .. sub(acls, 5),
				tier_of(a)) or a
		end
	end
	if has(set, 2) ~= 0 then
		a = sub(a, 1, 3) .. sub(v, 9, 12) .. sub(a, 8)
	end
	if has(set, 4) ~= 0 then
		a = sub(a, 1, 7) .. sub(v, 13, 16) .. sub(a, 12)
	end
	if has(set, 8) ~= 0 then
		a = sub(a, 1, 11) .. sub(v, 17) .. sub(a, 24)
	end
	return a
end
local function op(a, ino, indx, record, end8, mtime, now, stats, line, attrs)
	if not a then
		return {ENOENT}
	end
	if type_of(a) ~= FILE then
		return {EPERM}
	end
	if attrs ~= '' then
		a = change(a, attrs)
	end
	local n = call('RPUSH', P .. 'c' .. ino .. '_' .. indx, record)
	local old8, parents
	a, old8, parents = put_written(stats, ino, a, end8, mtime, now)
	log('WRITE(%s):%d', line, n)
	return {0, a, old8, parents, n}
end
