-- SPDX-License-Identifier: Apache-2.0
-- write:
-- Executes commands if n conditions hold. Conditions and commands are a number of words, and the
-- words. A condition is a command with its expected answer behind it, '' for nil. When an answer
-- differs, the result is EBUSY and nothing has changed.
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
