/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefetches: flights without a waiting reader. They never wait for memory or for a place in a
 * queue, and end with their owner.
 */
#include <errno.h>

#include "flight-internal.h"

void cfs_flight_list(struct flight *f)
{
	pthread_mutex_lock(&f->store->prefetch_lock);
	TAILQ_INSERT_TAIL(&f->store->prefetches, f, link);
	pthread_mutex_unlock(&f->store->prefetch_lock);
}

void cfs_flight_unlist(struct flight *f)
{
	pthread_mutex_lock(&f->store->prefetch_lock);
	TAILQ_REMOVE(&f->store->prefetches, f, link);
	pthread_mutex_unlock(&f->store->prefetch_lock);
}

int cfs_flight_queue(struct flight *f, struct cfs_workers *w)
{
	int r;

	/* Under the lock: a cancelling thread must know where it is. */
	pthread_mutex_lock(&f->store->prefetch_lock);
	r = cfs_workers_try_submit(w, &f->job);
	if (r == 0)
		f->workers = w;
	pthread_mutex_unlock(&f->store->prefetch_lock);
	return r;
}

void cfs_flight_dequeued(struct flight *f)
{
	pthread_mutex_lock(&f->store->prefetch_lock);
	f->workers = NULL;
	pthread_mutex_unlock(&f->store->prefetch_lock);
}

static bool launch(struct flight *f)
{
	struct cfs_store *s = f->store;

	if (atomic_fetch_add(&s->prefetching, 1) >= s->max_prefetches ||
	    cfs_flight_take_pages(f, f->pages, 0) < 0)
		atomic_fetch_sub(&s->prefetching, 1);
	else if (cfs_flight_submit(f, 0) == 0)
		return true;
	cfs_flight_fail(f, -EAGAIN);
	return false;
}

/* The flights that this prefetch needs; those that are mine are to be launched. */
static void join_ahead(struct cfs_store *s, const struct cfs_block *b, struct want want,
		       struct awaited *awaited)
{
	struct shard *sh = cfs_memory_shard(s, b);
	struct block *block;

	want.prefetch = true;
	*awaited = (struct awaited){0};
	pthread_mutex_lock(&sh->lock);
	block = cfs_memory_use(sh, b);
	if (block && !block->put)
		cfs_flight_join(s, sh, block, &want, awaited);
	if (block)
		cfs_memory_unuse(sh, block);
	pthread_mutex_unlock(&sh->lock);
}

/* False: one could not be launched. */
static bool launch_mine(struct cfs_store *s, const struct cfs_block *b, struct awaited *awaited)
{
	bool all = true;
	unsigned i;

	for (i = 0; i < awaited->n; i++) {
		if (!awaited->mine[i])
			continue;
		if (launch(awaited->v[i])) {
			CFS_STAT_ADD(s, prefetches, 1);
		} else {
			CFS_STAT_ADD(s, prefetch_drops, 1);
			all = false;
		}
	}
	cfs_flight_release(awaited);
	if (awaited->expired)
		cfs_flight_log_late(s, b, "its worker thread is abandoned");
	return all;
}

bool cfs_flight_start(struct cfs_store *s, const struct cfs_miss *m, uint64_t owner)
{
	struct want want = cfs_flight_want(s, m);
	struct awaited awaited;

	want.owner = owner;
	join_ahead(s, m->block, want, &awaited);
	return awaited.n && launch_mine(s, m->block, &awaited);
}

bool cfs_flight_prefetch(struct cfs_store *s, const struct cfs_block *b, uint32_t off, uint32_t len,
			 uint64_t owner, const struct cfs_route *route)
{
	bool whole = route->place == CFS_PLACE_HERE;
	struct want want = {.stream = !whole, .owner = owner, .route = route};
	struct awaited awaited;

	if (atomic_load(&s->prefetching) >= s->max_prefetches) {
		CFS_STAT_ADD(s, prefetch_drops, 1);
		return false;
	}
	if (whole && !route->local) {
		off = 0;
		len = b->len;
	}
	want.first = off / CFS_PAGE_LARGE;
	want.last = (off + len - 1) / CFS_PAGE_LARGE;
	join_ahead(s, b, want, &awaited);
	return launch_mine(s, b, &awaited);
}

static void fill_one(struct flight *f)
{
	if (cfs_flight_take_pages(f, f->pages, 0) < 0) {
		cfs_flight_fail(f, -EAGAIN);
		return;
	}
	cfs_flight_list(f);
	cfs_flight_land(f, cfs_flight_run(f, f->store->downloads), false);
	cfs_flight_unlist(f);
}

void cfs_flight_fill(struct cfs_store *s, const struct cfs_block *b, uint64_t owner)
{
	struct cfs_route route = cfs_route_find(s, b);
	const struct want want = {
		.last = (b->len - 1) / CFS_PAGE_LARGE, .owner = owner, .route = &route};
	struct awaited awaited;
	unsigned i;

	if (route.local)
		return;
	cfs_route_place(s, b, &route);
	route.from = cfs_route_first_remote(s);
	join_ahead(s, b, want, &awaited);
	for (i = 0; i < awaited.n; i++) {
		if (awaited.mine[i])
			fill_one(awaited.v[i]);
	}
	cfs_flight_release(&awaited);
}

/* A reader that waits for one of them fetches it itself. */
void cfs_flight_cancel(struct cfs_store *s, uint64_t owner)
{
	struct flight_list dropped = TAILQ_HEAD_INITIALIZER(dropped);
	struct flight *f, *next;

	pthread_mutex_lock(&s->prefetch_lock);
	for (f = TAILQ_FIRST(&s->prefetches); f; f = next) {
		next = TAILQ_NEXT(f, link);
		if (f->owner != owner)
			continue;
		if (f->workers && cfs_workers_cancel(f->workers, &f->job)) {
			TAILQ_REMOVE(&s->prefetches, f, link);
			TAILQ_INSERT_TAIL(&dropped, f, link);
		} else {
			atomic_store(&f->cancelled, true);
		}
	}
	pthread_mutex_unlock(&s->prefetch_lock);
	while ((f = TAILQ_FIRST(&dropped)) != NULL) {
		TAILQ_REMOVE(&dropped, f, link);
		cfs_flight_fail(f, -EAGAIN);
		atomic_fetch_sub(&s->prefetching, 1);
		CFS_STAT_ADD(s, prefetch_cancels, 1);
		cfs_flight_unref(f);
	}
}
