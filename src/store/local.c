/* SPDX-License-Identifier: Apache-2.0 */
/*
 * READ_LOCAL without a flight: reads just the range from a local tier, into pages that only the
 * reader holds. The kernel caches the files of the tier; a second copy in memory would cost more
 * than it saves, while a few pages that are reused stay in the processor's cache. Read-ahead only
 * fills the kernel's cache.
 *
 * A worker for local tiers does reads that would wait for a disk. When it takes too long, the
 * reader abandons it with its pages and continues with a flight.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/activity.h"
#include "base/task.h"
#include "base/workers.h"
#include "base/wouldblock.h"
#include "store-internal.h"

/* For reads up to this size a lookup on disk costs little even if it misses. */
#define SMALL_MAX (CFS_PAGE_LARGE / 2)
#define PAGES_MAX 9 /* a request of the kernel, 1 MiB, wherever it begins */
#define AHEAD_MAX 4 /* ranges of blocks that are being read ahead */

struct pages {
	struct cfs_page *v[PAGES_MAX];
	struct iovec iov[PAGES_MAX];
	int n;
};

struct range_read {
	struct cfs_task task; /* first */
	struct cfs_store *store;
	struct cfs_block id;
	uint32_t off;
	cfs_deadline_t deadline;
	struct pages pages;
};

struct readahead {
	struct cfs_job job; /* first */
	struct cfs_store *store;
	struct cfs_block id;
	uint32_t off, len;
	/* Under store->prefetch_lock. */
	TAILQ_ENTRY(readahead) link; /* in store->readaheads, unless it is abandoned */
	uint64_t since_ms;	     /* when it was queued, or began */
	bool begun;
	bool abandoned; /* it hangs with the disk, and is not counted */
};

static void unref_pages(struct pages *p)
{
	while (p->n > 0)
		cfs_page_unref(p->v[--p->n]);
}

/* Takes one page, or pages with the boundaries of the block's: aligned reads cost the tier less. */
static int get_pages(struct cfs_store *s, uint32_t off, uint32_t len, cfs_deadline_t deadline,
		     struct pages *ret)
{
	uint32_t n;
	int r = 0;

	for (ret->n = 0; len > 0; off += n, len -= n) {
		n = len <= CFS_PAGE_LARGE ? len : CFS_PAGE_LARGE - off % CFS_PAGE_LARGE;
		r = cfs_page_get(s->pool, n, CFS_USE_READ, deadline, &ret->v[ret->n]);
		if (r < 0)
			break;
		ret->iov[ret->n] = (struct iovec){ret->v[ret->n]->data, n};
		ret->n++;
	}
	if (r < 0)
		unref_pages(ret);
	return r;
}

static ssize_t ask(struct cfs_store *s, const struct cfs_block *b, uint32_t off,
		   const struct pages *p, bool nowait, cfs_deadline_t deadline)
{
	const struct cfs_tier_slot *t = &s->tiers[0];

	return t->ops->get(t->tier, b, off, p->iov, p->n, nowait, deadline);
}

static ssize_t run_range_read(struct cfs_task *task)
{
	struct range_read *d = (struct range_read *)task;
	ssize_t n;

	cfs_store_await_block(d->store, &d->id);
	n = ask(d->store, &d->id, d->off, &d->pages, false, d->deadline);
	cfs_activity_wait_end();
	return n;
}

static void free_range_read(struct cfs_task *task, bool uncollected)
{
	struct range_read *d = (struct range_read *)task;

	unref_pages(&d->pages);
	free(d);
}

/* As ask(), or -ETIMEDOUT: a hanging worker was abandoned; -EAGAIN: no worker was free. */
static ssize_t ask_worker(struct cfs_store *s, const struct cfs_block *b, uint32_t off,
			  const struct pages *pages, cfs_deadline_t deadline)
{
	struct range_read *d = cfs_task_new(sizeof(*d), run_range_read, free_range_read);
	ssize_t n = 0;
	int i, r;

	if (!d)
		return -ENOMEM;
	d->store = s;
	d->id = *b;
	d->off = off;
	d->deadline = deadline;
	d->pages = *pages;
	for (i = 0; i < pages->n; i++)
		cfs_page_ref(pages->v[i]);
	cfs_store_await_block(s, b);
	r = cfs_route_wait(s, 0, b, &d->task, deadline, &n);
	cfs_activity_wait_end();
	cfs_task_end(&d->task);
	return r < 0 ? r : n;
}

/* Uses up the pages, of which *ret may have got some when it fails. */
static int give(struct pages *p, struct cfs_segs *ret)
{
	int i, r = 0;

	for (i = 0; i < p->n && r == 0; i++)
		r = cfs_segs_add(ret, p->v[i], 0, (uint32_t)p->iov[i].iov_len);
	for (i -= r < 0; i < p->n; i++)
		cfs_page_unref(p->v[i]);
	p->n = 0;
	return r;
}

int cfs_local_read(struct cfs_store *s, struct cfs_miss *m, struct cfs_segs *ret)
{
	cfs_deadline_t get_deadline = m->deadline;
	const struct cfs_block *b = m->block;
	struct cfs_route *route = &m->route;
	uint32_t off = m->off, len = m->len;
	struct pages pages;
	ssize_t n;
	int r;

	if (len > (PAGES_MAX - 1) * CFS_PAGE_LARGE || s->n_tiers == 0 || !s->tiers[0].ops->local)
		return 0;
	if (len > SMALL_MAX && !route->local)
		return 0;
	r = get_pages(s, off, len, 0, &pages);
	if (r == -ETIMEDOUT && len > SMALL_MAX)
		return 0;
	if (r == -ETIMEDOUT && !cfs_may_block())
		return -EBUSY;
	if (r == -ETIMEDOUT)
		r = get_pages(s, off, len, m->deadline, &pages);
	if (r < 0)
		return r == -ENOMEM ? r : -EIO;
	if (!route->only)
		get_deadline = cfs_deadline_min(m->deadline, cfs_deadline_in(s->local_timeout_ms));
	n = ask(s, b, off, &pages, true, get_deadline);
	if (n == -EAGAIN && route->only && !cfs_may_block())
		n = -EBUSY;
	else if (n == -EAGAIN)
		n = ask_worker(s, b, off, &pages, get_deadline);
	if (n == (ssize_t)len) {
		r = give(&pages, ret);
		return r < 0 ? r : 1;
	}
	unref_pages(&pages);
	route->from = 1;
	return n == -ENOMEM || n == -EBUSY ? (int)n : 0;
}

/* With the lock. */
static void unlist(struct cfs_store *s, struct readahead *a)
{
	TAILQ_REMOVE(&s->readaheads, a, link);
	s->n_readaheads--;
}

static void run_ahead(struct cfs_job *job)
{
	struct readahead *a = (struct readahead *)job;
	struct cfs_store *s = a->store;
	const struct cfs_tier_slot *t = &s->tiers[0];

	pthread_mutex_lock(&s->prefetch_lock);
	a->begun = true;
	a->since_ms = cfs_now_ms();
	pthread_mutex_unlock(&s->prefetch_lock);
	t->ops->ahead(t->tier, &a->id, a->off, a->len);
	pthread_mutex_lock(&s->prefetch_lock);
	if (!a->abandoned)
		unlist(s, a);
	pthread_mutex_unlock(&s->prefetch_lock);
	free(a);
}

/* With the lock: removes the oldest read-ahead if it is late. True: it hangs in the tier. */
static bool drop_late(struct cfs_store *s, struct cfs_block *ret_hangs)
{
	struct readahead *a = TAILQ_FIRST(&s->readaheads);
	bool hangs;

	if (!a || cfs_now_ms() - a->since_ms < s->local_timeout_ms)
		return false;
	hangs = a->begun;
	if (!hangs && !cfs_workers_cancel(s->local_workers, &a->job))
		return false;
	unlist(s, a);
	a->abandoned = true;
	*ret_hangs = a->id;
	if (!hangs)
		free(a);
	return hangs;
}

int cfs_local_ahead(struct cfs_store *s, const struct cfs_block *b, uint32_t off, uint32_t len)
{
	struct cfs_block stuck;
	struct readahead *a;
	bool hangs;

	if (!s->tiers[0].ops->ahead)
		return -EOPNOTSUPP;
	a = calloc(1, sizeof(*a));
	if (!a)
		return -ENOMEM;
	*a = (struct readahead){.job.run = run_ahead,
				.store = s,
				.id = *b,
				.off = off,
				.len = len,
				.since_ms = cfs_now_ms()};
	pthread_mutex_lock(&s->prefetch_lock);
	hangs = s->n_readaheads == AHEAD_MAX && drop_late(s, &stuck);
	if (s->n_readaheads < AHEAD_MAX && cfs_workers_try_submit(s->local_workers, &a->job) == 0) {
		TAILQ_INSERT_TAIL(&s->readaheads, a, link);
		s->n_readaheads++;
		a = NULL;
	}
	pthread_mutex_unlock(&s->prefetch_lock);
	if (hangs)
		cfs_route_abandon(s, 0, &stuck);
	if (!a)
		return 0;
	free(a);
	return -EAGAIN;
}
