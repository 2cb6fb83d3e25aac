/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefetches whole blocks after reads of parts. They have their own queue, so that they never delay
 * a waiting reader. It is bounded: a dropped block is requested again by its next reader.
 */
#include <stdlib.h>

#include "base/cleanup.h"
#include "store-internal.h"

#define QUEUE_LIMIT 64

struct block_prefetch {
	struct cfs_job job; /* first */
	struct cfs_store *store;
	struct cfs_block id;
	uint64_t owner;
	TAILQ_ENTRY(block_prefetch) link; /* in store->block_prefetches until it runs */
};

static void run(struct cfs_job *job)
{
	struct block_prefetch *p = (struct block_prefetch *)job;
	struct cfs_store *s = p->store;

	pthread_mutex_lock(&s->prefetch_lock);
	TAILQ_REMOVE(&s->block_prefetches, p, link);
	pthread_mutex_unlock(&s->prefetch_lock);
	cfs_flight_fill(s, &p->id, p->owner);
	free(p);
}

/* With the lock. */
static bool is_queued(const struct cfs_store *s, const struct cfs_block *b)
{
	const struct block_prefetch *p;

	TAILQ_FOREACH(p, &s->block_prefetches, link)
	{
		if (p->id.slice == b->slice && p->id.index == b->index)
			return true;
	}
	return false;
}

bool cfs_store_prefetch_block(struct cfs_store *s, const struct cfs_block *b, uint64_t owner)
{
	struct block_prefetch *p;
	bool queued;

	if (!s->prefetchers || b->len == 0 || b->len > s->block_size)
		return false;
	p = calloc(1, sizeof(*p));
	if (!p)
		return false;
	p->job.run = run;
	p->store = s;
	p->id = *b;
	p->owner = owner;
	pthread_mutex_lock(&s->prefetch_lock);
	queued = is_queued(s, b);
	if (!queued && cfs_workers_try_submit(s->prefetchers, &p->job) == 0) {
		TAILQ_INSERT_TAIL(&s->block_prefetches, p, link);
		p = NULL;
	}
	pthread_mutex_unlock(&s->prefetch_lock);
	if (!p)
		CFS_STAT_ADD(s, block_prefetches, 1);
	else if (!queued)
		CFS_STAT_ADD(s, block_prefetch_drops, 1);
	queued = queued || !p;
	free(p);
	return queued;
}

/* Drops the queued prefetches of *owner, or all. Returns how many there were. */
static unsigned drop(struct cfs_store *s, const uint64_t *owner)
{
	struct block_prefetch *p, *next;
	unsigned n = 0;
	CFS_LOCK_GUARD(&s->prefetch_lock);

	for (p = TAILQ_FIRST(&s->block_prefetches); p; p = next) {
		next = TAILQ_NEXT(p, link);
		if ((owner && p->owner != *owner) || !cfs_workers_cancel(s->prefetchers, &p->job))
			continue;
		TAILQ_REMOVE(&s->block_prefetches, p, link);
		free(p);
		n++;
	}
	return n;
}

void cfs_store_cancel(struct cfs_store *s, uint64_t owner)
{
	cfs_flight_cancel(s, owner);
	CFS_STAT_ADD(s, prefetch_cancels, drop(s, &owner));
}

int cfs_prefetch_init(struct cfs_store *s, unsigned max)
{
	return max ? cfs_workers_create("cfs-prefetch", max, QUEUE_LIMIT, &s->prefetchers) : 0;
}

void cfs_prefetch_fini(struct cfs_store *s)
{
	if (!s->prefetchers)
		return;
	drop(s, NULL);
	cfs_workers_destroy(s->prefetchers);
	s->prefetchers = NULL;
}
