/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order in which blocks leave.
 *
 * S3-FIFO (Yang et al., SOSP 2023): a new block enters a small queue of a tenth of the bytes. A
 * block that was not read when it reaches the end of this queue is evicted. Its hash, the ghost, is
 * remembered for a while. A block that was read, or returns while its ghost is known, enters the
 * main queue, in which each read saves it from eviction once. So a scan of the volume passes
 * through the small queue, and leaves the main one as it is.
 *
 * Reads within one second count once: a block is read in many pieces by one sequential reader.
 */
#include "base/clock.h"
#include "disk-internal.h"

#define SMALL_PARTS 10
/* After so many reinsertions the next entry is evicted, whether it was read or not. */
#define REINSERTS_MAX 1024
#define TRIES_MAX     64 /* to hit an entry that is in use, at random */

static void link_newest(struct index *ix, enum queue_name name, uint32_t h)
{
	struct index_queue *q = &ix->queues[name];
	struct index_entry *e = &ix->entries[h];

	e->queue = name & 3;
	e->newer = CFS_NIL;
	e->older = q->newest;
	if (q->newest != CFS_NIL)
		ix->entries[q->newest].newer = h;
	else
		q->oldest = h;
	q->newest = h;
	q->n++;
	q->bytes += e->last + 1;
}

static void link_oldest(struct index *ix, enum queue_name name, uint32_t h)
{
	struct index_queue *q = &ix->queues[name];
	struct index_entry *e = &ix->entries[h];

	e->queue = name & 3;
	e->older = CFS_NIL;
	e->newer = q->oldest;
	if (q->oldest != CFS_NIL)
		ix->entries[q->oldest].older = h;
	else
		q->newest = h;
	q->oldest = h;
	q->n++;
	q->bytes += e->last + 1;
}

void cfs_disk_queue_leave(struct index *ix, uint32_t h)
{
	struct index_entry *e = &ix->entries[h];
	struct index_queue *q = &ix->queues[e->queue];

	if (e->newer != CFS_NIL)
		ix->entries[e->newer].older = e->older;
	else
		q->newest = e->older;
	if (e->older != CFS_NIL)
		ix->entries[e->older].newer = e->newer;
	else
		q->oldest = e->newer;
	q->n--;
	q->bytes -= e->last + 1;
	e->queue = CFS_QUEUE_NONE;
}

/* True once. */
static bool was_ghost(struct index *ix, uint32_t hash)
{
	uint32_t *ghost = &ix->ghosts[hash & ix->ghost_mask];

	if (*ghost != hash)
		return false;
	*ghost = 0;
	return true;
}

/* Blocks found by the scan go to the far end: they are older than blocks that came meanwhile. */
void cfs_disk_queue_enter(struct index *ix, uint32_t h, bool found)
{
	if (found)
		link_oldest(ix, CFS_QUEUE_MAIN, h);
	else if (ix->eviction != CFS_EVICT_S3FIFO ||
		 was_ghost(ix, cfs_disk_queue_hash(&ix->entries[h])))
		link_newest(ix, CFS_QUEUE_MAIN, h);
	else
		link_newest(ix, CFS_QUEUE_SMALL, h);
}

void cfs_disk_queue_hit(struct index *ix, uint32_t h, uint32_t now_s)
{
	struct index_entry *e = &ix->entries[h];

	e->found = 0;
	if (e->atime != now_s && e->freq < CFS_FREQ_MAX)
		e->freq++;
	e->atime = now_s;
	if (ix->eviction == CFS_EVICT_LRU) {
		cfs_disk_queue_leave(ix, h);
		link_newest(ix, CFS_QUEUE_MAIN, h);
	}
}

static void reinsert(struct index *ix, uint32_t h, unsigned freq)
{
	cfs_disk_queue_leave(ix, h);
	ix->entries[h].freq = freq & CFS_FREQ_MAX;
	link_newest(ix, CFS_QUEUE_MAIN, h);
}

static uint32_t s3fifo_victim(struct index *ix)
{
	struct index_queue *small = &ix->queues[CFS_QUEUE_SMALL],
			   *main = &ix->queues[CFS_QUEUE_MAIN];
	unsigned reinserts;
	uint32_t h, hash;

	for (reinserts = 0;; reinserts++) {
		if (small->n > 0 && (small->bytes >= ix->limit / SMALL_PARTS || main->n == 0)) {
			h = small->oldest;
			if (ix->entries[h].freq > 0 && reinserts < REINSERTS_MAX) {
				reinsert(ix, h, 0);
				continue;
			}
			hash = cfs_disk_queue_hash(&ix->entries[h]);
			ix->ghosts[hash & ix->ghost_mask] = hash;
			return h;
		}
		h = main->oldest;
		if (h == CFS_NIL || ix->entries[h].freq == 0 || reinserts >= REINSERTS_MAX)
			return h;
		reinsert(ix, h, ix->entries[h].freq - 1u);
	}
}

static uint32_t random_entry(struct index *ix)
{
	unsigned tries;
	uint32_t h;

	for (tries = 0; tries < TRIES_MAX; tries++) {
		h = (uint32_t)(cfs_random_u64() % ix->top);
		if (ix->entries[h].queue != CFS_QUEUE_NONE)
			return h;
	}
	return ix->queues[CFS_QUEUE_MAIN].oldest;
}

static uint32_t random_victim(struct index *ix)
{
	uint32_t a, b;

	if (ix->n == 0)
		return CFS_NIL;
	a = random_entry(ix);
	b = random_entry(ix);
	return ix->entries[a].atime <= ix->entries[b].atime ? a : b;
}

uint32_t cfs_disk_queue_victim(struct index *ix)
{
	switch (ix->eviction) {
	case CFS_EVICT_S3FIFO:
		return s3fifo_victim(ix);
	case CFS_EVICT_2RANDOM:
		return random_victim(ix);
	case CFS_EVICT_LRU:
		return ix->queues[CFS_QUEUE_MAIN].oldest;
	case CFS_EVICT_NONE:
		break;
	}
	return CFS_NIL;
}
