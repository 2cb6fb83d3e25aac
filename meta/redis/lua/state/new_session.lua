-- SPDX-License-Identifier: Apache-2.0
-- write: lost
-- sid '': creates a session. Otherwise updates the expiry; returns 1 when the session has ended, and
-- writes its record again.
local function op(sid, info, expire)
	local ended = 0
	if sid == '' then
		skip_lost()
		sid = fmt('%.0f', call('INCR', P .. 'nextsession'))
	else
		local old = call('ZSCORE', P .. 'allSessions', sid)
		if old and tonumber(old) > 0 and call('HEXISTS', P .. 'sessionInfos', sid) == 1 then
			call('ZADD', P .. 'allSessions', expire, sid)
			return {0, sid}
		end
		ended = 1
	end
	call('ZADD', P .. 'allSessions', expire, sid)
	call('HSET', P .. 'sessionInfos', sid, info)
	if LOG then
		log('NEWSESSION(%s,%s,%n)', sid, expire, info)
	end
	return {ended, sid}
end
