-- SPDX-License-Identifier: Apache-2.0
-- write:
-- n conditions and then commands, each as its number of words and the words. The expected answer
-- ('' for none) follows the words of a condition; when it differs, the result is EBUSY and nothing
-- is changed.
local function op(n, ...)
	local v, at = {...}, 1
	local function words()
		local out = {}
		for i = 1, tonumber(v[at]) do
			out[i] = v[at + i]
		end
		at = at + #out + 1
		return out
	end
	for _ = 1, tonumber(n) do
		local answer = call(unpack(words()))
		if tostring(answer or '') ~= v[at] then
			return {-16}
		end
		at = at + 1
	end
	while at <= #v do
		call(unpack(words()))
	end
	return {0}
end
