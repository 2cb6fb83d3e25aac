/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/api/ids.h"

#include <errno.h>
#include <inttypes.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "meta/api/call.h"
#include "meta/api/core.h"

/* How long a write waits for the bucket to tell which slice ids are in use. */
#define USED_MS 5000
/* Batches that are tried when the database went back in time again and again. */
#define TRIES 8

int cfs_ids_init(struct cfs_ids *ids, const char *counter, int64_t batch, int64_t gap)
{
	int rc = cfs_cond_init(&ids->refilled);

	if (rc)
		return rc;
	pthread_mutex_init(&ids->lock, NULL);
	ids->counter = counter;
	ids->batch = batch;
	ids->gap = gap;
	return 0;
}

void cfs_ids_destroy(struct cfs_ids *ids)
{
	if (!ids->counter)
		return;
	pthread_cond_destroy(&ids->refilled);
	pthread_mutex_destroy(&ids->lock);
}

/* 1: blocks have these ids. 0: none is known to. */
static int in_use(struct cfs_meta *m, struct cfs_ids *ids, const struct cfs_ctx *ctx, int64_t first)
{
	int rc;

	if (ids != &m->slice_ids || !atomic_load(&m->started) || !m->hooks.slices_used)
		return 0;
	rc = m->hooks.slices_used(m->hooks.arg, (uint64_t)first, (uint64_t)ids->batch,
				  cfs_deadline_min(ctx->deadline, cfs_deadline_in(USED_MS)));
	if (rc >= 0 || rc == -ECANCELED)
		return rc;
	if (!ids->told)
		cfs_warn("the bucket does not tell whether slice ids are in use, and they are used "
			 "unchecked: slice=%" PRId64 " error=%s",
			 first, cfs_errname(rc));
	ids->told = true;
	return 0;
}

/* An inode number is part of the call that makes the inode; a slice id has a call of its own. */
static int add(struct cfs_meta *m, struct cfs_ids *ids, const struct cfs_ctx *ctx, int64_t n,
	       int64_t *ret_first)
{
	const struct cfs_engine_ops *ops = m->eng->ops;

	if (ids == &m->inode_ids)
		return ops->add_counter(m->eng, ctx, ids->counter, n, ret_first);
	return (int)CFS_CALL(c, m, CFS_META_OP_counter, ctx,
			     ops->add_counter(m->eng, c.ctx, ids->counter, n, ret_first));
}

/*
 * A database that went back in time gives ids again. Blocks of the lost ones may be in the bucket
 * and in caches, and would pass for those of other files.
 */
static int allocate(struct cfs_meta *m, struct cfs_ids *ids, const struct cfs_ctx *ctx,
		    int64_t *ret_first)
{
	int64_t first = 0, skip = 0;
	unsigned tries = 0;
	int rc;

	do {
		rc = add(m, ids, ctx, skip + ids->batch, &first);
		if (rc)
			return rc;
		first += skip;
		rc = (uint64_t)first < ids->end ? 1 : in_use(m, ids, ctx, first);
		if (rc <= 0)
			break;
		skip = ids->gap;
		cfs_warn("the database went back in time, numbers that it may have forgotten are "
			 "left out: name=%s first=%" PRId64 " count=%" PRId64,
			 ids->counter, first, skip);
	} while (++tries < TRIES);
	if (rc == 1)
		rc = -EIO;
	*ret_first = first;
	return rc;
}

/* Called, and returns, with the lock held; it is not held during the engine call. */
static int refill(struct cfs_meta *m, struct cfs_ids *ids, const struct cfs_ctx *ctx)
{
	int64_t first = 0;
	int rc;

	ids->refilling = true;
	pthread_mutex_unlock(&ids->lock);
	rc = allocate(m, ids, ctx, &first);
	pthread_mutex_lock(&ids->lock);
	ids->refilling = false;
	if (!rc) {
		ids->next = (uint64_t)first;
		ids->end = (uint64_t)(first + ids->batch);
	}
	pthread_cond_broadcast(&ids->refilled);
	return rc;
}

int cfs_ids_next(struct cfs_meta *m, struct cfs_ids *ids, const struct cfs_ctx *ctx, uint64_t *ret)
{
	/* Inode 1 is the root, slice 0 a hole. */
	const uint64_t lowest = ids == &m->inode_ids ? 2 : 1;
	int rc = 0;
	CFS_LOCK_GUARD(&ids->lock);

	while (!rc && ids->next >= ids->end) {
		if (ids->refilling)
			rc = cfs_cond_wait(&ids->refilled, &ids->lock, ctx->deadline);
		else
			rc = refill(m, ids, ctx);
		if (ids->next < lowest)
			ids->next = lowest;
	}
	if (!rc)
		*ret = ids->next++;
	return rc;
}
