-- SPDX-License-Identifier: Apache-2.0
-- write:
-- have, want: numbers of references. A slice without a field in sliceRef has one.
local function op(id, size, have, want)
	local field = 'k' .. id .. '_' .. size
	local now = tonumber(call('HGET', P .. 'sliceRef', field) or 0) + 1
	if now ~= math.max(tonumber(have), 0) and not (now == 1 and tonumber(have) < 0) then
		return {-11}
	end
	if want == '1' then
		call('HDEL', P .. 'sliceRef', field)
	else
		call('HSET', P .. 'sliceRef', field, tonumber(want) - 1)
	end
	return {0}
end
