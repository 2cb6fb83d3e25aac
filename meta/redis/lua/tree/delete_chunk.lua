-- SPDX-License-Identifier: Apache-2.0
-- write: refs
-- Deletes the first existing chunk list in [first, stop). {1}: there is none.
local function op(ino, first, stop)
	if call('EXISTS', P .. 'i' .. ino) == 1 then
		return {-16}
	end
	for indx = tonumber(first), tonumber(stop) - 1 do
		local key = P .. 'c' .. ino .. '_' .. fmt('%.0f', indx)
		local records = call('LRANGE', key, 0, -1)
		if #records > 0 then
			for _, r in ipairs(records) do
				if #r ~= 24 then
					return {-5, indx}
				end
			end
			call('DEL', key)
			local dead = drop_refs(pairs_of(records))
			log('DELCHUNK(%s,%.0f)', ino, indx)
			return {0, indx + 1, dead}
		end
	end
	return {1}
end
