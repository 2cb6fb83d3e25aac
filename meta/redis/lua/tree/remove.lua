-- SPDX-License-Identifier: Apache-2.0
-- write 2: attr rules usage dispose
-- unlink and rmdir. asked: the inode that the client expects; open: whether the client has that inode
-- open. The answer {EBUSY, ino} asks whether another inode is open.
local function op(dir, a, parent, asked, parent8, name, want_dir, trash, trash8, who, now, stats, sid,
	open)
	if not dir then
		return {ENOENT}
	end
	local entry = call('HGET', P .. 'd' .. parent, name)
	if not entry then
		return {ENOENT}
	end
	local is_dir = byte(entry, 1) == DIR
	if is_dir ~= (want_dir == '1') then
		return {is_dir and EISDIR or ENOTDIR}
	end
	local ino8 = sub(entry, 2, 9)
	local ino = dec(ino8)
	a = asked == ino and a or get_victim(ino, entry)
	local e = may_remove(who, parent8, dir, a)
	if e then
		return {e}
	end
	if is_dir and call('HLEN', P .. 'd' .. ino) > 0 then
		return {ENOTEMPTY}
	end
	local outcome = outcome_of(a, ino, trash, trash_name_of(parent, ino, name), open, asked, sid)
	if not outcome then
		return {EBUSY, ino}
	end
	call('HDEL', P .. 'd' .. parent, name)
	local data, length
	a, data, length = dispose(outcome, parent, name, ino, ino8, a, trash, trash8, now, stats, sid)
	dir = count_dirs(parent, parent8, dir, now, is_dir and -1 or 0)
	if LOG then
		local there = outcome == TRASHED and trash or '0'
		if is_dir then
			log('RMDIR(%s,%n,%s):%s', parent, name, there, ino)
		else
			log('UNLINK(%s,%n,%s,%s,false):%s', parent, name, there,
				tostring(outcome == SUSTAINED), ino)
		end
	end
	return {0, outcome, ino8, a, data and 1 or 0, dir, length}
end
