/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small reads from a local tier: just the range, into pages that only the reader holds. The kernel
 * keeps what is behind the tier in its own cache; another copy here would cost more than it saves,
 * and a slot of 128 KiB more still.
 *
 * What would have to wait for a disk is done by a worker. One that is past the reader's deadline is
 * left behind with its page.
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
	bool done;
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
	struct iovec iov = {.iov_base = page->data, .iov_len = len};
	ssize_t n = -ENOENT;
	unsigned i;

	for (i = 0; i < s->n_tiers && s->tiers[i].ops->local; i++) {
		n = s->tiers[i].ops->get(s->tiers[i].tier, b, off, &iov, 1, nowait, deadline);
		if (n == (ssize_t)len || n == -EAGAIN)
			break;
	}
	return n;
}

static void run(struct cfs_job *job)
{
	struct direct *w = (struct direct *)job;
	ssize_t n = ask(w->store, &w->id, w->off, w->len, w->page, false, w->deadline);

	pthread_mutex_lock(&w->lock);
	w->result = n;
	w->done = true;
	pthread_cond_signal(&w->ended);
	pthread_mutex_unlock(&w->lock);
	unref(w);
}

/* The result of the worker; -EIO at the deadline. */
static ssize_t ask_worker(struct cfs_store *s, const struct cfs_block *b, uint32_t off,
			  uint32_t len, struct cfs_page *page, cfs_deadline_t deadline)
{
	struct direct *w = calloc(1, sizeof(*w));
	ssize_t n = -EIO;
	int r;

	if (!w)
		return -ENOMEM;
	if (cfs_cond_init(&w->ended) < 0) {
		free(w);
		return -ENOMEM;
	}
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
	pthread_mutex_unlock(&w->lock);
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
	return r < 0 ? r : n == -EIO || n == -ENOMEM ? (int)n : 0;
}
