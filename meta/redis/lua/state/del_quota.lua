-- SPDX-License-Identifier: Apache-2.0
-- write:
-- limits: of an owner, whose usage is still counted, with these limits; '' for a directory
local function op(name, key, limits, line)
	if call('HEXISTS', P .. name, key) == 0 then
		return {0}
	end
	if limits ~= '' then
		call('HSET', P .. name, key, limits)
	else
		call('HDEL', P .. name, key)
		call('HDEL', P .. name .. 'UsedSpace', key)
		call('HDEL', P .. name .. 'UsedInodes', key)
	end
	log('DELQUOTA(%s)', line)
	return {0}
end
