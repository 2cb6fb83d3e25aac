-- SPDX-License-Identifier: Apache-2.0
-- write: attr rules usage
-- name: of the hour directory, '' for the trash itself; a: the record for a new one. Answer: the
-- inode, and 1 if it was created.
local function op(trash, trash8, root8, base_hi, base_lo, name, a, stats)
	if name ~= '' then
		local entry = call('HGET', P .. 'd' .. trash, name)
		if entry then
			return {0, sub(entry, 2, 9)}
		end
	end
	if call('EXISTS', P .. 'i' .. trash) == 0 then
		put(trash, set_parent(a, root8))
	end
	if name == '' then
		return {0, trash8}
	end
	-- The directory counts in the volume's usage, but not in the link count and times of the
	-- trash.
	local n = call('INCR', P .. 'nextTrash')
	local ino8 = pack('>I4I4', tonumber(base_hi), tonumber(base_lo) + n)
	local ino = dec(ino8)
	put(ino, set_parent(a, trash8))
	call('HSET', P .. 'd' .. trash, name, char(DIR) .. ino8)
	make_stats(stats, ino)
	use_volume(1, 1)
	log('CREATE(%s,%n,0,0,2,365,0,,linux,false):%s', trash, name, ino)
	return {0, ino8, 1}
end
