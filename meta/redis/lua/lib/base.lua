-- SPDX-License-Identifier: Apache-2.0
-- Key prefix and short names. Lua numbers are exact up to 2^53 only. Therefore inode numbers and
-- lengths are 8 bytes (names that end in 8) or decimal text, and arithmetic uses 32-bit halves.
local P, call, sub, byte, char = KEYS[1], redis.call, string.sub, string.byte, string.char
local fmt, floor, pack, parse = string.format, math.floor, struct.pack, struct.unpack
-- Converts 8 bytes to decimal text.
local function dec(b)
	local hi, lo = parse('>I4I4', b)
	if hi < 2097152 then
		return fmt('%.0f', hi * 4294967296 + lo)
	end
	local a, out = {parse('>HHHH', b)}, ''
	repeat
		local r = 0
		for i = 1, 4 do
			local v = r * 65536 + a[i]
			a[i] = floor(v / 1000000)
			r = v % 1000000
		end
		out = fmt('%06d', r) .. out
	until a[1] + a[2] + a[3] + a[4] == 0
	return (string.gsub(out, '^0+', ''))
end
