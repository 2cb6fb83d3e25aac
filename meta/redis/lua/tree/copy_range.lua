-- SPDX-License-Identifier: Apache-2.0
-- write: attr rules usage length
-- The client has read both files and the lists, and made the records of the copy. EAGAIN: one of
-- them has changed, and the client starts over. lists: {chunk u32, records u32} of the source;
-- comparing the lengths is enough, because without a change of the file only compaction changes a
-- list, and shortens it. out: {chunk u32, bytes u32, records}; refs: {u64 id, u32 size, u32 count}
local function op(src, src_expected, dst, dst_expected, lists, out, refs, end8, now, stats, line)
	if get(src) ~= whole(src_expected) then
		return {EAGAIN}
	end
	local a = get(dst)
	if a ~= whole(dst_expected) then
		return {EAGAIN}
	end
	for i = 1, #lists, 8 do
		local indx, n = parse('>I4I4', sub(lists, i, i + 7))
		if call('LLEN', P .. 'c' .. src .. '_' .. indx) ~= n then
			return {EAGAIN}
		end
	end
	local at = 1
	while at < #out do
		local indx, bytes = parse('>I4I4', sub(out, at, at + 7))
		at = at + 8
		for i = at, at + bytes - 1, 24 do
			call('RPUSH', P .. 'c' .. dst .. '_' .. indx, sub(out, i, i + 23))
		end
		at = at + bytes
	end
	for i = 1, #refs, 16 do
		local size, n = parse('>I4I4', sub(refs, i + 8, i + 15))
		call('HINCRBY', P .. 'sliceRef', 'k' .. dec(sub(refs, i, i + 7)) .. '_' .. int(size), n)
	end
	local old8, parents
	a, old8, parents = put_written(stats, dst, a, end8, now, now)
	log('COPYFILERANGE(%s):%s', line, dec(length8_of(a)))
	return {0, a, old8, parents}
end
