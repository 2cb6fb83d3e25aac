-- SPDX-License-Identifier: Apache-2.0
-- write:
-- mark: the mark of the write (engine.h), kept in the record of session sid; '' for none. Five
-- arguments for each quota: hash, key, space, inodes, limits for a missing record ('': none is
-- created)
local function op(sid, mark, ...)
	local v = {...}
	local info = mark ~= '' and call('HGET', P .. 'sessionInfos', sid)
	if info and info == mark then
		return {0}
	elseif info then
		call('HSET', P .. 'sessionInfos', sid, mark)
	end
	for i = 1, #v, 5 do
		local name, key = v[i], v[i + 1]
		local known = call('HEXISTS', P .. name, key) == 1
		if not known and v[i + 4] ~= '' then
			call('HSET', P .. name, key, v[i + 4])
			known = true
		end
		if known then
			call('HINCRBY', P .. name .. 'UsedSpace', key, v[i + 2])
			call('HINCRBY', P .. name .. 'UsedInodes', key, v[i + 3])
		end
	end
	return {0}
end
