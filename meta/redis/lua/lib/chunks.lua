-- SPDX-License-Identifier: Apache-2.0
-- Zero records (volume-format section 6). The lists of up to MAX_LOOP whole chunks are looked up one
-- by one. For more chunks the answer is {EBUSY, record}: the client runs the script again, with the
-- record (expected) and the numbers of the existing chunks, u32 each (found).
local CHUNK, MAX_LOOP = 67108864, 16384
-- Returns the number of the chunk, and the position in it.
local function place(length8)
	local hi, lo = halves(length8)
	return hi * 64 + floor(lo / CHUNK), lo % CHUNK
end
local function zero(ino, indx, pos, len, push)
	if len > 0 then
		call(push, P .. 'c' .. ino .. '_' .. indx, pack('>I4I4I4I4I4I4', pos, 0, 0, 0, 0, len))
	end
end
local function zero_whole(ino, first, stop, found)
	if found then
		for i = 1, #found, 4 do
			local indx = parse('>I4', sub(found, i, i + 3))
			if indx >= first and indx < stop then
				zero(ino, indx, 0, CHUNK, 'RPUSHX')
			end
		end
		return
	end
	for indx = first, stop - 1 do
		zero(ino, indx, 0, CHUNK, 'RPUSHX')
	end
end
-- Returns the record of a file whose data may be changed, or nil and the errno.
local function get_file(ino, open)
	local a = get(ino)
	if not a then
		return nil, ENOENT
	end
	local kind = type_of(a)
	if kind ~= FILE then
		return nil, kind == DIR and EISDIR or EINVAL
	end
	-- A file in the trash stays writable on clients that have it open.
	if (is_trash(parent8_of(a)) and open ~= '1') or has(byte(a, 1), 3) ~= 0 then
		return nil, EPERM
	end
	return a
end
