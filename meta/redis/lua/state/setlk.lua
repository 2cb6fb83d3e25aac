-- SPDX-License-Identifier: Apache-2.0
-- write:
-- list: the owner's locks afterwards, merged by the client. The last arguments are the fields and
-- values of all lists, which the client has checked for conflicts. EBUSY: the lists have changed
-- since.
local function op(ino, sid, owner, list, line, ...)
	-- On an inode that another client has removed, only unlocking is possible.
	if list ~= '' and call('EXISTS', P .. 'i' .. ino) == 0 then
		return {-2}
	end
	local key, mine, expected = P .. 'lockp' .. ino, sid .. '_' .. owner, {...}
	if call('HLEN', key) ~= #expected / 2 then
		return {-16}
	end
	for i = 1, #expected, 2 do
		if call('HGET', key, expected[i]) ~= expected[i + 1] then
			return {-16}
		end
	end
	if list == '' then
		call('HDEL', key, mine)
	else
		call('HSET', key, mine, list)
		call('SADD', P .. 'locked' .. sid, key)
	end
	log('SETLK(%s)', line)
	return {0}
end
