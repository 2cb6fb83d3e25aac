-- SPDX-License-Identifier: Apache-2.0
-- A server that comes back after a crash, or a replica that takes over, may lack the last changes, and
-- with them the last numbers that it gave to mounts, which go on using them. What it has goes by another
-- replication id from then on: as many numbers as can be lost are left out. Those of slices are what
-- caches know blocks by, for longer than a mount lives: they are left out for a restored backup, too.
local function skip_lost()
	-- Until Redis 5 replicas run scripts themselves, where INFO would say something else, unless they
	-- are told before the first change that they need not.
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
