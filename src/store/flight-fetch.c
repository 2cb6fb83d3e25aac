/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fetches the bytes of a flight: from the tiers in their order, then from the object store, or from
 * both when a tier is late.
 */
#include <errno.h>

#include "base/activity.h"
#include "base/arrival.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/unwanted.h"
#include "flight-internal.h"

#define SLOW_NS	   1000000 /* cfs_store_is_slow() */
#define HURRIED_MS 3000	   /* cfs_store_hurry_reads() */

/* Asks the object store while a tier may still write to the flight's pages. */
struct hedge {
	struct cfs_hedge base; /* first */
	struct flight *f;
	bool (*settled)(void *arg);
	void *settled_arg;
	struct cfs_page *pages[CFS_STORE_PAGES_MAX];
};

static void log_failure(const struct flight *f, const char *what, int err)
{
	char key[CFS_BLOCK_KEY_MAX];

	cfs_store_block_key(f->store, &f->id, key);
	if (!f->prefetch && !f->cancelled && f->state != READ_HEDGED)
		cfs_err("%s: key=%s off=%u len=%u error=%s cause=%s", what, key, f->off, f->len,
			cfs_errname(err), cfs_object_cause());
}

/* The mount ends, and nothing comes from the object store. */
static bool is_silent_at_the_end(const struct cfs_store *s)
{
	uint64_t since_ms = atomic_load(&s->hurried_ms);

	return since_ms && cfs_now_ms() - CFS_MAX(since_ms, cfs_arrival_last_ms()) >= HURRIED_MS;
}

/* The mount ends; a tier was faster; or it is for waiting readers only, and there is none. */
static bool is_unwanted(void *arg)
{
	struct flight *f = arg;
	bool alone;

	if (atomic_load(&f->store->reads_stopped) || is_silent_at_the_end(f->store))
		return true;
	if (f->state == READ_HEDGED && f->hedge->settled(f->hedge->settled_arg))
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

	cfs_unwanted_set(is_unwanted, f);
	cfs_activity_wait(CFS_WAIT_OBJECT_GET, f->id.slice, key);
	cfs_arrival_follow(&f->arrival);
	got = o->ops->get(o, key, f->off, iov, n_iov, cfs_deadline_min(f->deadline, until));
	cfs_arrival_follow(NULL);
	cfs_activity_wait_end();
	cfs_unwanted_set(NULL, NULL);
	return got;
}

/*
 * iov has room for one more piece. 0, -EAGAIN (only when nowait), -ENOENT, -EACCES, -EIO,
 * -CFS_OBJECT_EPART: ask for the whole block.
 */
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
	/* Asks for one byte more, to notice an object that is too long. */
	if (f->off + f->len == f->id.len)
		iov[n_iov++] = (struct iovec){.iov_base = &beyond, .iov_len = 1};
	/* The message below is the only one about it. */
	cfs_object_quiet(true);
	if (nowait)
		got = ops->get_nowait(s->object, key, f->off, iov, n_iov);
	else
		got = get_object(f, key, iov, n_iov);
	cfs_object_quiet(false);
	if (nowait && got == -EAGAIN)
		return -EAGAIN;
	if (got == -ECANCELED) {
		if (f->prefetch && f->state != READ_HEDGED)
			CFS_STAT_ADD(s, prefetch_cancels, 1);
		else if (!f->cancelled && f->state != READ_HEDGED)
			cfs_warn("block is not read, as the mount ends and the object store is "
				 "silent: key=%s",
				 key);
		return -EIO;
	}

	CFS_STAT_ADD(s, gets, 1);
	CFS_STAT_ADD(s, get_ns, cfs_now_ns() - start);
	if (got == (ssize_t)f->len) {
		cfs_arrival_note(f->len, f->len);
		CFS_STAT_ADD(s, get_bytes, f->len);
		return 0;
	}
	if (got == -CFS_OBJECT_EPART && f->len < f->id.len)
		return (int)got;
	CFS_STAT_ADD(s, get_errors, 1);
	/* No more than all of it was asked for. */
	if (got == -CFS_OBJECT_EPART)
		got = (ssize_t)f->len + 1;
	if (got < 0 && got != -ENOENT) /* the reader may know why a block has gone */
		log_failure(f, "block cannot be read", (int)got);
	else if (got >= 0)
		log_failure(f,
			    got < (ssize_t)f->len ? "block is shorter than its name says"
						  : "block is longer than its name says",
			    -EIO);
	return got == -ENOENT || got == -EACCES ? (int)got : -EIO;
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

void cfs_flight_free_pages(const struct flight *f, struct cfs_page **pages)
{
	unsigned i;

	for (i = 0; i < f->n; i++) {
		cfs_page_unref(pages[i]);
		pages[i] = NULL;
	}
}

int cfs_flight_take_pages(const struct flight *f, struct cfs_page **pages, cfs_deadline_t deadline)
{
	unsigned i;
	int r = 0;

	for (i = 0; r == 0 && i < f->n; i++)
		r = cfs_page_get(f->store->pool, cfs_slot_len(&f->id, f->first + i), CFS_USE_READ,
				 deadline, &pages[i]);
	if (r < 0)
		cfs_flight_free_pages(f, pages);
	return r;
}

static int fetch_beside(struct cfs_hedge *base, bool (*settled)(void *arg), void *arg)
{
	struct hedge *h = (struct hedge *)base;
	struct iovec iov[CFS_STORE_PAGES_MAX + 1];
	struct flight *f = h->f;
	int r;

	if (cfs_flight_take_pages(f, h->pages, 0) < 0)
		return -EAGAIN;
	h->settled = settled;
	h->settled_arg = arg;
	f->hedge = h;
	/* The flight waits for the object store, too: readers must not abandon the tier for it. */
	atomic_store(&f->wait_start_ms, 0);
	atomic_store(&f->state, READ_HEDGED);
	r = fetch_object(f, iov, (int)fill_iov(f, h->pages, iov), false);
	atomic_store(&f->state, READ_PEER);
	atomic_store(&f->wait_start_ms, cfs_now_ms());
	f->hedge = NULL;
	return r;
}

/* The tier is not late while its peer works, unless the object store was asked as well. */
static void tier_works(struct cfs_hedge *base)
{
	struct flight *f = ((struct hedge *)base)->f;
	uint64_t wait_start_ms = atomic_load(&f->wait_start_ms);

	if (wait_start_ms)
		atomic_compare_exchange_strong(&f->wait_start_ms, &wait_start_ms, cfs_now_ms());
}

/* As a tier's get. -EALREADY: the object store was faster, and the flight has its pages. */
static ssize_t get_hedged(struct flight *f, const struct cfs_tier_slot *t, const struct iovec *iov,
			  int n_iov)
{
	struct hedge h = {.base = {fetch_beside, tier_works}, .f = f};
	ssize_t got = t->ops->get_hedged(t->tier, &f->id, f->off, iov, n_iov, &h.base, f->deadline);
	unsigned i;

	for (i = 0; got == -EALREADY && i < f->n; i++) {
		struct cfs_page *late = f->pages[i];

		f->pages[i] = h.pages[i];
		h.pages[i] = late;
	}
	cfs_flight_free_pages(f, h.pages);
	return got;
}

static void enter(struct flight *f, unsigned tier)
{
	atomic_store(&f->source, tier);
	atomic_store(&f->state, cfs_route_state(f->store, tier));
}

/* As a tier's get, of the tier it is in. */
static ssize_t ask_tier(struct flight *f, bool nowait)
{
	const struct cfs_tier_slot *t = &f->store->tiers[f->source];
	struct iovec iov[CFS_STORE_PAGES_MAX + 1];
	int n = (int)fill_iov(f, f->pages, iov);
	ssize_t got;

	if (nowait)
		return t->ops->get(t->tier, &f->id, f->off, iov, n, true, f->deadline);
	atomic_store(&f->wait_start_ms, cfs_now_ms());
	atomic_store(&f->in_tier, true);
	if (t->ops->get_hedged)
		got = get_hedged(f, t, iov, n);
	else
		got = t->ops->get(t->tier, &f->id, f->off, iov, n, false, f->deadline);
	atomic_store(&f->wait_start_ms, 0);
	return got;
}

static int run(struct flight *f, const struct cfs_workers *w)
{
	struct cfs_store *s = f->store;
	struct iovec iov[CFS_STORE_PAGES_MAX + 1];
	ssize_t got;

	for (;;) {
		if (w && w != cfs_route_workers(s, f->state))
			return -EAGAIN;
		if (f->state == READ_OBJECT)
			return fetch_object(f, iov, (int)fill_iov(f, f->pages, iov), !w);
		got = ask_tier(f, !w);
		if (got == (ssize_t)f->len)
			return 0;
		if (!w && got == -EAGAIN)
			return -EAGAIN;
		cfs_route_missed(&f->route, f->source, got);
		enter(f, got == -EALREADY ? s->n_tiers : f->source + 1);
		if (got == -EALREADY)
			return 0;
	}
}

/* A moving average, without the time that the bytes take at 1 GB/s. Races lose a sample. */
static void note_time(struct cfs_store *s, uint64_t took_ns, uint32_t len)
{
	uint64_t mean_ns = atomic_load_explicit(&s->miss_ns, memory_order_relaxed);

	took_ns -= CFS_MIN(took_ns, (uint64_t)len);
	atomic_store_explicit(&s->miss_ns, mean_ns - mean_ns / 8 + took_ns / 8,
			      memory_order_relaxed);
}

/* A flight that continues on a worker does not return to earlier states. */
int cfs_flight_run(struct flight *f, const struct cfs_workers *w)
{
	uint64_t start_ns = cfs_now_ns();
	int r = run(f, w);

	if (r == 0)
		note_time(f->store, cfs_now_ns() - start_ns, f->len);
	return r;
}

bool cfs_store_is_slow(const struct cfs_store *s)
{
	return atomic_load_explicit(&s->miss_ns, memory_order_relaxed) >= SLOW_NS;
}

uint64_t cfs_flight_left_ms(struct cfs_store *s, const struct cfs_block *b)
{
	struct shard *sh = cfs_memory_shard(s, b);
	uint64_t left_ms = 0, part_ms = 1;
	struct block *block;
	unsigned i;
	CFS_LOCK_GUARD(&sh->lock);

	block = cfs_memory_find(sh, b);
	for (i = 0; block && i < block->n_slots && part_ms > 0; i++) {
		if (!block->slots[i].flight)
			continue;
		part_ms = cfs_arrival_left_ms(&block->slots[i].flight->arrival);
		left_ms = part_ms > 0 ? CFS_MAX(left_ms, part_ms) : 0;
	}
	return left_ms;
}
