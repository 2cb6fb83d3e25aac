-- SPDX-License-Identifier: Apache-2.0
-- write:
local function op(sid, info, expire)
	if call('HEXISTS', P .. 'sessionInfos', sid) == 0 then
		return {-2}
	end
	call('ZADD', P .. 'allSessions', expire, sid)
	call('HSET', P .. 'sessionInfos', sid, info)
	return {0}
end
