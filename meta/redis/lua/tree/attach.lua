-- SPDX-License-Identifier: Apache-2.0
-- write 2: attr rules usage
local function op(dir, a, parent, ino, parent8, ino8, name, who, now, stats)
	local e = may_add(who, parent8, dir)
	if e then
		return {e}
	end
	if not a or not call('ZSCORE', P .. 'detachedNodes', ino) then
		return {ENOENT}
	end
	if call('HEXISTS', P .. 'd' .. parent, name) == 1 then
		return {EEXIST}
	end
	call('ZREM', P .. 'detachedNodes', ino)
	call('HSET', P .. 'd' .. parent, name, char(type_of(a)) .. ino8)
	a = set_parent(a, parent8)
	put(ino, a)
	count_dirs(parent, parent8, dir, now, type_of(a) == DIR and 1 or 0)
	use_entry(stats, parent, a, 1)
	log('ATTACH(%s,%s,%n)', ino, parent, name)
	return {0, a}
end
