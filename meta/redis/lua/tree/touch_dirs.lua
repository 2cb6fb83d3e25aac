-- SPDX-License-Identifier: Apache-2.0
-- write: attr
-- Returns seconds and microseconds.
local function at(time)
	local s, ns = parse('>i8I4', time)
	return s, floor(ns / 1000)
end
local function is_later(s, us, than_s, than_us)
	return s > than_s or (s == than_s and us > than_us)
end
-- True when the time may be stored: no other client has changed the directory since.
local function may_have(a, s, us, until_s, until_us)
	local c_s, c_us = at(sub(a, 36, 47))
	if is_later(c_s, c_us, until_s, until_us) then
		return false
	end
	local m_s, m_us = at(sub(a, 24, 35))
	return not is_later(m_s, m_us, s, us) or is_later(m_s, m_us, until_s, until_us)
end
-- Three arguments for each directory: inode, time of the last change of its names, ctime up to
-- which the record may be overwritten
local function op(...)
	local v = {...}
	for i = 1, #v, 3 do
		local a = get(v[i])
		local s, us = at(v[i + 1])
		local until_s, until_us = at(v[i + 2])
		if a and may_have(a, s, us, until_s, until_us) then
			local c_s, c_us = at(sub(a, 36, 47))
			a = set_mtime_ctime(a, v[i + 1], is_later(c_s, c_us, s, us) and sub(a, 36, 47) or v[i + 1])
			put(v[i], a)
			log_setattr(v[i], '96', a)
		end
	end
	return {0}
end
