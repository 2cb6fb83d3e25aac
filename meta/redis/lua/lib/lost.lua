-- SPDX-License-Identifier: Apache-2.0
-- A server restarted after a crash, or a replica after a failover, may lack the last changes, and
-- with them the last numbers allocated to mounts, which still use them. Its replication id has then
-- changed, and as many numbers as can have been lost are skipped. Slice numbers name blocks in
-- caches, which outlive mounts: the gap for them also covers a restored backup.
local function skip_lost()
	-- Before Redis 5, replicas run the scripts themselves, and INFO would differ there. This
	-- call, before the first change, makes the server replicate the effects instead.
	if redis.replicate_commands and not redis.replicate_commands() then
		return
	end
	local info = redis.pcall('INFO', 'replication')
	local id = type(info) == 'string' and string.match(info, 'master_replid:(%w+)')
	local known = id and call('GET', P .. 'zcachefs:history')
	if not id or id == known then
		return
	end
	call('SET', P .. 'zcachefs:history', id)
	local counters = {'nextInode', 16777216, 'nextChunk', 4294967296, 'nextSession', 1024}
	for i = 1, known and #counters or 0, 2 do
		call('INCRBY', P .. string.lower(counters[i]), counters[i + 1])
		log('INCR_COUNTER(%s,%s)', counters[i], counters[i + 1])
	end
	if known then
		call('INCRBY', P .. 'aclMaxId', 1024)
	end
end
