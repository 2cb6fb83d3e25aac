-- SPDX-License-Identifier: Apache-2.0
-- write 1: attr rules
-- mode: -1 keeps the mode
local function op(a, ino, is_default, id4, mode, who, now)
	if not a then
		return {ENOENT}
	end
	if checks(who) and who_uid(who) ~= 0 and sub(who, 1, 4) ~= sub(a, 4, 7) then
		return {EPERM}
	end
	if has(byte(a, 1), 3) ~= 0 then
		return {EPERM}
	end
	local acls, tier = acls_of(a), tier_of(a)
	if is_default == '1' then
		acls = sub(acls, 1, 4) .. id4
	else
		acls = id4 .. sub(acls, 5)
	end
	if tonumber(mode) >= 0 then
		a = set_mode(a, tonumber(mode))
	end
	a = set_tail(set_ctime(a, now), acls, tier)
	put(ino, a)
	log('SETFACL(%s,%d,%d,%d)', ino, is_default == '1' and 2 or 1, (parse('>I4', id4)), mode_of(a))
	return {0, a}
end
