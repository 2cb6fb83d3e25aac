-- SPDX-License-Identifier: Apache-2.0
-- read:
-- A directory of at most `small` entries with their attributes ('': none wanted). Answer: errno; 1
-- when it is larger, and nothing else; names and entries; attributes in that order.
local function op(dir, small, attrs)
	local key = P .. 'd' .. dir
	local n = call('HLEN', key)
	if n == 0 then
		local a = call('GET', P .. 'i' .. dir)
		if not a then
			return {-2}
		end
		return {floor(byte(a, 2) / 16) == 2 and 0 or -20, 0, {}, {}}
	end
	if n > tonumber(small) then
		return {0, 1, {}, {}}
	end
	local all, keys = call('HGETALL', key), {}
	if attrs == '' then
		return {0, 0, all, {}}
	end
	for i = 2, #all, 2 do
		keys[#keys + 1] = P .. 'i' .. dec(sub(all[i], 2, 9))
	end
	return {0, 0, all, call('MGET', unpack(keys))}
end
