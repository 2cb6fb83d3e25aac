-- SPDX-License-Identifier: Apache-2.0
-- The end of a script of the optimistic path. Stores only the number of the request (A[2]) under
-- `key`, whose value was `done`: the client knows the answer, except for `d`, the directory's
-- record.
if done and #done == 16 then
	call('SETRANGE', key, '0', A[2])
else
	call('SET', key, A[2], 'PX', string.match(A[1], '%d+$'))
end
return d
