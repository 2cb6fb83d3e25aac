/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small reads from a local tier: just the range, into pages that only the reader holds. The kernel
 * keeps what is behind the tier in its own cache; another copy here would cost more than it saves,
 * and a slot of 128 KiB more still.
 *
 * What would have to wait for a disk is done by a worker. One that takes too long is left behind
 * with its page, and the reader goes the long way.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/workers.h"
#include "store-internal.h"

#define SMALL_MAX (CFS_PAGE_LARGE / 2)

struct direct {
	struct cfs_job job; /* first */
	struct cfs_store *store;
	struct cfs_block id;
	uint32_t off, len;
	cfs_deadline_t deadline;
	struct cfs_page *page;

	pthread_mutex_t lock; /* protects what follows */
	pthread_cond_t ended;
	unsigned refs;
	bool started, done;
	ssize_t result;
};

static void unref(struct direct *w)
{
	bool last;

	pthread_mutex_lock(&w->lock);
	last = --w->refs == 0;
	pthread_mutex_unlock(&w->lock);
	if (!last)
		return;
	cfs_page_unref(w->page);
	pthread_cond_destroy(&w->ended);
	pthread_mutex_destroy(&w->lock);
	free(w);
}

static ssize_t ask(struct cfs_store *s, const struct cfs_block *b, uint32_t off, uint32_t len,
		   struct cfs_page *page, bool nowait, cfs_deadline_t deadline)
{
	const struct cfs_tier_slot *t = &s->tiers[0];
	struct iovec iov = {.iov_base = page->data, .iov_len = len};

	return t->ops->get(t->tier, b, off, &iov, 1, nowait, deadline);
}

static void run(struct cfs_job *job)
{
	struct direct *w = (struct direct *)job;
	ssize_t n;

	pthread_mutex_lock(&w->lock);
	w->started = true;
	pthread_mutex_unlock(&w->lock);
	n = ask(w->store, &w->id, w->off, w->len, w->page, false, w->deadline);
	pthread_mutex_lock(&w->lock);
	w->result = n;
	w->done = true;
	pthread_cond_signal(&w->ended);
	pthread_mutex_unlock(&w->lock);
	unref(w);
}

/* The result of the worker; -ETIMEDOUT. */
static ssize_t ask_worker(struct cfs_store *s, const struct cfs_block *b, uint32_t off,
			  uint32_t len, struct cfs_page *page, cfs_deadline_t deadline)
{
	struct direct *w = calloc(1, sizeof(*w));
	ssize_t n = -ETIMEDOUT;
	bool started;
	int r;

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
	w->len = len;
	w->deadline = deadline;
	w->page = cfs_page_ref(page);
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

int cfs_direct_read(struct cfs_store *s, const struct cfs_block *b, uint32_t off, uint32_t len,
		    cfs_deadline_t deadline, struct cfs_segs *ret)
{
	struct cfs_page *page;
	ssize_t n;
	int r;

	if (len > SMALL_MAX || s->n_tiers == 0 || !s->tiers[0].ops->local)
		return 0;
	r = cfs_page_get(s->pool, len, CFS_USE_READ, deadline, &page);
	if (r < 0)
		return r == -ENOMEM ? r : -EIO;
	n = ask(s, b, off, len, page, true, deadline);
	if (n == -EAGAIN)
		n = ask_worker(s, b, off, len, page, deadline);
	if (n == (ssize_t)len)
		r = cfs_segs_add(ret, page, 0, len);
	if (n == (ssize_t)len && r == 0)
		return 1;
	cfs_page_unref(page);
	return r < 0 ? r : n == -ENOMEM ? -ENOMEM : 0;
}
