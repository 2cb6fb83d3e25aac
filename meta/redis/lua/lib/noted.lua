-- SPDX-License-Identifier: Apache-2.0
-- The end of a script that goes by what was seen: of the answer only the number of the question is kept
-- (A[2], under `key`, where `done` was found), the client knows the rest. What it does not know is `d`.
if done and #done == 16 then
	call('SETRANGE', key, '0', A[2])
else
	call('SET', key, A[2], 'PX', string.match(A[1], '%d+$'))
end
return d
