-- SPDX-License-Identifier: Apache-2.0
-- write 1: attr rules
local function op(a, ino, atime)
	if not a then
		return {ENOENT}
	end
	put(ino, sub(a, 1, 11) .. atime .. sub(a, 24))
	log('ACCESS(%s)', ino)
	return {0}
end
