-- SPDX-License-Identifier: Apache-2.0
-- write 1: attr rules
local function op(a, ino, name, line)
	local e = may_change(a)
	if e then
		return {e}
	end
	if call('HDEL', P .. 'x' .. ino, name) == 0 then
		return {ENODATA}
	end
	log('REMOVEXATTR(%s)', line)
	return {0}
end
