-- SPDX-License-Identifier: Apache-2.0
-- The changelog (volume-format section 14). ARGV[3]: the text before and the text after that of the
-- operation, separated by a newline; empty without changelog.
local LOG = ARGV[3] ~= ''
local function escape(name)
	return (string.gsub(name, '[%z\1-\31\127-\255,%%()"\\]', function(c)
		return fmt('%%%02X', byte(c))
	end))
end
-- Like string.format, with %n for a name.
local function log(form, ...)
	if not LOG then
		return
	end
	local head, tail = string.match(ARGV[3], '^(.*)\n(.*)$')
	local v, n = {...}, 0
	form = string.gsub(form, '%%[%d.]*(%a)', function(kind)
		n = n + 1
		if kind == 'n' then
			v[n] = escape(v[n])
			return '%s'
		end
	end)
	call('RPUSH', P .. 'txnLog', head .. fmt(form, unpack(v)) .. tail)
	call('INCR', P .. 'txnLastLog')
end
