-- SPDX-License-Identifier: Apache-2.0
-- Attribute records (volume-format section 4) as strings: fields are cut out and put back, so that
-- unknown fields are preserved.
local FILE, DIR, SYMLINK = 1, 2, 3
-- Pads a record of an older client to the current length. false: no such inode
local function whole(a)
	return a and #a < 72 and a .. string.rep('\0', 72 - #a) or a
end
local function get(ino)
	return whole(call('GET', P .. 'i' .. ino))
end
local function put(ino, a)
	call('SET', P .. 'i' .. ino, a)
end
local function type_of(a)
	return floor(byte(a, 2) / 16)
end
local function mode_of(a)
	return byte(a, 2) % 16 * 256 + byte(a, 3)
end
local function set_mode(a, mode)
	return sub(a, 1, 1) .. pack('>H', type_of(a) * 4096 + mode) .. sub(a, 4)
end
local function set_flags(a, flags)
	return char(flags) .. sub(a, 2)
end
local function uid_of(a)
	return (parse('>I4', sub(a, 4, 7)))
end
local function gid_of(a)
	return (parse('>I4', sub(a, 8, 11)))
end
local function set_ctime(a, now)
	return sub(a, 1, 35) .. now .. sub(a, 48)
end
local function set_mtime_ctime(a, mtime, ctime)
	return sub(a, 1, 23) .. mtime .. ctime .. sub(a, 48)
end
local function nlink_of(a)
	return (parse('>I4', sub(a, 48, 51)))
end
local function set_nlink(a, n)
	return sub(a, 1, 47) .. pack('>I4', n) .. sub(a, 52)
end
local function length8_of(a)
	return sub(a, 52, 59)
end
local function set_length(a, length8)
	return sub(a, 1, 51) .. length8 .. sub(a, 60)
end
local function parent8_of(a)
	return sub(a, 64, 71)
end
local function set_parent(a, parent8)
	return sub(a, 1, 63) .. parent8 .. sub(a, 72)
end
local NONE8 = '\0\0\0\0\0\0\0\0'
local function has_parent(a)
	return parent8_of(a) ~= NONE8
end
-- Both ACL ids, 8 bytes
local function acls_of(a)
	return #a >= 79 and sub(a, 72, 79) or NONE8
end
local function tier_of(a)
	return byte(a, #a >= 79 and 80 or 72) or 0
end
local function set_tail(a, acls, tier)
	return sub(a, 1, 71) .. (acls ~= NONE8 and acls or '') .. (tier ~= 0 and char(tier) or '') ..
		'\0'
end
-- set: the changed attributes, as in the changelog
local function log_setattr(ino, set, a)
	log('SETATTR(%s,%s,0,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d)', ino, set, uid_of(a), gid_of(a), mode_of(a),
		byte(a, 1), (parse('>i8', sub(a, 12))), (parse('>i8', sub(a, 24))),
		(parse('>I4', sub(a, 20))), (parse('>I4', sub(a, 32))), (parse('>i8', sub(a, 36))),
		(parse('>I4', sub(a, 44))), tier_of(a))
end
local function is_trash(ino8)
	local hi, lo = parse('>I4I4', ino8)
	return hi > 2147483647 or (hi == 2147483647 and lo >= 268435456)
end
-- The inode behind an entry; a missing inode looks like an empty one that skips the trash.
local function get_victim(ino, entry)
	return get(ino) or '\32' .. char(byte(entry, 1) * 16) .. string.rep('\0', 48) .. '\1' ..
		string.rep('\0', 21)
end
