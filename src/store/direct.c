/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads from a local tier: just the range, into pages that only the reader holds. The kernel keeps
 * what is behind the tier in its own cache; another copy here would cost more than it saves, while
 * few pages that are used again and again stay in the processor's cache. What is read ahead goes no
 * farther than the kernel's cache.
 *
 * What would have to wait for a disk is done by a worker. One that takes too long is left behind
 * with its pages, and the reader goes the long way.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/workers.h"
#include "store-internal.h"

/* Up to it a miss is cheap enough to be found out by trying. */
#define SMALL_MAX (CFS_PAGE_LARGE / 2)
#define PAGES_MAX 9 /* a request of the kernel, 1 MiB, wherever it begins */
#define AHEAD_MAX 4 /* ranges of blocks that are being read ahead */

struct pages {
	struct cfs_page *v[PAGES_MAX];
	struct iovec iov[PAGES_MAX];
	int n;
};

struct direct {
	struct cfs_job job; /* first */
	struct cfs_store *store;
	struct cfs_block id;
	uint32_t off;
	cfs_deadline_t deadline;
	struct pages pages;

	pthread_mutex_t lock; /* protects what follows */
	pthread_cond_t ended;
	unsigned refs;
	bool started, done;
	ssize_t result;
};

struct ahead {
	struct cfs_job job; /* first */
	struct cfs_store *store;
	struct cfs_block id;
	uint32_t off, len;
};

static void unref_pages(struct pages *p)
{
	while (p->n > 0)
		cfs_page_unref(p->v[--p->n]);
}

/* Pages that end where those of the block do, unless one is enough: the tier likes it aligned. */
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

static void unref(struct direct *w)
{
	bool last;

	pthread_mutex_lock(&w->lock);
	last = --w->refs == 0;
	pthread_mutex_unlock(&w->lock);
	if (!last)
		return;
	unref_pages(&w->pages);
	pthread_cond_destroy(&w->ended);
	pthread_mutex_destroy(&w->lock);
	free(w);
}

static ssize_t ask(struct cfs_store *s, const struct cfs_block *b, uint32_t off,
		   const struct pages *p, bool nowait, cfs_deadline_t deadline)
{
	const struct cfs_tier_slot *t = &s->tiers[0];

	return t->ops->get(t->tier, b, off, p->iov, p->n, nowait, deadline);
}

static void run(struct cfs_job *job)
{
	struct direct *w = (struct direct *)job;
	ssize_t n;

	pthread_mutex_lock(&w->lock);
	w->started = true;
	pthread_mutex_unlock(&w->lock);
	n = ask(w->store, &w->id, w->off, &w->pages, false, w->deadline);
	pthread_mutex_lock(&w->lock);
	w->result = n;
	w->done = true;
	pthread_cond_signal(&w->ended);
	pthread_mutex_unlock(&w->lock);
	unref(w);
}

/* The result of the worker; -ETIMEDOUT. */
static ssize_t ask_worker(struct cfs_store *s, const struct cfs_block *b, uint32_t off,
			  const struct pages *pages, cfs_deadline_t deadline)
{
	struct direct *w = calloc(1, sizeof(*w));
	ssize_t n = -ETIMEDOUT;
	bool started;
	int i, r;

	if (!w)
		return -ENOMEM;
	if (cfs_cond_init(&w->ended) < 0) {
		free(w);
		return -ENOMEM;
	}
	deadline = cfs_deadline_min(deadline, cfs_deadline_in(s->tier_timeout_ms));
	pthread_mutex_init(&w->lock, NULL);
	w->job.run = run;
	w->store = s;
	w->id = *b;
	w->off = off;
	w->deadline = deadline;
	w->pages = *pages;
	for (i = 0; i < pages->n; i++)
		cfs_page_ref(pages->v[i]);
	w->refs = 2;
	r = cfs_workers_submit(s->downloads, &w->job, deadline);
	if (r < 0)
		unref(w);
	pthread_mutex_lock(&w->lock);
	while (r == 0 && !w->done)
		r = cfs_cond_wait(&w->ended, &w->lock, deadline);
	if (w->done)
		n = w->result;
	started = w->started;
	pthread_mutex_unlock(&w->lock);
	if (n == -ETIMEDOUT && started)
		cfs_store_leave_tier(s, 0, b);
	else if (n == -ETIMEDOUT && cfs_workers_cancel(s->downloads, &w->job))
		unref(w);
	unref(w);
	return n;
}

static bool holds(struct cfs_store *s, const struct cfs_block *b)
{
	const struct cfs_tier_slot *t = &s->tiers[0];

	return s->n_tiers > 0 && t->ops->local && t->ops->holds && t->ops->holds(t->tier, b);
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

int cfs_direct_read(struct cfs_store *s, const struct cfs_block *b, uint32_t off, uint32_t len,
		    cfs_deadline_t deadline, struct cfs_segs *ret)
{
	struct pages pages;
	ssize_t n;
	int r;

	if (len > (PAGES_MAX - 1) * CFS_PAGE_LARGE || s->n_tiers == 0 || !s->tiers[0].ops->local)
		return 0;
	if (len > SMALL_MAX && !holds(s, b))
		return 0;
	r = get_pages(s, off, len, len > SMALL_MAX ? 0 : deadline, &pages);
	if (r == -ETIMEDOUT && len > SMALL_MAX)
		return 0;
	if (r < 0)
		return r == -ENOMEM ? r : -EIO;
	n = ask(s, b, off, &pages, true, deadline);
	if (n == -EAGAIN)
		n = ask_worker(s, b, off, &pages, deadline);
	if (n == (ssize_t)len) {
		r = give(&pages, ret);
		return r < 0 ? r : 1;
	}
	unref_pages(&pages);
	return n == -ENOMEM ? -ENOMEM : 0;
}

static void run_ahead(struct cfs_job *job)
{
	struct ahead *a = (struct ahead *)job;
	struct cfs_store *s = a->store;
	const struct cfs_tier_slot *t = &s->tiers[0];

	t->ops->ahead(t->tier, &a->id, a->off, a->len);
	atomic_fetch_sub(&s->aheads, 1);
	free(a);
}

int cfs_direct_ahead(struct cfs_store *s, const struct cfs_block *b, uint32_t off, uint32_t len)
{
	struct ahead *a;

	if (!holds(s, b) || !s->tiers[0].ops->ahead)
		return 0;
	a = calloc(1, sizeof(*a));
	if (!a)
		return -ENOMEM;
	*a = (struct ahead){.job.run = run_ahead, .store = s, .id = *b, .off = off, .len = len};
	if (atomic_fetch_add(&s->aheads, 1) < AHEAD_MAX &&
	    cfs_workers_try_submit(s->downloads, &a->job) == 0)
		return 1;
	atomic_fetch_sub(&s->aheads, 1);
	free(a);
	return -EAGAIN;
}
