-- SPDX-License-Identifier: Apache-2.0
-- A script that is sent again because its answer was lost must not do its work again: the answer is
-- kept for longer than anybody waits for it, under the key of the thread that asked (ARGV[1]) and
-- the number of its question (ARGV[2]).
local kept = call('GET', P .. ARGV[1])
if kept and sub(kept, 1, 16) == ARGV[2] then
	return cmsgpack.unpack(sub(kept, 17))
end
local answer = op(unpack(ARGV, 4))
if answer[1] >= 0 then
	call('SET', P .. ARGV[1], ARGV[2] .. cmsgpack.pack(answer), 'PX', 120000)
end
return answer
