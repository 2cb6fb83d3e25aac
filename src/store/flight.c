/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Single flight: what is missing of a block is fetched once, in runs of slots, for all who want it.
 *
 * The reader that finds slots without page or flight marks them with a flight of its own, takes the
 * memory for it (holding no page while it waits for memory, or readers could starve each other),
 * tries to fetch without waiting on its own thread, and hands the rest to a download worker. From
 * there on it waits like any other reader, with its own deadline.
 *
 * A flight that is not done at its deadline is failed by whoever notices: its slots are free for
 * another try, while its pages belong to the stuck worker until that returns.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/activity.h"
#include "base/log.h"
#include "base/longwait.h"
#include "base/unwanted.h"
#include "base/workers.h"
#include "store-internal.h"

#define HELD_MAX    8
#define WIDEN_PARTS 4

struct flight {
	struct cfs_job job; /* first */
	struct cfs_store *store;
	struct shard *shard;
	struct block *block; /* a user of it */
	struct cfs_block id;
	unsigned first, n; /* slots */
	uint32_t off, len; /* the same in bytes */
	cfs_deadline_t deadline;
	struct cfs_route route;
	bool prefetch;
	bool stream;		     /* a prefetch of what a stream will come to */
	uint64_t owner;		     /* of a prefetch */
	TAILQ_ENTRY(flight) link;    /* a prefetch that is in store->ahead */
	struct cfs_workers *workers; /* under prefetch_lock: where it is queued; NULL: it runs */
	_Atomic bool cancelled;	     /* its owner does not want it any more */
	struct hedge *hedge;	     /* runs; its worker's only */
	_Atomic unsigned source;     /* number of the tier that had it; n_tiers: the object store */
	_Atomic uint64_t asked_ms;   /* since when it waits for a tier, or 0 */
	_Atomic bool begun;	     /* in the tier, not in the queue before it */

	/* Under the shard's lock. */
	pthread_cond_t changed;
	unsigned refs; /* those who wait, and the worker */
	bool done;
	bool late; /* a tier of this machine did not answer in time */
	int err;   /* -EAGAIN: not tried, or not for you to worry about: try yourself */

	struct cfs_page *pages[];
};

/* Asks the object store beside a tier, which goes on writing to the flight's pages meanwhile. */
struct hedge {
	struct cfs_hedge base; /* first */
	struct flight *f;
	bool (*settled)(void *arg);
	void *settled_arg;
	struct cfs_page *pages[CFS_STORE_PAGES_MAX];
};

/* The flights that one reader waits for. Holding them pins their pages. */
struct held {
	struct flight *v[HELD_MAX];
	bool mine[HELD_MAX]; /* to be launched by us */
	unsigned n;
	bool expired; /* we failed one at its deadline */
	bool late;    /* one of them was left behind in a tier of this machine */
};

/* What a reader would make of a miss. */
struct want {
	unsigned first, last; /* slots */
	bool wider;	      /* a large part of a block means all of it */
	bool whole;	      /* so does any part */
	cfs_deadline_t deadline;
	const struct cfs_route *route;
};

static void put_flight(struct flight *f)
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
	for (i = 0; i < f->n; i++)
		cfs_page_unref(f->pages[i]);
	pthread_cond_destroy(&f->changed);
	free(f);
}

static void release(struct held *held)
{
	while (held->n > 0)
		put_flight(held->v[--held->n]);
}

/* With the shard locked. Marks those slots of the run that are free. */
static struct flight *new_flight(struct cfs_store *s, struct shard *sh, struct block *block,
				 unsigned first, unsigned n, const struct want *want)
{
	struct flight *f = calloc(1, sizeof(*f) + n * sizeof(f->pages[0]));
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
	/* Until `deadline` it may be waiting for memory. */
	f->deadline = CFS_MAX(want->deadline, cfs_deadline_in(s->get_timeout_ms));
	f->route = *want->route;
	f->source = want->route->from;
	f->refs = 1;
	block->users++;
	for (i = first; i < first + n; i++) {
		if (!block->slots[i].page && !block->slots[i].flight)
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
	for (i = 0; i < f->n; i++) {
		struct slot *slot = &f->block->slots[f->first + i];

		if (slot->flight != f)
			continue;
		slot->flight = NULL;
		if (err == 0) {
			cfs_memory_insert(f->store, f->shard, f->block, f->first + i,
					  cfs_page_ref(f->pages[i]), true);
			slot->stream = f->stream;
		}
	}
	f->done = true;
	f->err = err;
	pthread_cond_broadcast(&f->changed);
}

static void fail(struct flight *f, int err)
{
	pthread_mutex_lock(&f->shard->lock);
	end_flight(f, err);
	pthread_mutex_unlock(&f->shard->lock);
}

static bool holds(const struct held *held, const struct flight *f)
{
	unsigned i;

	for (i = 0; i < held->n; i++) {
		if (held->v[i] == f)
			return true;
	}
	return false;
}

/*
 * Makes a run of missing slots as long as it can be when it is a quarter of the block or more: that
 * much costs nearly as much as the whole.
 */
static void widen(const struct block *block, bool whole, unsigned *from, unsigned *n)
{
	if (!whole && (uint64_t)*n * CFS_PAGE_LARGE * WIDEN_PARTS < block->id.len)
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
 * With the shard locked: makes *held the flights that will deliver what is missing of the slots,
 * starting one for each run that nobody fetches. The first HELD_MAX of them, should there be more.
 */
static int join(struct cfs_store *s, struct shard *sh, struct block *block, const struct want *want,
		struct held *held)
{
	cfs_deadline_t now = cfs_now_ms();
	unsigned i;

	*held = (struct held){0};
	for (i = want->first; i <= want->last && held->n < HELD_MAX; i++) {
		struct slot *slot = &block->slots[i];
		struct flight *f = slot->flight;
		unsigned from = i, n = 1;

		if (slot->page)
			continue;
		if (f && f->deadline <= now) {
			end_flight(f, -EIO);
			held->expired = true;
			f = NULL;
		}
		if (f) {
			if (!holds(held, f)) {
				f->refs++;
				held->v[held->n++] = f;
			}
			continue;
		}
		if (s->object->ops->whole) {
			from = 0;
			n = block->n_slots;
		} else {
			while (from + n <= want->last && !slot[n].page && !slot[n].flight)
				n++;
			if (want->wider || want->whole)
				widen(block, want->whole, &from, &n);
		}
		f = new_flight(s, sh, block, from, n, want);
		if (!f)
			return held->n ? 0 : -ENOMEM;
		held->mine[held->n] = true;
		held->v[held->n++] = f;
	}
	return 0;
}

static void log_failure(const struct flight *f, const char *what, int err)
{
	char key[CFS_BLOCK_KEY_MAX];

	cfs_store_block_key(f->store, &f->id, key);
	if (!f->prefetch && !f->hedge)
		cfs_err("%s: key=%s off=%u len=%u err=%s cause=%s", what, key, f->off, f->len,
			cfs_errname(err), cfs_object_cause());
}

static void log_late(struct cfs_store *s, const struct cfs_block *b, const char *what)
{
	char key[CFS_BLOCK_KEY_MAX];

	cfs_store_block_key(s, b, key);
	cfs_err("block was not read in time, %s: key=%s", what, key);
}

/* A tier was faster; or its owner has gone, and nobody else waits for it. */
static bool is_unwanted(void *arg)
{
	struct flight *f = arg;
	bool alone;

	if (f->hedge && f->hedge->settled(f->hedge->settled_arg))
		return true;
	if (!atomic_load(&f->cancelled))
		return false;
	pthread_mutex_lock(&f->shard->lock);
	alone = f->refs == 1;
	pthread_mutex_unlock(&f->shard->lock);
	return alone;
}

static ssize_t get_object(struct flight *f, const char *key, const struct iovec *iov, int n_iov)
{
	cfs_deadline_t until = cfs_deadline_in(f->store->get_timeout_ms);
	struct cfs_object_store *o = f->store->object;
	ssize_t got;

	if (f->prefetch || f->hedge)
		cfs_unwanted_set(is_unwanted, f);
	cfs_activity_wait(CFS_WAIT_OBJECT_GET, f->id.slice, key);
	got = o->ops->get(o, key, f->off, iov, n_iov, cfs_deadline_min(f->deadline, until));
	cfs_activity_wait_end();
	cfs_unwanted_set(NULL, NULL);
	return got;
}

/* iov has room for one more piece. 0, -EAGAIN (only when nowait), -ENOENT, -EIO. */
static int fetch_object(struct flight *f, struct iovec *iov, int n_iov, bool nowait)
{
	struct cfs_store *s = f->store;
	const struct cfs_object_ops *ops = s->object->ops;
	char key[CFS_BLOCK_KEY_MAX];
	uint64_t start = cfs_now_ns();
	uint8_t beyond;
	ssize_t got;

	if (nowait && !ops->get_nowait)
		return -EAGAIN;
	cfs_store_block_key(s, &f->id, key);
	/* One byte more than there should be tells an object that is too long. */
	if (f->off + f->len == f->id.len)
		iov[n_iov++] = (struct iovec){.iov_base = &beyond, .iov_len = 1};
	/* What is said of it is said here. */
	cfs_object_quiet(true);
	if (nowait)
		got = ops->get_nowait(s->object, key, f->off, iov, n_iov);
	else
		got = get_object(f, key, iov, n_iov);
	cfs_object_quiet(false);
	if (nowait && got == -EAGAIN)
		return -EAGAIN;
	if (got == -ECANCELED) {
		if (!f->hedge)
			CFS_STAT_ADD(s, prefetch_cancels, 1);
		return -EIO;
	}

	CFS_STAT_ADD(s, gets, 1);
	CFS_STAT_ADD(s, get_ns, cfs_now_ns() - start);
	if (got == (ssize_t)f->len) {
		CFS_STAT_ADD(s, get_bytes, f->len);
		return 0;
	}
	CFS_STAT_ADD(s, get_errors, 1);
	if (got < 0 && got != -ENOENT) /* the reader may know why a block has gone */
		log_failure(f, "block cannot be read", (int)got);
	else if (got >= 0)
		log_failure(f,
			    got < (ssize_t)f->len ? "block is shorter than its name says"
						  : "block is longer than its name says",
			    -EIO);
	return got == -ENOENT ? -ENOENT : -EIO;
}

static unsigned fill_iov(const struct flight *f, struct cfs_page *const *pages,
			 struct iovec iov[CFS_STORE_PAGES_MAX + 1])
{
	unsigned i;

	for (i = 0; i < f->n; i++)
		iov[i] = (struct iovec){
			.iov_base = pages[i]->data,
			.iov_len = cfs_slot_len(&f->id, f->first + i),
		};
	return i;
}

static void free_pages(const struct flight *f, struct cfs_page **pages)
{
	unsigned i;

	for (i = 0; i < f->n; i++) {
		cfs_page_unref(pages[i]);
		pages[i] = NULL;
	}
}

static int take_pages(const struct flight *f, struct cfs_page **pages, cfs_deadline_t deadline)
{
	unsigned i;
	int r = 0;

	for (i = 0; r == 0 && i < f->n; i++)
		r = cfs_page_get(f->store->pool, cfs_slot_len(&f->id, f->first + i), CFS_USE_READ,
				 deadline, &pages[i]);
	if (r < 0)
		free_pages(f, pages);
	return r;
}

static int fetch_beside(struct cfs_hedge *base, bool (*settled)(void *arg), void *arg)
{
	struct hedge *h = (struct hedge *)base;
	struct iovec iov[CFS_STORE_PAGES_MAX + 1];
	struct flight *f = h->f;
	int r;

	if (take_pages(f, h->pages, 0) < 0)
		return -EAGAIN;
	h->settled = settled;
	h->settled_arg = arg;
	f->hedge = h;
	/* It waits for the object store, too: nobody is to leave it behind for the tier. */
	atomic_store(&f->asked_ms, 0);
	r = fetch_object(f, iov, (int)fill_iov(f, h->pages, iov), false);
	atomic_store(&f->asked_ms, cfs_now_ms());
	f->hedge = NULL;
	return r;
}

/* As a tier's get. -EALREADY: the object store was faster, and the flight has its pages. */
static ssize_t get_hedged(struct flight *f, const struct cfs_tier_slot *t, const struct iovec *iov,
			  int n_iov)
{
	struct hedge h = {.base.fetch = fetch_beside, .f = f};
	ssize_t got = t->ops->get_hedged(t->tier, &f->id, f->off, iov, n_iov, &h.base, f->deadline);
	unsigned i;

	for (i = 0; got == -EALREADY && i < f->n; i++) {
		struct cfs_page *late = f->pages[i];

		f->pages[i] = h.pages[i];
		h.pages[i] = late;
	}
	free_pages(f, h.pages);
	return got;
}

/*
 * Asks the tiers before number `end` that have not been asked. A tier that fails is a tier that
 * misses; it does its own accounting. 0: it is there; -ENOENT; nowait: -EAGAIN.
 */
static int ask_tiers(struct flight *f, unsigned end, bool nowait)
{
	struct iovec iov[CFS_STORE_PAGES_MAX + 1];
	struct cfs_store *s = f->store;
	unsigned n = fill_iov(f, f->pages, iov);
	ssize_t got;

	for (; f->source < end; f->source++) {
		const struct cfs_tier_slot *t = &s->tiers[f->source];

		if (!nowait) {
			atomic_store(&f->asked_ms, cfs_now_ms());
			atomic_store(&f->begun, true);
		}
		if (!nowait && t->ops->get_hedged)
			got = get_hedged(f, t, iov, (int)n);
		else
			got = t->ops->get(t->tier, &f->id, f->off, iov, (int)n, nowait,
					  f->deadline);
		atomic_store(&f->asked_ms, 0);
		if (got == (ssize_t)f->len)
			return 0;
		if (got == -EALREADY) {
			f->source = s->n_tiers;
			return 0;
		}
		if (nowait && got == -EAGAIN)
			return -EAGAIN;
	}
	return -ENOENT;
}

/* Those that have missed are not asked again when the rest has to wait. */
static int fetch(struct flight *f, bool nowait)
{
	struct iovec iov[CFS_STORE_PAGES_MAX + 1];
	int r = ask_tiers(f, f->store->n_tiers, nowait);

	if (r != -ENOENT)
		return r;
	return fetch_object(f, iov, (int)fill_iov(f, f->pages, iov), nowait);
}

/*
 * Ends a flight whose bytes are there, or not. The block is offered to the tiers nearer than the
 * one that had it once all of it is in memory: small fetches that add up count as a whole one.
 */
static void land(struct flight *f, int err)
{
	struct cfs_segs whole;
	int r = 0;

	cfs_segs_init(&whole);
	pthread_mutex_lock(&f->shard->lock);
	/* Nobody asked for it: let the one who does find out, and have it logged. */
	end_flight(f, err < 0 && f->prefetch ? -EAGAIN : err);
	if (err == 0 && f->source > 0 && !f->block->put)
		r = cfs_memory_collect_block(f->block, &whole);
	pthread_mutex_unlock(&f->shard->lock);
	if (err == 0)
		cfs_memory_shrink(f->store);
	if (r > 0)
		cfs_route_offer(f->store, &f->route, &f->id, &whole, f->source);
	cfs_segs_release(&whole);
}

/* ---- workers ---- */

/* It is not queued any more. */
static void note_running(struct flight *f)
{
	if (!f->prefetch)
		return;
	pthread_mutex_lock(&f->store->prefetch_lock);
	f->workers = NULL;
	pthread_mutex_unlock(&f->store->prefetch_lock);
}

static void list_ahead(struct flight *f)
{
	pthread_mutex_lock(&f->store->prefetch_lock);
	TAILQ_INSERT_TAIL(&f->store->ahead, f, link);
	pthread_mutex_unlock(&f->store->prefetch_lock);
}

static void unlist_ahead(struct flight *f)
{
	pthread_mutex_lock(&f->store->prefetch_lock);
	TAILQ_REMOVE(&f->store->ahead, f, link);
	pthread_mutex_unlock(&f->store->prefetch_lock);
}

/* Gives up the worker's reference. */
static void leave_worker(struct flight *f)
{
	if (f->prefetch) {
		unlist_ahead(f);
		atomic_fetch_sub(&f->store->prefetching, 1);
	}
	put_flight(f);
}

static bool is_done(struct flight *f)
{
	bool done;

	pthread_mutex_lock(&f->shard->lock);
	done = f->done;
	pthread_mutex_unlock(&f->shard->lock);
	return done;
}

/* With the worker's reference, and in store->ahead if it is a prefetch. */
static int enqueue(struct flight *f, struct cfs_workers *w, cfs_deadline_t deadline)
{
	int r;

	if (!f->prefetch)
		return cfs_workers_submit(w, &f->job, deadline);
	/* Under the lock: whoever cancels it must know where it is. */
	pthread_mutex_lock(&f->store->prefetch_lock);
	r = cfs_workers_try_submit(w, &f->job);
	if (r == 0)
		f->workers = w;
	pthread_mutex_unlock(&f->store->prefetch_lock);
	return r;
}

static void run_far(struct cfs_job *job)
{
	struct flight *f = (struct flight *)job;

	note_running(f);
	cfs_store_await_block(f->store, &f->id);
	if (!is_done(f))
		land(f, fetch(f, false));
	cfs_activity_wait_end();
	leave_worker(f);
}

/* Just the tiers of this machine, behind which there are disks that may hang. */
static void run_near(struct cfs_job *job)
{
	struct flight *f = (struct flight *)job;
	struct cfs_store *s = f->store;
	int r;

	note_running(f);
	if (is_done(f)) {
		leave_worker(f);
		return;
	}
	cfs_store_await_block(s, &f->id);
	r = ask_tiers(f, cfs_route_far(s), false);
	cfs_activity_wait_end();
	if (r == 0) {
		land(f, 0);
	} else if (!is_done(f)) {
		f->job.run = run_far;
		r = enqueue(f, s->downloads, f->deadline);
		if (r == 0)
			return;
		fail(f, -EAGAIN);
	}
	leave_worker(f);
}

static int take_all_pages(struct held *held, cfs_deadline_t deadline)
{
	unsigned i;
	int r = 0;

	for (i = 0; r == 0 && i < held->n; i++) {
		if (held->mine[i])
			r = take_pages(held->v[i], held->v[i]->pages, deadline);
	}
	for (i = 0; r < 0 && i < held->n; i++) {
		if (held->mine[i])
			free_pages(held->v[i], held->v[i]->pages);
	}
	return r;
}

/*
 * Memory for all flights of ours. Readers that have to wait for it do so one after the other: two
 * that each hold a part of what the other waits for would wait for ever.
 */
static int allocate(struct cfs_store *s, struct held *held, cfs_deadline_t deadline)
{
	bool busy;
	int r = 0;

	pthread_mutex_lock(&s->alloc_lock);
	busy = s->alloc_busy;
	pthread_mutex_unlock(&s->alloc_lock);
	if (!busy) {
		r = take_all_pages(held, 0);
		if (r != -ETIMEDOUT)
			return r;
	}
	if (!cfs_long_wait_may())
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

	r = take_all_pages(held, deadline);
	pthread_mutex_lock(&s->alloc_lock);
	s->alloc_busy = false;
	pthread_cond_signal(&s->alloc_free);
	pthread_mutex_unlock(&s->alloc_lock);
	return r;
}

static int submit(struct flight *f, cfs_deadline_t deadline)
{
	struct cfs_store *s = f->store;
	bool near = f->source < cfs_route_far(s);
	int r;

	pthread_mutex_lock(&f->shard->lock);
	f->refs++;
	pthread_mutex_unlock(&f->shard->lock);
	if (f->prefetch)
		list_ahead(f);
	f->job.run = near ? run_near : run_far;
	/* In the queue before a disk that hangs it waits for that disk, too. */
	atomic_store(&f->asked_ms, near ? cfs_now_ms() : 0);
	r = enqueue(f, near ? s->nearby : s->downloads, deadline);
	if (r < 0)
		leave_worker(f);
	return r;
}

/* Starts our flights; whatever happens, each of them will be done. */
static int launch(struct cfs_store *s, struct held *held, cfs_deadline_t deadline)
{
	unsigned i, mine = 0;
	int r, err = 0;

	for (i = 0; i < held->n; i++)
		mine += held->mine[i];
	if (mine == 0)
		return 0;
	err = allocate(s, held, deadline);
	for (i = 0; i < held->n; i++) {
		struct flight *f = held->v[i];

		if (!held->mine[i])
			continue;
		if (err < 0) {
			fail(f, -EAGAIN);
			continue;
		}
		r = fetch(f, true);
		if (r != -EAGAIN) {
			land(f, r);
			continue;
		}
		r = submit(f, deadline);
		if (r < 0) {
			fail(f, -EAGAIN);
			err = r;
		}
	}
	return err;
}

static bool is_near(const struct cfs_store *s, const struct flight *f)
{
	unsigned source = atomic_load(&f->source);

	return source < s->n_tiers && s->tiers[source].ops->local;
}

/*
 * Of two tiers at most the first may be the only one that has the block. The worker goes on
 * meanwhile: what it is in is read first, so that a time of asking that is long ago belongs to it.
 */
static bool tier_is_late(const struct flight *f, unsigned *ret_tier, bool *ret_begun)
{
	const struct cfs_store *s = f->store;
	unsigned tier = atomic_load(&f->source);
	bool begun = atomic_load(&f->begun);
	uint64_t asked_ms = atomic_load(&f->asked_ms);
	bool near = tier < cfs_route_far(s);

	if (!asked_ms || (near && f->route.only))
		return false;
	*ret_tier = tier;
	*ret_begun = begun;
	return cfs_now_ms() - asked_ms >= (near ? s->local_timeout_ms : s->tier_timeout_ms);
}

/* A flight that waits for a cache too long is left behind: the next one will not. */
static int wait_flight(struct flight *f, cfs_deadline_t deadline, struct held *held)
{
	cfs_deadline_t until = cfs_deadline_min(deadline, f->deadline), next = until;
	struct cfs_store *s = f->store;
	unsigned tier = 0;
	bool late = false, begun = false;
	int r = 0;

	pthread_mutex_lock(&f->shard->lock);
	while (!f->done && r == 0) {
		if (!is_near(s, f) && !cfs_long_wait_may()) {
			r = -EBUSY;
			break;
		}
		if (s->n_tiers > 0)
			next = cfs_deadline_min(until, cfs_deadline_in(s->local_timeout_ms / 4));
		r = cfs_cond_wait(&f->changed, &f->shard->lock, next);
		if (r == 0 || f->done)
			continue;
		if (tier_is_late(f, &tier, &begun)) {
			late = true;
			f->late = tier < cfs_route_far(s);
			end_flight(f, -EAGAIN);
		} else if (next < until) {
			r = 0;
		} else if (f->deadline <= until) {
			end_flight(f, -EIO);
			held->expired = true;
		}
	}
	if (f->done)
		r = f->err;
	else if (r != -EBUSY)
		r = -ETIMEDOUT;
	held->late |= f->late;
	pthread_mutex_unlock(&f->shard->lock);
	/* In the queue the fault is not its own disk's, but that of one before which it stands. */
	if (late && begun)
		cfs_route_leave(s, tier, &f->id);
	else if (late)
		cfs_workers_replace(s->nearby);
	return r;
}

static int wait_all(struct held *held, cfs_deadline_t deadline)
{
	unsigned i;
	int r = 0;

	for (i = 0; r == 0 && i < held->n; i++) {
		cfs_store_await_block(held->v[i]->store, &held->v[i]->id);
		r = wait_flight(held->v[i], deadline, held);
		cfs_activity_wait_end();
		if (r == -EAGAIN)
			r = 0;
	}
	return r;
}

/* Whether there is memory to fetch more than was asked for. */
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
	return (uint64_t)len * WIDEN_PARTS >= b->len && len < b->len && is_roomy(s);
}

/* 1: collected; 0: *held replaced by the flights that are needed for it; or negative errno. */
static int collect_or_join(struct cfs_store *s, const struct cfs_block *b, uint32_t off,
			   uint32_t len, cfs_deadline_t deadline, const struct cfs_route *route,
			   struct cfs_segs *ret, struct held *held)
{
	bool near = route->near && route->from == 0;
	struct want want = {
		.first = off / CFS_PAGE_LARGE,
		.last = (off + len - 1) / CFS_PAGE_LARGE,
		.wider = is_large_part(s, b, len) && !near,
		.whole = route->place == CFS_PLACE_HERE && !near,
		.deadline = deadline,
		.route = route,
	};
	struct shard *sh = cfs_memory_shard(s, b);
	struct held next = {0};
	struct block *block;
	int r;

	pthread_mutex_lock(&sh->lock);
	block = cfs_memory_use(sh, b);
	r = block ? cfs_memory_collect(block, off, len, ret) : -ENOMEM;
	if (r == 0 && cfs_deadline_passed(deadline))
		r = -ETIMEDOUT;
	if (r == 0)
		r = join(s, sh, block, &want, &next);
	if (block)
		cfs_memory_unuse(sh, block);
	pthread_mutex_unlock(&sh->lock);
	release(held);
	*held = next;
	return r;
}

int cfs_flight_read(struct cfs_store *s, const struct cfs_block *b, uint32_t off, uint32_t len,
		    cfs_deadline_t deadline, struct cfs_route *route, struct cfs_segs *ret,
		    bool *ret_far)
{
	struct held held = {0};
	bool expired = false;
	unsigned i;
	int r;

	for (;;) {
		r = collect_or_join(s, b, off, len, deadline, route, ret, &held);
		if (r == 0)
			r = launch(s, &held, deadline);
		else
			break;
		if (r == 0)
			r = wait_all(&held, deadline);
		for (i = 0; i < held.n; i++)
			*ret_far |= held.mine[i] && !is_near(s, held.v[i]);
		expired |= held.expired;
		if (held.late)
			route->from = cfs_route_far(s);
		if (r < 0)
			break;
	}
	release(&held);
	if (expired)
		log_late(s, b, "its worker is left behind");
	else if (r == -ETIMEDOUT)
		log_late(s, b, "the reader gives up");
	if (r > 0)
		return 0;
	return r == -ENOENT || r == -ENOMEM || r == -EBUSY ? r : -EIO;
}

/* stream: only that will read it. */
static bool launch_prefetch(struct flight *f, uint64_t owner, bool stream)
{
	struct cfs_store *s = f->store;

	f->prefetch = true;
	f->stream = stream;
	f->owner = owner;
	if (atomic_fetch_add(&s->prefetching, 1) >= s->max_prefetches ||
	    take_pages(f, f->pages, 0) < 0)
		atomic_fetch_sub(&s->prefetching, 1);
	else if (submit(f, 0) == 0)
		return true;
	fail(f, -EAGAIN);
	return false;
}

/* The flights that a prefetch of the range needs; those that are mine are to be launched. */
static void join_ahead(struct cfs_store *s, const struct cfs_block *b, uint32_t off, uint32_t len,
		       const struct cfs_route *route, struct held *held)
{
	struct want want = {
		.first = off / CFS_PAGE_LARGE,
		.last = (off + len - 1) / CFS_PAGE_LARGE,
		.route = route,
	};
	struct shard *sh = cfs_memory_shard(s, b);
	struct block *block;

	*held = (struct held){0};
	pthread_mutex_lock(&sh->lock);
	block = cfs_memory_use(sh, b);
	if (block && !block->put)
		join(s, sh, block, &want, held);
	if (block)
		cfs_memory_unuse(sh, block);
	pthread_mutex_unlock(&sh->lock);
}

bool cfs_flight_prefetch(struct cfs_store *s, const struct cfs_block *b, uint32_t off, uint32_t len,
			 uint64_t owner, const struct cfs_route *route)
{
	bool all = true, whole = route->place == CFS_PLACE_HERE;
	struct held held;
	unsigned i;

	if (atomic_load(&s->prefetching) >= s->max_prefetches) {
		CFS_STAT_ADD(s, prefetch_drops, 1);
		return false;
	}
	if (whole && !route->near) {
		off = 0;
		len = b->len;
	}
	join_ahead(s, b, off, len, route, &held);
	for (i = 0; i < held.n; i++) {
		if (!held.mine[i])
			continue;
		if (launch_prefetch(held.v[i], owner, !whole)) {
			CFS_STAT_ADD(s, prefetches, 1);
		} else {
			CFS_STAT_ADD(s, prefetch_drops, 1);
			all = false;
		}
	}
	release(&held);
	if (held.expired)
		log_late(s, b, "its worker is left behind");
	return all;
}

static void fill_one(struct flight *f, uint64_t owner)
{
	f->prefetch = true;
	f->owner = owner;
	if (take_pages(f, f->pages, 0) < 0) {
		fail(f, -EAGAIN);
		return;
	}
	list_ahead(f);
	land(f, fetch(f, false));
	unlist_ahead(f);
}

void cfs_flight_fill(struct cfs_store *s, const struct cfs_block *b, uint64_t owner)
{
	struct cfs_route route = cfs_route_find(s, b);
	struct held held;
	unsigned i;

	if (route.near)
		return;
	cfs_route_place(s, b, &route);
	route.from = cfs_route_far(s);
	join_ahead(s, b, 0, b->len, &route, &held);
	for (i = 0; i < held.n; i++) {
		if (held.mine[i])
			fill_one(held.v[i], owner);
	}
	release(&held);
}

/* A reader that waits for one of them fetches it himself. */
void cfs_flight_cancel(struct cfs_store *s, uint64_t owner)
{
	struct flight_list dropped = TAILQ_HEAD_INITIALIZER(dropped);
	struct flight *f, *next;

	pthread_mutex_lock(&s->prefetch_lock);
	for (f = TAILQ_FIRST(&s->ahead); f; f = next) {
		next = TAILQ_NEXT(f, link);
		if (f->owner != owner)
			continue;
		if (f->workers && cfs_workers_cancel(f->workers, &f->job)) {
			TAILQ_REMOVE(&s->ahead, f, link);
			TAILQ_INSERT_TAIL(&dropped, f, link);
		} else {
			atomic_store(&f->cancelled, true);
		}
	}
	pthread_mutex_unlock(&s->prefetch_lock);
	while ((f = TAILQ_FIRST(&dropped)) != NULL) {
		TAILQ_REMOVE(&dropped, f, link);
		fail(f, -EAGAIN);
		atomic_fetch_sub(&s->prefetching, 1);
		CFS_STAT_ADD(s, prefetch_cancels, 1);
		put_flight(f);
	}
}
