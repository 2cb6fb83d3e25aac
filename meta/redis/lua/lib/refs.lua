-- SPDX-License-Identifier: Apache-2.0
-- Reference counts of slices (volume-format section 4): sliceRef holds the count minus 1.
-- drop_refs removes one reference for each pair (id, size), and returns the pairs without references.
local function drop_refs(pairs12)
	local dead, count, order = {}, {}, {}
	for i = 1, #pairs12, 12 do
		local p = sub(pairs12, i, i + 11)
		if not count[p] then
			order[#order + 1] = p
		end
		count[p] = (count[p] or 0) + 1
	end
	for _, p in ipairs(order) do
		local field = 'k' .. dec(sub(p, 1, 8)) .. '_' .. fmt('%.0f', (parse('>I4', sub(p, 9))))
		if call('HINCRBY', P .. 'sliceRef', field, -count[p]) < 0 then
			dead[#dead + 1] = p
		end
	end
	return table.concat(dead)
end
-- Returns the (id, size) pairs of the records, without zero records.
local function pairs_of(records)
	local out = {}
	for _, r in ipairs(records) do
		local id8 = sub(r, 5, 12)
		if id8 ~= '\0\0\0\0\0\0\0\0' then
			out[#out + 1] = id8 .. sub(r, 13, 16)
		end
	end
	return table.concat(out)
end
