/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Durability of what was stored. A sync of the object store covers everybody whose puts had ended
 * when it began, so callers that meet share one; those who come while it runs share the next.
 */
#include <errno.h>

#include "base/activity.h"
#include "store-internal.h"

static void run_syncs(struct cfs_job *job)
{
	struct cfs_store *s =
		(struct cfs_store *)((char *)job - offsetof(struct cfs_store, sync.job));
	struct cfs_sync *y = &s->sync;
	int r;

	pthread_mutex_lock(&y->lock);
	while (y->started < y->wanted) {
		y->started++;
		pthread_mutex_unlock(&y->lock);
		cfs_activity_wait(CFS_WAIT_OBJECT_SYNC, 0, NULL);
		r = s->object->ops->sync(s->object, cfs_deadline_in(s->put_timeout_ms));
		cfs_activity_wait_end();
		pthread_mutex_lock(&y->lock);
		y->ended = y->started;
		if (r < 0) {
			y->failed = y->ended;
			y->err = r;
		}
		pthread_cond_broadcast(&y->changed);
	}
	y->running = false;
	pthread_mutex_unlock(&y->lock);
}

uint64_t cfs_store_moment(struct cfs_store *s)
{
	uint64_t now;

	pthread_mutex_lock(&s->sync.lock);
	now = s->sync.started;
	pthread_mutex_unlock(&s->sync.lock);
	return now;
}

int cfs_store_sync_since(struct cfs_store *s, uint64_t moment, cfs_deadline_t deadline)
{
	struct cfs_sync *y = &s->sync;
	uint64_t mine = moment + 1;
	int r = 0;

	if (!s->object->ops->sync)
		return 0;
	cfs_activity_wait(CFS_WAIT_OBJECT_SYNC, 0, NULL);
	pthread_mutex_lock(&y->lock);
	y->wanted = CFS_MAX(y->wanted, mine);
	if (!y->running && y->ended < mine) {
		y->job.run = run_syncs;
		r = cfs_workers_try_submit(y->worker, &y->job);
		y->running = r == 0;
	}
	while (r == 0 && y->ended < mine)
		r = cfs_cond_wait(&y->changed, &y->lock, deadline);
	if (y->ended >= mine)
		r = y->failed >= mine ? y->err : 0;
	pthread_mutex_unlock(&y->lock);
	cfs_activity_wait_end();
	return r == -ETIMEDOUT ? -EIO : r;
}

int cfs_store_sync(struct cfs_store *s, cfs_deadline_t deadline)
{
	return cfs_store_sync_since(s, cfs_store_moment(s), deadline);
}

int cfs_sync_init(struct cfs_store *s)
{
	pthread_mutex_init(&s->sync.lock, NULL);
	cfs_cond_init(&s->sync.changed);
	return cfs_workers_create("cfs-sync", 1, 1, &s->sync.worker);
}

void cfs_sync_fini(struct cfs_store *s)
{
	cfs_workers_destroy(s->sync.worker);
	pthread_cond_destroy(&s->sync.changed);
	pthread_mutex_destroy(&s->sync.lock);
}
