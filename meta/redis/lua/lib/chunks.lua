-- SPDX-License-Identifier: Apache-2.0
-- Zero records (volume-format section 6). Up to MAX_LOOP whole chunks are looked up one by one. For
-- a larger file the answer is {EBUSY, record}, and the client calls again with the record and the
-- numbers (u32 each) of the chunks that exist.
local CHUNK, MAX_LOOP = 67108864, 16384
-- The chunk, and the position in it
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
-- A file whose data may be changed, or nil and the errno.
local function get_file(ino, open)
	local a = get(ino)
	if not a then
		return nil, ENOENT
	end
	local kind = type_of(a)
	if kind ~= FILE then
		return nil, kind == DIR and EISDIR or EINVAL
	end
	-- A client that had it open when it was moved to the trash may continue.
	if (is_trash(parent8_of(a)) and open ~= '1') or has(byte(a, 1), 3) ~= 0 then
		return nil, EPERM
	end
	return a
end
