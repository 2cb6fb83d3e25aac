/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes usage to the engine, each change exactly once. A write stays unchanged until the engine
 * has confirmed it. Each write has a mark, which the engine stores in the session together with the
 * change. When an answer is lost, the write is repeated with the same mark; the engine skips a
 * write whose mark the session already has. A session stores only the last mark, so writes run one
 * after the other, and a failed write is repeated before the next one.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "meta/quota/quota-internal.h"

int cfs_quotas_begin_flush(struct cfs_quotas *q, cfs_deadline_t deadline)
{
	int rc = 0;
	CFS_LOCK_GUARD(&q->lock);

	while (q->flushing && !rc)
		rc = cfs_cond_wait(&q->flushed, &q->lock, deadline);
	if (!q->flushing)
		rc = 0;
	q->flushing |= !rc;
	return rc;
}

void cfs_quotas_end_flush(struct cfs_quotas *q)
{
	pthread_mutex_lock(&q->lock);
	q->flushing = false;
	pthread_cond_broadcast(&q->flushed);
	pthread_mutex_unlock(&q->lock);
}

void cfs_quotas_drop_write(struct cfs_quotas *q)
{
	free(q->write.mark);
	free(q->write.dirs);
	free(q->write.deltas);
	q->write = (struct usage_write){0};
}

/* The mark: the JSON object of the session's info with a member "Flush", a random number. */
static int make_mark(struct cfs_quotas *q)
{
	int len = q->session ? (int)strlen(q->session) - 1 : 0;

	if (len > 0 && asprintf(&q->write.mark, "%.*s,\"Flush\":\"%016llx\"}", len, q->session,
				(unsigned long long)cfs_random_u64()) < 0) {
		q->write.mark = NULL;
		return -ENOMEM;
	}
	return 0;
}

static int take_usage(struct cfs_quotas *q)
{
	struct usage_write *w = &q->write;
	int rc = q->eng->ops->inline_usage ? 0 : make_mark(q);

	if (rc || q->eng->ops->inline_usage)
		return rc;
	w->n_dirs = cfs_usage_batch_take(&q->batch, &w->space, &w->inodes, &w->dirs);
	w->begun = w->n_dirs || w->space || w->inodes;
	return 0;
}

/*
 * Takes the pending changes of at most CFS_QUOTAS_AT_ONCE limits from index *at on; advances *at.
 */
static int take_limits(struct cfs_quotas *q, size_t *at)
{
	struct usage_write *w = &q->write;
	int rc = make_mark(q);

	if (rc)
		return rc;
	pthread_mutex_lock(&q->lock);
	w->deltas =
		q->n ? calloc(CFS_MIN(q->n, (size_t)CFS_QUOTAS_AT_ONCE), sizeof(*w->deltas)) : NULL;
	if (q->n && !w->deltas)
		rc = -ENOMEM;
	for (; *at < q->n && w->n_deltas < CFS_QUOTAS_AT_ONCE && !rc; ++*at) {
		const struct limit *l = &q->v[*at];

		if (!l->pending_space && !l->pending_inodes)
			continue;
		w->deltas[w->n_deltas] = l->q;
		w->deltas[w->n_deltas].used_space = l->pending_space;
		w->deltas[w->n_deltas++].used_inodes = l->pending_inodes;
	}
	pthread_mutex_unlock(&q->lock);
	w->begun = w->n_deltas > 0;
	return rc;
}

static void limits_stored(struct cfs_quotas *q)
{
	const struct usage_write *w = &q->write;
	size_t i;
	CFS_LOCK_GUARD(&q->lock);

	for (i = 0; i < w->n_deltas; i++) {
		const struct cfs_quota *d = &w->deltas[i];
		struct limit *l = cfs_quotas_find(q, d->kind, d->key);

		if (!l)
			continue;
		l->pending_space -= d->used_space;
		l->pending_inodes -= d->used_inodes;
		l->q.used_space += d->used_space;
		l->q.used_inodes += d->used_inodes;
	}
}

int cfs_quotas_write(struct cfs_quotas *q, const struct cfs_ctx *ctx)
{
	const struct cfs_engine_ops *ops = q->eng->ops;
	const struct usage_write *w = &q->write;
	int rc = 0;

	if (w->n_deltas)
		rc = ops->add_quota_usage(q->eng, ctx, w->mark, w->deltas, w->n_deltas);
	else if (w->begun)
		rc = ops->add_usage(q->eng, ctx, w->mark, w->space, w->inodes, w->dirs, w->n_dirs);
	if (!rc) {
		atomic_fetch_add(&q->flushed_space, w->space);
		atomic_fetch_add(&q->flushed_inodes, w->inodes);
		limits_stored(q);
		cfs_quotas_drop_write(q);
	}
	return rc;
}

int cfs_quotas_flush(struct cfs_quotas *q, const struct cfs_ctx *ctx)
{
	int rc = cfs_quotas_begin_flush(q, ctx->deadline);
	size_t at = 0;
	bool more = true;

	if (rc)
		return rc;
	if (q->write.begun)
		rc = cfs_quotas_write(q, ctx);
	if (!rc)
		rc = take_usage(q);
	if (!rc)
		rc = cfs_quotas_write(q, ctx);
	while (!rc && more) {
		rc = take_limits(q, &at);
		more = q->write.n_deltas == CFS_QUOTAS_AT_ONCE;
		if (!rc)
			rc = cfs_quotas_write(q, ctx);
	}
	/* Frees a write that has no changes, or whose preparation failed. */
	if (!q->write.begun)
		cfs_quotas_drop_write(q);
	cfs_quotas_end_flush(q);
	return rc;
}
