-- SPDX-License-Identifier: Apache-2.0
-- write: refs
-- Expires one entry; {1}: there is no such entry.
local function op(field)
	local v = call('HGET', P .. 'delSlices', field)
	if not v then
		return {1}
	end
	if #v % 12 ~= 0 then
		return {-5}
	end
	call('HDEL', P .. 'delSlices', field)
	local dead = drop_refs(v)
	log('CLEANUP_DELAYED_SLICES(%s)', string.match(field, '^%d*'))
	return {0, dead}
end
