-- SPDX-License-Identifier: Apache-2.0
-- write:
-- want: R, W or U
local function op(ino, sid, owner, want, line)
	-- On an inode that another client has removed, only unlocking is possible.
	if want ~= 'U' and call('EXISTS', P .. 'i' .. ino) == 0 then
		return {-2}
	end
	local key, mine = P .. 'lockf' .. ino, sid .. '_' .. owner
	if want == 'U' then
		if call('HDEL', key, mine) == 1 then
			log('FLOCK(%s)', line)
		end
		return {0}
	end
	local all = call('HGETALL', key)
	for i = 1, #all, 2 do
		if all[i] == mine and all[i + 1] == want then
			return {0}
		end
	end
	for i = 1, #all, 2 do
		if all[i] ~= mine and (want == 'W' or all[i + 1] == 'W') then
			return {-11}
		end
	end
	call('HSET', key, mine, want)
	call('SADD', P .. 'locked' .. sid, key)
	log('FLOCK(%s)', line)
	return {0}
end
