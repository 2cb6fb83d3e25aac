-- SPDX-License-Identifier: Apache-2.0
-- read:
-- Looks several names up: entries, and their attributes on request.
local function op(dir, attrs, ...)
	local entries, keys, nodes = call('HMGET', P .. 'd' .. dir, ...), {}, {}
	if attrs == '' then
		return {0, entries, {}}
	end
	for i = 1, #entries do
		keys[i] = P .. 'i' .. (entries[i] and dec(sub(entries[i], 2, 9)) or '0')
	end
	if #keys > 0 then
		nodes = call('MGET', unpack(keys))
	end
	return {0, entries, nodes}
end
