-- SPDX-License-Identifier: Apache-2.0
-- The end of a script of the optimistic path. Only the number of the request is stored (A[2], under
-- `key`, where `done` was found), because the client knows the rest of the answer, except for `d`.
if done and #done == 16 then
	call('SETRANGE', key, '0', A[2])
else
	call('SET', key, A[2], 'PX', string.match(A[1], '%d+$'))
end
return d
