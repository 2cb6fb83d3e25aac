-- SPDX-License-Identifier: Apache-2.0
-- write: attr rules
local function op(ino, name, line)
	local a = get(ino)
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
