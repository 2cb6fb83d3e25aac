-- SPDX-License-Identifier: Apache-2.0
-- write 2: attr rules usage dispose
local NOREPLACE, EXCHANGE, RESTORE = 1, 2, 32
local function may_leave(who, sp, sp8, dp, dir, a)
	local e = may_remove(who, sp8, dir, a)
	if e or sp == dp or type_of(a) ~= DIR then
		return e
	end
	local uid = who_uid(who)
	if has(mode_of(dir), 512) ~= 0 and uid ~= 0 and uid ~= uid_of(a) then
		return EACCES
	end
	-- The move changes its "..".
	return checks(who) and access(who, a, 2) or nil
end
local function may_arrive(who, dp8, dir, victim, flags)
	local restore = has(flags, RESTORE) ~= 0 and who_uid(who) == 0
	if is_trash(dp8) then
		return not restore and EPERM or nil
	end
	-- A restore reassembles a tree at its top, inside the trash.
	if restore and not victim then
		return type_of(dir) ~= DIR and ENOTDIR or nil
	end
	if victim then
		return may_remove(who, dp8, dir, victim)
	end
	return may_add(who, dp8, dir)
end
-- True when the directory is the inode or lies below it, or when its ancestors form a loop.
local function lies_below(dir, ino)
	local mark, steps, limit = dir, 0, 1
	while dir ~= '1' do
		if dir == ino then
			return true
		end
		local a = get(dir)
		if not a then
			return false
		end
		dir = dec(parent8_of(a))
		if dir == mark then
			return true
		end
		steps = steps + 1
		if steps == limit then
			mark, limit = dir, limit * 2
		end
	end
	return false
end
local function op(sdir, ddir, sp, dp, sp8, sname, dp8, dname, flags, trash, trash8, who, now, stats,
	sid, asked, open)
	flags = tonumber(flags)
	if not sdir or not ddir then
		return {ENOENT}
	end
	if type_of(sdir) ~= DIR or type_of(ddir) ~= DIR then
		return {ENOTDIR}
	end
	local sentry = call('HGET', P .. 'd' .. sp, sname)
	if not sentry then
		return {ENOENT}
	end
	local dentry = call('HGET', P .. 'd' .. dp, dname)
	local exchange = has(flags, EXCHANGE) ~= 0
	if dentry and has(flags, NOREPLACE) ~= 0 then
		return {EEXIST}
	elseif not dentry and exchange then
		return {ENOENT}
	end
	local s8 = sub(sentry, 2, 9)
	local s = dec(s8)
	local a = get(s)
	if not a then
		return {ENOENT}
	end
	if dentry and sub(dentry, 2, 9) == s8 then
		return {0, s8, a, 0}
	end
	local v8, v, b
	if dentry then
		v8 = sub(dentry, 2, 9)
		v = dec(v8)
		b = get_victim(v, dentry)
	end
	if exchange and (is_trash(sp8) or is_trash(dp8)) then
		return {EPERM}
	end
	local s_dir, v_dir = byte(sentry, 1) == DIR, dentry and byte(dentry, 1) == DIR
	-- The kernel checks against its cached tree, which another mount may have changed.
	if sp ~= dp and (s_dir and lies_below(dp, s) or exchange and v_dir and lies_below(sp, v)) then
		return {EINVAL}
	end
	local e = may_leave(who, sp, sp8, dp, sdir, a) or may_arrive(who, dp8, ddir, b, flags)
	if e then
		return {e}
	end
	local outcome = 0
	if dentry and not exchange then
		if s_dir ~= v_dir then
			return {s_dir and ENOTDIR or EISDIR}
		end
		if v_dir and call('HLEN', P .. 'd' .. v) > 0 then
			return {ENOTEMPTY}
		end
		outcome = outcome_of(b, v, trash, trash_name_of(dp, v, dname), open, asked, sid)
		if not outcome then
			return {EBUSY, v}
		end
	end
	local s_nlink, d_nlink, data, length = 0, 0, false, '0'
	if exchange then
		call('HSET', P .. 'd' .. sp, sname, dentry)
		call('HSET', P .. 'd' .. dp, dname, sentry)
		outcome = LINKED
		b = arrive(v, b, dp, sp, sp8, now)
		if sp ~= dp then
			d_nlink = (type_of(a) == DIR and 1 or 0) - (type_of(b) == DIR and 1 or 0)
			s_nlink = -d_nlink
			use_entry(stats, sp, b, 1)
			use_entry(stats, dp, b, -1)
		end
	else
		call('HDEL', P .. 'd' .. sp, sname)
		call('HSET', P .. 'd' .. dp, dname, sentry)
		if dentry then
			d_nlink = v_dir and -1 or 0
			b, data, length = dispose(outcome, dp, dname, v, v8, b, trash, trash8, now, stats, sid)
		end
		if sp ~= dp and type_of(a) == DIR then
			s_nlink = -1
			d_nlink = d_nlink + 1
		end
	end
	if sp ~= dp then
		use_entry(stats, sp, a, -1)
		use_entry(stats, dp, a, 1)
	end
	a = arrive(s, a, sp, dp, dp8, now)
	if sp == dp then
		count_dirs(sp, sp8, sdir, now, s_nlink + d_nlink)
	else
		count_dirs(sp, sp8, sdir, now, s_nlink)
		count_dirs(dp, dp8, ddir, now, d_nlink)
	end
	log('MOVE(%s,%n,%s,%n,%d,%s,%s):%s', sp, sname, dp, dname, flags, v or '0',
		outcome == TRASHED and trash or '0', s)
	return {0, s8, a, outcome, v8 or NONE8, b or '', data and 1 or 0, length}
end
