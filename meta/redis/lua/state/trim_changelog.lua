-- SPDX-License-Identifier: Apache-2.0
-- write:
-- Drops up to `page` lines older than `before`, and all but the last `max` lines (0: no limit).
-- Answer: 1 when there may be more old lines.
local function op(before, max, page)
	local key, old = P .. 'txnLog', 0
	for _, line in ipairs(call('LRANGE', key, 0, tonumber(page) - 1)) do
		if tonumber(string.match(line, '^%d+') or 0) >= tonumber(before) then
			break
		end
		old = old + 1
	end
	local more = old == tonumber(page)
	local n = call('LLEN', key)
	if tonumber(max) > 0 then
		old = math.max(old, n - tonumber(max))
	end
	if old > 0 then
		call('LTRIM', key, old, -1)
	end
	return {more and 1 or 0}
end
