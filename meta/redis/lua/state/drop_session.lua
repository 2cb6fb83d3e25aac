-- SPDX-License-Identifier: Apache-2.0
-- write:
local function op(sid)
	call('ZREM', P .. 'allSessions', sid)
	call('HDEL', P .. 'sessionInfos', sid)
	call('DEL', P .. 'session' .. sid)
	log('CLEANSESSION(%s)', sid)
	return {0}
end
