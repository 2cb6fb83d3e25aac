/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Uploads. Until its upload has ended, a block is read from the pages that are being uploaded;
 * after success they remain as cached pages.
 *
 * A watchdog thread reports an upload as failed when its call has not returned at the deadline; the
 * worker keeps the pages until it returns.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/activity.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "store-internal.h"

/* Blocks that wait for upload take at most one part of the pool. */
#define POOL_PARTS 2
/* The watchdog's period is one part of the timeout. */
#define WATCH_PARTS 8
/* Rounds of slow uploads after which their number grows. */
#define PATIENCE_MIN 4u
#define PATIENCE_MAX 256u

struct cfs_put {
	struct cfs_job job; /* first */
	struct cfs_store *store;
	struct block *block; /* a user of it, until the put has ended */
	struct cfs_block id;
	struct cfs_segs data;
	cfs_put_done_fn done;
	void *arg;
	bool staged; /* on the local disk; set by its worker before it reports */

	/* Under put_lock. */
	LIST_ENTRY(cfs_put) link; /* until ended */
	cfs_deadline_t deadline;
	unsigned refs;
	bool ended; /* a thread has claimed to report the result */
};

const struct cfs_segs *cfs_put_data(const struct cfs_put *p)
{
	return &p->data;
}

static void unref_put(struct cfs_put *p)
{
	struct cfs_store *s = p->store;
	bool last;

	pthread_mutex_lock(&s->put_lock);
	last = --p->refs == 0;
	pthread_mutex_unlock(&s->put_lock);
	if (!last)
		return;
	cfs_segs_release(&p->data);
	free(p);
}

/* Called with put_lock: as claim_end(). */
static bool claim_end_locked(struct cfs_put *p)
{
	struct cfs_store *s = p->store;

	if (p->ended)
		return false;
	p->ended = true;
	LIST_REMOVE(p, link);
	s->put_pending_bytes -= p->id.len;
	pthread_cond_broadcast(&s->put_room);
	return true;
}

/* The thread that gets true reports the result. False: another one has done so, or will. */
static bool claim_end(struct cfs_put *p)
{
	struct cfs_store *s = p->store;
	CFS_LOCK_GUARD(&s->put_lock);

	return claim_end_locked(p);
}

/*
 * The page for a slot: the uploaded one if it holds only this slot and wastes little memory, else a
 * copy. NULL when memory is short.
 */
static struct cfs_page *page_for_slot(struct cfs_put *p, const struct cfs_seg *seg, unsigned index)
{
	uint32_t len = cfs_slot_len(&p->id, index);
	struct cfs_page *page;

	if (seg && seg->page && seg->off == 0 && seg->len == len &&
	    (len > CFS_PAGE_MEDIUM || seg->page->size < 2 * len ||
	     seg->page->size == CFS_PAGE_SMALL))
		return cfs_page_ref(seg->page);
	if (cfs_page_get(p->store->pool, len, CFS_USE_CACHE, 0, &page) < 0)
		return NULL;
	cfs_segs_copy_out(&p->data, (uint64_t)index * CFS_PAGE_LARGE, page->data, len);
	return page;
}

static unsigned pages_for_slots(struct cfs_put *p, struct cfs_page *pages[CFS_STORE_PAGES_MAX])
{
	unsigned i, n = CFS_DIV_UP(p->id.len, CFS_PAGE_LARGE);
	size_t k = 0;
	uint64_t at = 0;

	for (i = 0; i < n; i++) {
		const struct cfs_seg *seg = NULL;

		while (k < p->data.n && at < (uint64_t)i * CFS_PAGE_LARGE)
			at += p->data.v[k++].len;
		if (k < p->data.n && at == (uint64_t)i * CFS_PAGE_LARGE)
			seg = &p->data.v[k];
		pages[i] = page_for_slot(p, seg, i);
	}
	return n;
}

/* Ends the reads from the upload. keep: the cache has the block from here on. */
static void detach(struct cfs_put *p, bool keep)
{
	struct cfs_page *pages[CFS_STORE_PAGES_MAX];
	struct cfs_store *s = p->store;
	struct shard *sh = cfs_memory_shard(s, &p->id);
	unsigned i, n = keep ? pages_for_slots(p, pages) : 0;

	pthread_mutex_lock(&sh->lock);
	p->block->put = NULL;
	for (i = 0; i < n; i++) {
		if (!pages[i] || !cfs_memory_insert(s, sh, p->block, i, pages[i], false))
			continue;
		pages[i] = NULL;
		/* Part of a large file: evicted early, as pages of read streams are. */
		if (p->id.len == s->block_size)
			cfs_memory_set_passed(p->block, i);
	}
	cfs_memory_unuse(sh, p->block);
	pthread_mutex_unlock(&sh->lock);
	for (i = 0; i < n; i++)
		cfs_page_unref(pages[i]);
	if (keep)
		cfs_memory_shrink(s, 0);
}

static void conclude(struct cfs_put *p, int err)
{
	if (err < 0)
		CFS_STAT_ADD(p->store, put_errors, 1);
	detach(p, err == 0);
}

/* A large block that was written is rarely read back soon; a small one costs little to keep. */
static void offer_put(struct cfs_put *p, int err)
{
	struct cfs_store *s = p->store;
	struct cfs_route route = {0};

	if (err < 0 || p->staged || (p->id.len == s->block_size && !s->cache_large_write))
		return;
	cfs_route_place(s, &p->id, &route);
	cfs_route_offer(s, &route, &p->id, &p->data, s->n_tiers, true);
}

static void report(struct cfs_put *p, int err)
{
	conclude(p, err);
	p->done(p->arg, err);
	offer_put(p, err);
}

int cfs_put_object(struct cfs_store *s, const struct cfs_block *b, const struct cfs_segs *data,
		   cfs_deadline_t deadline)
{
	uint64_t start = cfs_now_ns();
	char key[CFS_BLOCK_KEY_MAX];
	struct iovec *iov;
	int n, r;

	n = cfs_segs_iov(data, &iov);
	if (n < 0)
		return n;
	cfs_store_block_key(s, b, key);
	cfs_activity_wait(CFS_WAIT_OBJECT_PUT, b->slice, key);
	r = s->object->ops->put(s->object, key, iov, n, b->tier, deadline);
	cfs_activity_wait_end();
	free(iov);
	CFS_STAT_ADD(s, puts, 1);
	CFS_STAT_ADD(s, put_ns, cfs_now_ns() - start);
	if (r == 0)
		CFS_STAT_ADD(s, put_bytes, b->len);
	return r < 0 ? r : 0;
}

/*
 * The writer retries, and logs the block when it gives up. The cause is known only here: it is
 * logged when uploads begin to fail, and when they succeed again.
 */
static void log_change(struct cfs_store *s, const struct cfs_block *b, int err)
{
	char key[CFS_BLOCK_KEY_MAX];

	if (atomic_load_explicit(&s->puts_fail, memory_order_relaxed) == (err < 0) ||
	    atomic_exchange(&s->puts_fail, err < 0) == (err < 0))
		return;
	cfs_store_block_key(s, b, key);
	if (err < 0)
		cfs_warn("blocks cannot be stored, their writers try again: key=%s error=%s "
			 "cause=%s",
			 key, cfs_errname(err), cfs_object_cause());
	else
		cfs_info("blocks are stored again: key=%s", key);
}

/* Stores on the local disk when allowed, else in the object store. */
static int store_block(struct cfs_put *p, cfs_deadline_t deadline)
{
	struct cfs_store *s = p->store;
	uint64_t begun;
	int r;

	if (s->stage && s->stage_ops->put(s->stage, &p->id, &p->data, deadline) == 0) {
		p->staged = true;
		return 0;
	}
	cfs_object_quiet(true);
	begun = cfs_sync_begin(s);
	r = cfs_put_object(s, &p->id, &p->data, deadline);
	if (r == 0)
		r = cfs_sync_note(s, begun, p->id.slice);
	log_change(s, &p->id, r);
	cfs_object_quiet(false);
	return r;
}

/* With put_lock. probes: the number grows although uploads were slow. */
static void set_uploads(struct cfs_store *s, unsigned n, bool probes)
{
	s->uploads_now = n;
	s->uploads_good = 0;
	s->uploads_probe = probes;
	cfs_workers_set_max(s->uploads, n);
}

void cfs_put_set_max(struct cfs_store *s, unsigned max)
{
	pthread_mutex_lock(&s->put_lock);
	s->uploads_max = CFS_MAX(max, 1u);
	s->uploads_patience = PATIENCE_MIN;
	set_uploads(s, s->uploads_max, false);
	pthread_mutex_unlock(&s->put_lock);
}

/*
 * Uploads share the link. When it carries fewer blocks within the timeout than go at a time, all of them
 * time out, and so do their next tries. So each timeout halves the number of uploads.
 *
 * A round of quick uploads doubles it. Slow ones leave no room for twice as many on a link that is
 * full, but may have another reason: several rounds of them double the number, too. When such a probe
 * fails, the next one takes twice as many rounds.
 */
static void adapt_uploads(struct cfs_store *s, uint64_t took_ms, int err)
{
	bool quick = took_ms < s->put_timeout_ms / 2;
	unsigned n;
	CFS_LOCK_GUARD(&s->put_lock);

	n = s->uploads_now;
	if (err == -ETIMEDOUT) {
		if (s->uploads_probe)
			s->uploads_patience = CFS_MIN(2 * s->uploads_patience, PATIENCE_MAX);
		set_uploads(s, CFS_MAX(n / 2, 1u), false);
	} else if (err == 0 && n < s->uploads_max) {
		s->uploads_good += quick ? s->uploads_patience : 1;
		if (s->uploads_good >= n * s->uploads_patience)
			set_uploads(s, CFS_MIN(2 * n, s->uploads_max), !quick);
	}
}

static void run_put(struct cfs_job *job)
{
	struct cfs_put *p = (struct cfs_put *)job;
	struct cfs_store *s = p->store;
	cfs_deadline_t deadline = cfs_deadline_in(s->put_timeout_ms);
	uint64_t start_ms = cfs_now_ms();
	bool ended;
	int r;

	pthread_mutex_lock(&s->put_lock);
	ended = p->ended;
	p->deadline = deadline;
	pthread_mutex_unlock(&s->put_lock);
	if (!ended) {
		r = store_block(p, deadline);
		if (!p->staged)
			adapt_uploads(s, cfs_now_ms() - start_ms, r);
		if (claim_end(p))
			report(p, r);
	}
	unref_put(p);
}

/* Reports one upload that is past its deadline. */
static bool expire_one(struct cfs_store *s)
{
	struct cfs_put *p;

	pthread_mutex_lock(&s->put_lock);
	LIST_FOREACH(p, &s->puts, link)
	{
		if (cfs_deadline_passed(p->deadline)) {
			claim_end_locked(p);
			p->refs++;
			break;
		}
	}
	pthread_mutex_unlock(&s->put_lock);
	if (!p)
		return false;
	if (cfs_workers_cancel(s->uploads, &p->job))
		unref_put(p);
	report(p, -ETIMEDOUT);
	unref_put(p);
	return true;
}

static void watch_puts(void *arg)
{
	while (expire_one(arg))
		;
}

/* Waits for room; the first upload always has it. */
static int enter(struct cfs_store *s, struct cfs_put *p, cfs_deadline_t deadline)
{
	int r = 0;

	cfs_activity_wait(CFS_WAIT_QUEUE, p->id.slice, "of uploads");
	pthread_mutex_lock(&s->put_lock);
	while (s->put_pending_bytes && s->put_pending_bytes + p->id.len > s->put_limit_bytes &&
	       r == 0)
		r = cfs_cond_wait(&s->put_room, &s->put_lock, deadline);
	if (r == 0) {
		s->put_pending_bytes += p->id.len;
		LIST_INSERT_HEAD(&s->puts, p, link);
	}
	pthread_mutex_unlock(&s->put_lock);
	cfs_activity_wait_end();
	return r;
}

/* -EBUSY when an upload of this very block is under way. */
static int attach(struct cfs_store *s, struct cfs_put *p)
{
	struct shard *sh = cfs_memory_shard(s, &p->id);
	struct block *block;
	CFS_LOCK_GUARD(&sh->lock);

	block = cfs_memory_use(sh, &p->id);
	if (!block)
		return -ENOMEM;
	if (block->put) {
		cfs_memory_unuse(sh, block);
		return -EBUSY;
	}
	p->block = block;
	block->put = p;
	return 0;
}

static bool is_valid(const struct cfs_store *s, const struct cfs_block *b,
		     const struct cfs_segs *data)
{
	return b->len > 0 && b->len <= s->block_size && data->len == b->len;
}

int cfs_store_put(struct cfs_store *s, const struct cfs_block *b, const struct cfs_segs *data,
		  cfs_put_done_fn done, void *arg, cfs_deadline_t deadline)
{
	struct cfs_put *p;
	int r;

	if (!is_valid(s, b, data))
		return -EINVAL;
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->job.run = run_put;
	p->store = s;
	p->id = *b;
	p->done = done;
	p->arg = arg;
	p->refs = 1;
	/* For the time in the queue: that of one round of uploads. run_put() sets the next one. */
	p->deadline = CFS_MAX(deadline, cfs_deadline_in(2 * s->put_timeout_ms));
	cfs_segs_init(&p->data);
	r = cfs_segs_slice(&p->data, data, 0, data->len);
	if (r < 0)
		goto fail;
	r = attach(s, p);
	if (r < 0)
		goto fail;
	r = enter(s, p, deadline);
	if (r < 0)
		goto fail_attached;
	r = cfs_workers_submit(s->uploads, &p->job, deadline);
	if (r < 0) {
		if (claim_end(p))
			goto fail_attached;
		/* The watchdog was faster, and has reported it. */
		r = 0;
		goto fail;
	}
	return 0;

fail_attached:
	detach(p, false);
fail:
	unref_put(p);
	return r == -ETIMEDOUT ? -EIO : r;
}

int cfs_store_put_sync(struct cfs_store *s, const struct cfs_block *b, const struct cfs_segs *data,
		       cfs_deadline_t deadline)
{
	struct cfs_put p = {.store = s, .id = *b};
	int r;

	if (!is_valid(s, b, data))
		return -EINVAL;
	cfs_segs_init(&p.data);
	r = cfs_segs_slice(&p.data, data, 0, data->len);
	if (r == 0)
		r = attach(s, &p);
	if (r == 0) {
		r = store_block(&p, cfs_deadline_min(deadline, cfs_deadline_in(s->put_timeout_ms)));
		conclude(&p, r);
		offer_put(&p, r);
	}
	cfs_segs_release(&p.data);
	return r == -ETIMEDOUT ? -EIO : r;
}

int cfs_put_init(struct cfs_store *s)
{
	struct cfs_pool_stats stats;
	uint64_t period_ms = CFS_MIN(CFS_MAX(s->put_timeout_ms / WATCH_PARTS, 10), 1000);

	cfs_pool_stats(s->pool, &stats);
	s->put_limit_bytes = stats.budget / POOL_PARTS;
	LIST_INIT(&s->puts);
	return cfs_ticker_start("cfs-put-watch", period_ms, watch_puts, s, &s->put_watch);
}

void cfs_put_fini(struct cfs_store *s)
{
	if (s->put_watch)
		cfs_ticker_stop(s->put_watch);
}
