-- SPDX-License-Identifier: Apache-2.0
-- write: lost
-- sid '': creates a session. Otherwise updates the expiry, and writes a missing record again.
local function op(sid, info, expire)
	if sid == '' then
		skip_lost()
		sid = fmt('%.0f', call('INCR', P .. 'nextsession'))
	elseif call('HEXISTS', P .. 'sessionInfos', sid) == 1 then
		call('ZADD', P .. 'allSessions', expire, sid)
		return {0, sid}
	end
	call('ZADD', P .. 'allSessions', expire, sid)
	call('HSET', P .. 'sessionInfos', sid, info)
	if LOG then
		log('NEWSESSION(%s,%s,%n)', sid, expire, info)
	end
	return {0, sid}
end
