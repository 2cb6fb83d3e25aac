-- SPDX-License-Identifier: Apache-2.0
-- A server restarted after a crash, or a replica promoted by a failover, may lack the last changes.
-- Mounts still use the numbers that those changes have allocated. The replication id differs then,
-- and each counter skips more numbers than can have been lost. Slice numbers name cached blocks,
-- which outlive mounts: their gap also covers a restored backup.
local function skip_lost()
	-- Before Redis 5, replicas execute the scripts, and INFO differs there. This call, before the
	-- first change, makes the server replicate the changes instead.
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
