-- SPDX-License-Identifier: Apache-2.0
-- write: lost
local function op(setting, root, trash, a, trash_a)
	if call('EXISTS', P .. 'setting') == 1 or call('EXISTS', P .. 'i1') == 1 then
		return {-17}
	end
	skip_lost()
	call('SET', P .. 'i' .. root, a)
	if trash_a ~= '' then
		call('SET', P .. 'i' .. trash, trash_a)
	end
	call('SET', P .. 'setting', setting)
	return {0}
end
