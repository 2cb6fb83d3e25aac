-- SPDX-License-Identifier: Apache-2.0
-- write 1: attr rules
local function op(a, ino, name, line)
	if not a then
		return {ENOENT}
	end
	if has(byte(a, 1), 3) ~= 0 then
		return {EPERM}
	end
	if call('HDEL', P .. 'x' .. ino, name) == 0 then
		return {ENODATA}
	end
	log('REMOVEXATTR(%s)', line)
	return {0}
end
