/* SPDX-License-Identifier: Apache-2.0 */

#include "meta/api/ids.h"
#include "meta/api/core.h"

int cfs_ids_init(struct cfs_ids *ids, const char *counter, int64_t batch)
{
	int rc = cfs_cond_init(&ids->refilled);

	if (rc)
		return rc;
	pthread_mutex_init(&ids->lock, NULL);
	ids->counter = counter;
	ids->batch = batch;
	return 0;
}

void cfs_ids_destroy(struct cfs_ids *ids)
{
	if (!ids->counter)
		return;
	pthread_cond_destroy(&ids->refilled);
	pthread_mutex_destroy(&ids->lock);
}

/* Called, and returns, with the lock held; it is not held during the engine call. */
static int refill(struct cfs_meta *m, struct cfs_ids *ids, const struct cfs_ctx *ctx)
{
	int64_t first = 0;
	int rc;

	ids->refilling = true;
	pthread_mutex_unlock(&ids->lock);
	rc = m->eng->ops->add_counter(m->eng, ctx, ids->counter, ids->batch, &first);
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

	pthread_mutex_lock(&ids->lock);
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
	pthread_mutex_unlock(&ids->lock);
	return rc;
}
