/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Single flight: missing parts of a block are fetched once, in runs of slots, for all readers.
 *
 * The reader that finds slots without page or flight marks them with a flight of its own, takes the
 * memory for it (holding no page while it waits for memory, or readers could starve each other),
 * tries to fetch without waiting on its own thread, and hands the rest to a download worker. From
 * there on it waits like any other reader, with its own deadline.
 *
 * The first thread that notices an expired flight ends it: its slots are free for another attempt,
 * while its pages belong to the stuck worker until that returns. Readers with time left try again;
 * each has its own deadline.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/activity.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/wouldblock.h"
#include "flight-internal.h"

#define WIDEN_PARTS 4
#define SETTLED_MS  20 /* how often a hedge asks whether it is still wanted */

void cfs_flight_unref(struct flight *f)
{
	struct shard *sh = f->shard;
	unsigned i;
	bool last;

	pthread_mutex_lock(&sh->lock);
	last = --f->refs == 0;
	if (last)
		cfs_memory_unuse(sh, f->block);
	pthread_mutex_unlock(&sh->lock);
	if (!last)
		return;
	for (i = 0; i < 2 * f->n; i++)
		cfs_page_unref(f->pages[i]);
	pthread_cond_destroy(&f->changed);
	free(f);
}

void cfs_flight_release(struct awaited *awaited)
{
	while (awaited->n > 0)
		cfs_flight_unref(awaited->v[--awaited->n]);
}

/* With the shard locked. Marks those slots of the run that are not being fetched. */
static struct flight *new_flight(struct cfs_store *s, struct shard *sh, struct block *block,
				 unsigned first, unsigned n, const struct want *want)
{
	struct flight *f = calloc(1, sizeof(*f) + 2 * n * sizeof(f->pages[0]));
	unsigned i;

	if (!f)
		return NULL;
	if (cfs_cond_init(&f->changed) < 0) {
		free(f);
		return NULL;
	}
	f->store = s;
	f->shard = sh;
	f->block = block;
	f->id = block->id;
	f->first = first;
	f->n = n;
	f->off = first * CFS_PAGE_LARGE;
	f->len = CFS_MIN(n * CFS_PAGE_LARGE, block->id.len - f->off);
	/* Its memory may take until want->deadline. */
	f->deadline = CFS_MAX(want->deadline, cfs_deadline_in(s->get_timeout_ms));
	f->prefetch = want->prefetch;
	f->cancelled = want->hedge;
	f->stream = want->stream;
	f->owner = want->owner;
	f->route = *want->route;
	f->source = want->route->from;
	f->state = cfs_route_state(s, want->route->from);
	f->refs = 1;
	block->users++;
	for (i = first; i < first + n; i++) {
		if (!block->slots[i].flight)
			block->slots[i].flight = f;
	}
	return f;
}

/* With the shard locked. */
static void end_flight(struct flight *f, int err)
{
	unsigned i;

	if (f->done)
		return;
	if (err == -CFS_OBJECT_EPART) {
		f->block->indivisible = true;
		err = -EAGAIN;
	}
	/*
	 * A failed prefetch or hedge leaves the error, and its log line, to the next reader of the
	 * block.
	 */
	if (err < 0 && (f->prefetch || f->cancelled))
		err = -EAGAIN;
	for (i = 0; i < f->n; i++) {
		struct slot *slot = &f->block->slots[f->first + i];

		if (slot->flight != f)
			continue;
		slot->flight = NULL;
		if (err == 0 && slot->page) {
			f->pages[f->n + i] = cfs_page_ref(slot->page);
		} else if (err == 0) {
			cfs_memory_insert(f->store, f->shard, f->block, f->first + i,
					  cfs_page_ref(f->pages[i]), true);
			slot->stream = f->stream;
		}
	}
	if (err == 0)
		f->state = READ_MEMORY;
	f->done = true;
	f->err = err;
	pthread_cond_broadcast(&f->changed);
}

void cfs_flight_fail(struct flight *f, int err)
{
	pthread_mutex_lock(&f->shard->lock);
	end_flight(f, err);
	pthread_mutex_unlock(&f->shard->lock);
}

static bool is_awaited(const struct awaited *awaited, const struct flight *f)
{
	unsigned i;

	for (i = 0; i < awaited->n; i++) {
		if (awaited->v[i] == f)
			return true;
	}
	return false;
}

/*
 * Extends a run of missing slots of a quarter of the block or more in both directions: that much
 * costs nearly as much as the whole block.
 */
static void widen(const struct block *block, unsigned *from, unsigned *n)
{
	if ((uint64_t)*n * CFS_PAGE_LARGE * WIDEN_PARTS < block->id.len)
		return;
	while (*from > 0 && !block->slots[*from - 1].page && !block->slots[*from - 1].flight) {
		(*from)--;
		(*n)++;
	}
	while (*from + *n < block->n_slots && !block->slots[*from + *n].page &&
	       !block->slots[*from + *n].flight)
		(*n)++;
}

/*
 * Extends a run up to slots that are being fetched. Slots with pages do not end it: memory may drop
 * them during the fetch, and each hole would cost a request.
 */
static void widen_to_all(const struct block *block, unsigned *from, unsigned *n)
{
	unsigned end = *from + *n;

	while (*from > 0 && !block->slots[*from - 1].flight)
		(*from)--;
	while (end < block->n_slots && !block->slots[end].flight)
		end++;
	*n = end - *from;
}

int cfs_flight_join(struct cfs_store *s, struct shard *sh, struct block *block,
		    const struct want *want, struct awaited *awaited)
{
	cfs_deadline_t now = cfs_now_ms();
	unsigned i;

	*awaited = (struct awaited){0};
	for (i = want->first; i <= want->last && awaited->n < CFS_FLIGHTS_AWAITED; i++) {
		struct slot *slot = &block->slots[i];
		struct flight *f = slot->flight;
		unsigned from = i, n = 1;

		if (slot->page)
			continue;
		if (f && f->deadline <= now) {
			end_flight(f, -EAGAIN);
			awaited->expired = true;
			f = NULL;
		}
		if (f) {
			if (!is_awaited(awaited, f)) {
				f->refs++;
				awaited->v[awaited->n++] = f;
			}
			continue;
		}
		if (s->object->ops->whole || block->indivisible) {
			from = 0;
			n = block->n_slots;
		} else {
			while (from + n <= CFS_MAX(want->last, want->likely_last) &&
			       !slot[n].page && !slot[n].flight)
				n++;
			if (want->whole)
				widen_to_all(block, &from, &n);
			else if (want->wider)
				widen(block, &from, &n);
		}
		f = new_flight(s, sh, block, from, n, want);
		if (!f)
			return awaited->n ? 0 : -ENOMEM;
		awaited->mine[awaited->n] = true;
		awaited->v[awaited->n++] = f;
	}
	return 0;
}

void cfs_flight_log_late(struct cfs_store *s, const struct cfs_block *b, const char *what)
{
	char key[CFS_BLOCK_KEY_MAX];

	cfs_store_block_key(s, b, key);
	cfs_err("block was not read in time, %s: key=%s", what, key);
}

void cfs_flight_land(struct flight *f, int err, bool nowait)
{
	struct cfs_segs whole;
	int r = 0;

	cfs_segs_init(&whole);
	/* Before readers are woken: memory is within its bounds when they continue. */
	if (err == 0)
		cfs_memory_shrink(f->store, f->len);
	pthread_mutex_lock(&f->shard->lock);
	end_flight(f, err);
	if (err == 0 && f->source > 0 && !f->block->put)
		r = cfs_memory_collect_block(f->block, &whole);
	pthread_mutex_unlock(&f->shard->lock);
	if (r > 0)
		cfs_route_offer(f->store, &f->route, &f->id, &whole, f->source, nowait);
	cfs_segs_release(&whole);
}

/* ---- workers ---- */

/*
 * Ends it, unless another thread has, and drops the worker's reference. Its place among the
 * prefetches is free before a reader is woken: that reader soon starts the next prefetch.
 */
static void leave_worker(struct flight *f, int err)
{
	if (f->prefetch) {
		cfs_flight_unlist(f);
		atomic_fetch_sub(&f->store->prefetching, 1);
	}
	cfs_flight_land(f, err, false);
	cfs_flight_unref(f);
}

static bool is_done(struct flight *f)
{
	CFS_LOCK_GUARD(&f->shard->lock);

	return f->done;
}

/* With the worker's reference, and in store->prefetches if it is a prefetch. */
static int enqueue(struct flight *f, struct cfs_workers *w, cfs_deadline_t deadline)
{
	return f->prefetch ? cfs_flight_queue(f, w) : cfs_workers_submit(w, &f->job, deadline);
}

/* Runs it until its state belongs to other workers: hanging disks occupy no download worker. */
static void run(struct cfs_job *job)
{
	struct flight *f = (struct flight *)job;
	struct cfs_workers *mine = cfs_route_workers(f->store, f->state), *next;
	int r = -EAGAIN;

	if (f->prefetch)
		cfs_flight_dequeued(f);
	if (!is_done(f)) {
		cfs_store_await_block(f->store, &f->id);
		r = cfs_flight_run(f, mine);
		cfs_activity_wait_end();
	}
	next = cfs_route_workers(f->store, f->state);
	if (next == mine || r == 0 || is_done(f) || enqueue(f, next, f->deadline) < 0)
		leave_worker(f, r);
}

static int take_all_pages(struct awaited *awaited, cfs_deadline_t deadline)
{
	unsigned i;
	int r = 0;

	for (i = 0; r == 0 && i < awaited->n; i++) {
		if (awaited->mine[i])
			r = cfs_flight_take_pages(awaited->v[i], awaited->v[i]->pages, deadline);
	}
	for (i = 0; r < 0 && i < awaited->n; i++) {
		if (awaited->mine[i])
			cfs_flight_free_pages(awaited->v[i], awaited->v[i]->pages);
	}
	return r;
}

/*
 * Allocates memory for the flights that this thread starts. Readers wait for memory one at a time:
 * two that each hold a part of what the other needs would deadlock. A deadline of 0: -EAGAIN rather
 * than wait, for a hedge, which holds a page already.
 */
static int allocate(struct cfs_store *s, struct awaited *awaited, cfs_deadline_t deadline)
{
	bool busy;
	int r = 0;

	pthread_mutex_lock(&s->alloc_lock);
	busy = s->alloc_busy;
	pthread_mutex_unlock(&s->alloc_lock);
	if (!busy) {
		r = take_all_pages(awaited, 0);
		if (r != -ETIMEDOUT)
			return r;
	}
	if (deadline == 0)
		return -EAGAIN;
	if (!cfs_may_block())
		return -EBUSY;

	r = 0;
	cfs_activity_wait(CFS_WAIT_MEMORY, 0, "behind another reader");
	pthread_mutex_lock(&s->alloc_lock);
	while (s->alloc_busy && r == 0)
		r = cfs_cond_wait(&s->alloc_free, &s->alloc_lock, deadline);
	if (!s->alloc_busy) {
		s->alloc_busy = true;
		r = 0;
	}
	pthread_mutex_unlock(&s->alloc_lock);
	cfs_activity_wait_end();
	if (r < 0)
		return r;

	r = take_all_pages(awaited, deadline);
	pthread_mutex_lock(&s->alloc_lock);
	s->alloc_busy = false;
	pthread_cond_signal(&s->alloc_free);
	pthread_mutex_unlock(&s->alloc_lock);
	return r;
}

int cfs_flight_submit(struct flight *f, cfs_deadline_t deadline)
{
	struct cfs_store *s = f->store;
	struct cfs_workers *w = cfs_route_workers(s, f->state);
	int r;

	pthread_mutex_lock(&f->shard->lock);
	f->refs++;
	pthread_mutex_unlock(&f->shard->lock);
	if (f->prefetch)
		cfs_flight_list(f);
	f->job.run = run;
	/* In the queue it may wait for a hanging disk, too. */
	atomic_store(&f->wait_start_ms, f->state == READ_LOCAL ? cfs_now_ms() : 0);
	r = enqueue(f, w, deadline);
	if (r < 0)
		leave_worker(f, -EAGAIN);
	return r;
}

/* Starts the flights of this thread; each of them ends in every case. */
static int launch(struct cfs_store *s, struct awaited *awaited, cfs_deadline_t deadline)
{
	unsigned i, mine = 0;
	int r, err = 0;

	for (i = 0; i < awaited->n; i++)
		mine += awaited->mine[i];
	if (mine == 0)
		return 0;
	err = allocate(s, awaited, deadline);
	for (i = 0; i < awaited->n; i++) {
		struct flight *f = awaited->v[i];

		if (!awaited->mine[i])
			continue;
		if (err < 0) {
			cfs_flight_fail(f, -EAGAIN);
			continue;
		}
		r = cfs_flight_run(f, NULL);
		if (r != -EAGAIN) {
			cfs_flight_land(f, r, true);
			continue;
		}
		r = cfs_flight_submit(f, deadline);
		if (r < 0) {
			cfs_flight_fail(f, -EAGAIN);
			err = r;
		}
	}
	return err;
}

/*
 * Only the first tier can be the only one with the block. The worker runs concurrently: the tier is
 * loaded before the start of the wait, so that a long wait is never charged to a later tier.
 */
static bool tier_is_late(const struct flight *f, unsigned *ret_tier, bool *ret_in_tier)
{
	const struct cfs_store *s = f->store;
	unsigned tier = atomic_load(&f->source);
	bool in_tier = atomic_load(&f->in_tier);
	uint64_t wait_start_ms = atomic_load(&f->wait_start_ms);
	bool local = cfs_route_state(s, tier) == READ_LOCAL;

	if (!wait_start_ms || (local && f->route.only))
		return false;
	*ret_tier = tier;
	*ret_in_tier = in_tier;
	return cfs_now_ms() - wait_start_ms >= (local ? s->local_timeout_ms : s->tier_timeout_ms);
}

/* Abandons a flight that waits for a cache too long; the next one will not use that cache. */
static int wait_flight(struct flight *f, const struct cfs_miss *m, struct awaited *awaited)
{
	cfs_deadline_t until = cfs_deadline_min(m->deadline, f->deadline), next = until;
	struct cfs_store *s = f->store;
	unsigned tier = 0;
	bool late = false, in_tier = false;
	int r = 0;

	pthread_mutex_lock(&f->shard->lock);
	while (!f->done && r == 0) {
		if ((f->state != READ_LOCAL || f->route.only) && !cfs_may_block()) {
			r = -EBUSY;
			break;
		}
		if (m->settled && m->settled(m->settled_arg)) {
			r = -ECANCELED;
			break;
		}
		if (cfs_is_abandoned()) {
			atomic_store(&f->cancelled, true);
			r = -ECANCELED;
			break;
		}
		next = cfs_abandoned_next(until);
		if (m->settled)
			next = cfs_deadline_min(next, cfs_deadline_in(SETTLED_MS));
		else if (s->n_tiers > 0)
			next = cfs_deadline_min(next, cfs_deadline_in(s->local_timeout_ms / 4));
		r = cfs_cond_wait(&f->changed, &f->shard->lock, next);
		if (r == 0 || f->done)
			continue;
		if (tier_is_late(f, &tier, &in_tier)) {
			late = true;
			f->late = cfs_route_state(s, tier) == READ_LOCAL;
			end_flight(f, -EAGAIN);
		} else if (next < until) {
			r = 0;
		} else if (f->deadline <= until) {
			end_flight(f, -EAGAIN);
			awaited->expired = true;
		}
	}
	if (f->done)
		r = f->err;
	else if (r != -EBUSY && r != -ECANCELED)
		r = -ETIMEDOUT;
	awaited->late |= f->late;
	pthread_mutex_unlock(&f->shard->lock);
	/* While it was queued, the disk of an earlier job delayed it, not its own. */
	if (late && in_tier)
		cfs_route_abandon(s, tier, &f->id);
	else if (late)
		cfs_workers_replace(s->local_workers);
	return r;
}

static int wait_all(struct awaited *awaited, const struct cfs_miss *m)
{
	unsigned i;
	int r = 0;

	for (i = 0; r == 0 && i < awaited->n; i++) {
		cfs_store_await_block(awaited->v[i]->store, &awaited->v[i]->id);
		r = wait_flight(awaited->v[i], m, awaited);
		cfs_activity_wait_end();
		if (r == -EAGAIN)
			r = 0;
	}
	return r;
}

/* Whether there is memory to fetch more than the requested range. */
static bool is_roomy(struct cfs_store *s)
{
	struct cfs_pool_stats st;

	cfs_pool_stats(s->pool, &st);
	return st.used[CFS_USE_READ] + st.used[CFS_USE_WRITE] + st.used[CFS_USE_PEER] +
		       s->block_size <=
	       st.budget / 2;
}

static bool is_large_part(struct cfs_store *s, const struct cfs_block *b, uint32_t len)
{
	return (uint64_t)len * WIDEN_PARTS >= b->len && is_roomy(s);
}

struct want cfs_flight_want(struct cfs_store *s, const struct cfs_miss *m)
{
	const struct cfs_route *route = &m->route;
	uint32_t off = m->off, len = m->len, likely = m->pattern.likely;
	bool local = route->local && route->from == 0;
	bool wider = is_large_part(s, m->block, likely ? likely : len) && !local;

	return (struct want){
		.first = off / CFS_PAGE_LARGE,
		.last = (off + len - 1) / CFS_PAGE_LARGE,
		.wider = wider && !likely,
		.likely_last = wider && likely ? (off + likely - 1) / CFS_PAGE_LARGE : 0,
		.whole = route->place == CFS_PLACE_HERE && !local,
		.hedge = m->settled != NULL,
		.deadline = m->deadline,
		.route = route,
	};
}

/*
 * 1: collected; 0: *awaited replaced by the flights that are needed for it; or negative errno.
 * again: these have ended.
 */
static int collect_or_join(struct cfs_store *s, const struct cfs_miss *m, bool again,
			   struct cfs_segs *ret, struct awaited *awaited)
{
	const struct cfs_block *b = m->block;
	struct want want = cfs_flight_want(s, m);
	struct shard *sh = cfs_memory_shard(s, b);
	struct awaited next = {0};
	struct block *block;
	int r;

	pthread_mutex_lock(&sh->lock);
	block = cfs_memory_use(sh, b);
	r = block ? cfs_memory_collect(block, m->off, m->len, ret) : -ENOMEM;
	if (r == 0 && cfs_deadline_passed(m->deadline))
		r = -ETIMEDOUT;
	/* The next flight of a hedge would fail as the first one. */
	if (r == 0 && again && m->settled)
		r = -EIO;
	if (r == 0)
		r = cfs_flight_join(s, sh, block, &want, &next);
	if (block)
		cfs_memory_unuse(sh, block);
	pthread_mutex_unlock(&sh->lock);
	cfs_flight_release(awaited);
	*awaited = next;
	return r;
}

int cfs_flight_read(struct cfs_store *s, struct cfs_miss *m, struct cfs_segs *ret)
{
	struct awaited awaited = {0};
	bool expired = false, again;
	unsigned i;
	int r;

	for (again = false;; again = true) {
		r = collect_or_join(s, m, again, ret, &awaited);
		if (r == 0)
			r = launch(s, &awaited, m->settled ? 0 : m->deadline);
		else
			break;
		if (r == 0)
			r = wait_all(&awaited, m);
		for (i = 0; i < awaited.n; i++) {
			if (awaited.mine[i] &&
			    cfs_route_state(s, awaited.v[i]->source) != READ_LOCAL)
				m->source = CFS_SOURCE_REMOTE;
		}
		expired |= awaited.expired;
		if (awaited.late)
			m->route.from = cfs_route_first_remote(s);
		if (r < 0)
			break;
	}
	cfs_flight_release(&awaited);
	if (expired)
		cfs_flight_log_late(s, m->block, "its worker thread is abandoned");
	else if (r == -ETIMEDOUT && !m->settled)
		cfs_flight_log_late(s, m->block, "the reader gives up");
	if (r > 0)
		return 0;
	if (m->settled)
		return r;
	return r == -ENOENT || r == -EACCES || r == -ENOMEM || r == -EBUSY ? r : -EIO;
}
