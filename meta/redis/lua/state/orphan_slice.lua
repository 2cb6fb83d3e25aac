-- SPDX-License-Identifier: Apache-2.0
-- write:
-- key, token: those of a commit of this slice whose answer was lost, '' for none. When the commit has
-- not run, its stored answer is set to EIO, so that it cannot run later.
local function op(id, size, key, token)
	local field = 'k' .. id .. '_' .. size
	if key ~= '' then
		local kept = call('GET', P .. key)
		if kept and sub(kept, 1, 16) == token then
			return {-16}
		end
		call('SET', P .. key, token .. cmsgpack.pack({-5}), 'PX', string.match(key, '%d+$'))
	end
	local n = call('HGET', P .. 'sliceRef', field)
	if n and tonumber(n) >= 0 then
		return {-16}
	end
	call('HSET', P .. 'sliceRef', field, -1)
	return {0}
end
