-- SPDX-License-Identifier: Apache-2.0
-- read:
-- Lists a directory of at most `small` entries. attrs: '' for names only. Answer: errno; 1 for a
-- larger directory, which is not listed; names and entries; attributes in the order of the names.
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
