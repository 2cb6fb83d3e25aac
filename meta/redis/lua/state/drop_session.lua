-- SPDX-License-Identifier: Apache-2.0
-- write:
-- Its mount may have written the record again meanwhile.
local function op(sid)
	local expire = call('ZSCORE', P .. 'allSessions', sid)
	if expire and tonumber(expire) ~= 0 then
		return {0}
	end
	call('ZREM', P .. 'allSessions', sid)
	call('HDEL', P .. 'sessionInfos', sid)
	call('DEL', P .. 'session' .. sid)
	log('CLEANSESSION(%s)', sid)
	return {0}
end
