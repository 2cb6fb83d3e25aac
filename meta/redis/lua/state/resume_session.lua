-- SPDX-License-Identifier: Apache-2.0
-- write:
local function op(sid, info, expire)
	local old = call('ZSCORE', P .. 'allSessions', sid)
	if not (old and tonumber(old) > 0) or call('HEXISTS', P .. 'sessionInfos', sid) == 0 then
		return {-2}
	end
	call('ZADD', P .. 'allSessions', expire, sid)
	call('HSET', P .. 'sessionInfos', sid, info)
	return {0}
end
