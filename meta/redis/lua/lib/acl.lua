-- SPDX-License-Identifier: Apache-2.0
-- ACL rules (volume-format section 10).
local function acl_mode(rule)
	local owner, group, mask, other = parse('>HHHH', rule)
	if mask ~= 65535 then
		group = mask
	end
	return owner % 8 * 64 + group % 8 * 8 + other % 8
end
-- The id of the rule, stored when it is new. A private index avoids reading all rules. JuiceFS does
-- not maintain it, so it is only a hint.
local function acl_id(rule)
	local id = call('HGET', P .. 'zcachefs:acl', rule)
	if id and call('HGET', P .. 'acl', id) == rule then
		return tonumber(id)
	end
	local all, found = call('HGETALL', P .. 'acl'), nil
	for i = 1, #all, 2 do
		local n = tonumber(all[i])
		if all[i + 1] == rule and (not found or n < found) then
			found = n
		end
	end
	if not found then
		skip_lost()
		found = call('INCR', P .. 'aclMaxId')
		call('HSET', P .. 'acl', found, rule)
	end
	call('HSET', P .. 'zcachefs:acl', rule, found)
	return found
end
-- Returns mode and rule of a child; nil: the mode is sufficient.
local function inherit(def, mode)
	local owner, group, mask, other = parse('>HHHH', def)
	local upper = mode - mode % 512
	if mask == 65535 and #def == 16 then
		return upper + has(mode % 512, acl_mode(def)), nil
	end
	owner = has(owner, floor(mode / 64) % 8)
	if mask ~= 65535 then
		mask = has(mask, floor(mode / 8) % 8)
	end
	other = has(other, mode % 8)
	local rule = pack('>HHHH', owner, group, mask, other) .. sub(def, 9)
	return upper + acl_mode(rule), rule
end
local function chmod_rule(rule, mode)
	local owner, group, mask, other = parse('>HHHH', rule)
	if mask == 65535 then
		group = floor(mode / 8) % 8
	else
		mask = floor(mode / 8) % 8
	end
	return pack('>HHHH', floor(mode / 64) % 8, group, mask, mode % 8) .. sub(rule, 9)
end
