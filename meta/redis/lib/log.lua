-- SPDX-License-Identifier: Apache-2.0
-- The changelog (volume-format section 14). ARGV[3]: what stands before and behind the text of the
-- operation, with a line end between them; empty when there is no changelog.
local LOG = ARGV[3] ~= ''
local function log(...)
	if not LOG then
		return
	end
	local head, tail = string.match(ARGV[3], '^(.*)\n(.*)$')
	call('RPUSH', P .. 'txnLog', head .. fmt(...) .. tail)
	call('INCR', P .. 'txnLastLog')
end
local function escape(name)
	return (string.gsub(name, '[%z\1-\31\127-\255,%%()"\\]', function(c)
		return fmt('%%%02X', byte(c))
	end))
end
