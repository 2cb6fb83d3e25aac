-- SPDX-License-Identifier: Apache-2.0
-- The outcome of a removal for the inode (volume-format section 9).
local LINKED, TRASHED, SUSTAINED, DELETED = 1, 2, 3, 4
-- The lists of at most MANY chunks are looked up; a longer file is assumed to have chunks.
local MANY = 64
local function has_chunks(ino, n)
	if n > MANY then
		return true
	end
	local keys = {}
	for i = 0, n - 1 do
		keys[#keys + 1] = P .. 'c' .. ino .. '_' .. i
	end
	return #keys > 0 and call('EXISTS', unpack(keys)) > 0
end
-- Records the file's data for deletion. Returns whether it has any, and the length in `delfiles`.
local function put_delfile(ino, a, now)
	local hi, lo = halves(length8_of(a))
	local length, n = dec(length8_of(a)), hi * 64 + math.ceil(lo / 67108864)
	local top = tonumber(call('HGET', P .. 'zcachefs:top', ino) or 0)
	if top > 0 then
		call('HDEL', P .. 'zcachefs:top', ino)
		if top > n then
			n = top
			length = int(top * 67108864)
		end
	end
	if n == 0 or not has_chunks(ino, n) then
		return false, length
	end
	call('ZADD', P .. 'delfiles', (parse('>i8', now)), ino .. ':' .. length)
	return true, length
end
-- Deletes all keys of the inode except its chunk lists.
local function delete_inode(ino, a, now)
	local kind = type_of(a)
	call('DEL', P .. 'i' .. ino, P .. 'x' .. ino, P .. 'p' .. ino)
	use_volume(-blocks(a), -1)
	if kind == FILE then
		return put_delfile(ino, a, now)
	elseif kind == SYMLINK then
		call('DEL', P .. 's' .. ino)
	end
	return false, '0'
end
-- asked: the inode that `open` is about; open: '1' when this client has it open. sid: the client's
-- session, '0' for none. An open file of a session is kept (SUSTAINED). nil: the client must be asked
-- whether it has this inode open.
local function outcome_of(a, ino, trash, trash_name, open, asked, sid)
	local kind = type_of(a)
	if trash ~= '0' and has(byte(a, 1), 32) == 0 and not (nlink_of(a) > 1 and kind ~= DIR and
		call('HEXISTS', P .. 'd' .. trash, trash_name) == 1) then
		return TRASHED
	end
	if kind ~= DIR and nlink_of(a) > 1 then
		return LINKED
	end
	if kind ~= FILE or sid == '0' then
		return DELETED
	end
	if asked ~= ino then
		return nil
	end
	return open == '1' and SUSTAINED or DELETED
end
local function trash_name_of(parent, ino, name)
	return sub(parent .. '-' .. ino .. '-' .. name, 1, 255)
end
-- Updates an inode that was moved to another directory.
local function arrive(ino, a, from, to, to8, now)
	a = set_ctime(a, now)
	if has_parent(a) then
		a = set_parent(a, to8)
	elseif from ~= to then
		call('HINCRBY', P .. 'p' .. ino, from, -1)
		call('HINCRBY', P .. 'p' .. ino, to, 1)
	end
	put(ino, a)
	return a
end
-- Returns the inode's record (of a deleted one: the last record), whether it has left data, and its
-- length in `delfiles`.
local function dispose(outcome, parent, name, ino, ino8, a, trash, trash8, now, stats, sid)
	use_entry(stats, parent, a, -1)
	if type_of(a) == DIR then
		drop_stats(ino)
	end
	if outcome == DELETED then
		return a, delete_inode(ino, a, now)
	end
	if outcome == TRASHED then
		call('HSET', P .. 'd' .. trash, trash_name_of(parent, ino, name), char(type_of(a)) .. ino8)
		use_entry(stats, trash, a, 1)
		return arrive(ino, a, parent, trash, trash8, now), false, '0'
	end
	a = set_ctime(a, now)
	if outcome == LINKED then
		a = set_nlink(a, nlink_of(a) - 1)
		if not has_parent(a) then
			call('HINCRBY', P .. 'p' .. ino, parent, -1)
		end
	else
		a = set_nlink(a, 0)
		call('SADD', P .. 'session' .. sid, ino)
		call('DEL', P .. 'x' .. ino, P .. 'p' .. ino)
	end
	put(ino, a)
	return a, false, '0'
end
