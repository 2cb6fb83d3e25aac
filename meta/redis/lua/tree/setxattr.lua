-- SPDX-License-Identifier: Apache-2.0
-- write 1: attr rules
local function op(a, ino, name, value, flags, line)
	local e = may_change(a)
	if e then
		return {e}
	end
	local there = call('HEXISTS', P .. 'x' .. ino, name) == 1
	if flags == '1' and there then
		return {EEXIST}
	elseif flags == '2' and not there then
		return {ENODATA}
	end
	call('HSET', P .. 'x' .. ino, name, value)
	log('SETXATTR(%s)', line)
	return {0}
end
