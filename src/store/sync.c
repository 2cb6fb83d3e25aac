/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Durability of what was stored. A sync of the object store covers everybody whose puts had ended
 * when it began, so callers that meet share one; those who come while it runs share the next.
 *
 * Only one sync hears of a failure, and what failed is not tried again by anybody below: so what
 * was put since the last good one is remembered here, for all whom it concerns.
 */
#include <errno.h>
#include <string.h>

#include "base/activity.h"
#include "base/log.h"
#include "store-internal.h"

/* ---- sets of slices ---- */

/* Makes runs i and i + 1 one. */
static void join(struct cfs_sync_slices *l, unsigned i)
{
	l->run[i].first = CFS_MIN(l->run[i].first, l->run[i + 1].first);
	l->run[i].last = CFS_MAX(l->run[i].last, l->run[i + 1].last);
	l->n--;
	memmove(&l->run[i + 1], &l->run[i + 2], (l->n - i - 1) * sizeof(l->run[0]));
}

static void join_nearest(struct cfs_sync_slices *l)
{
	unsigned i, best = 0;

	for (i = 1; i + 1 < l->n; i++) {
		if (l->run[i + 1].first - l->run[i].last <
		    l->run[best + 1].first - l->run[best].last)
			best = i;
	}
	join(l, best);
}

/* The first run that ends at or behind id, or n. */
static unsigned find(const struct cfs_sync_slices *l, uint64_t id)
{
	unsigned low = 0, high = l->n, mid;

	while (low < high) {
		mid = (low + high) / 2;
		if (l->run[mid].last < id)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static bool contains(const struct cfs_sync_slices *l, uint64_t id)
{
	unsigned i = find(l, id);

	return i < l->n && l->run[i].first <= id;
}

static void add_run(struct cfs_sync_slices *l, uint64_t first, uint64_t last)
{
	unsigned i = find(l, first);

	if (i < l->n && l->run[i].first <= first && last <= l->run[i].last)
		return;
	if (l->n == CFS_SYNC_RUNS) {
		join_nearest(l);
		i = find(l, first);
	}
	memmove(&l->run[i + 1], &l->run[i], (l->n - i) * sizeof(l->run[0]));
	l->run[i].first = first;
	l->run[i].last = last;
	l->n++;
	while (i + 1 < l->n && l->run[i + 1].first <= l->run[i].last + 1)
		join(l, i);
	if (i && l->run[i - 1].last + 1 >= l->run[i].first)
		join(l, i - 1);
}

static void move_all(struct cfs_sync_slices *to, struct cfs_sync_slices *from)
{
	unsigned i;

	for (i = 0; i < from->n; i++)
		add_run(to, from->run[i].first, from->run[i].last);
	from->n = 0;
}

/* ---- puts ---- */

uint64_t cfs_sync_begin(struct cfs_store *s)
{
	struct cfs_sync *y = &s->sync;
	uint64_t first;

	pthread_mutex_lock(&y->lock);
	first = y->ended + 1;
	pthread_mutex_unlock(&y->lock);
	return first;
}

int cfs_sync_check(struct cfs_store *s, uint64_t begun)
{
	struct cfs_sync *y = &s->sync;
	int r;

	pthread_mutex_lock(&y->lock);
	r = y->failed >= begun ? -EIO : 0;
	pthread_mutex_unlock(&y->lock);
	return r;
}

int cfs_sync_note(struct cfs_store *s, uint64_t begun, uint64_t slice)
{
	struct cfs_sync *y = &s->sync;
	int r;

	if (!s->object->ops->sync)
		return 0;
	pthread_mutex_lock(&y->lock);
	r = y->failed >= begun ? -EIO : 0;
	if (r == 0)
		add_run(&y->fresh, slice, slice);
	pthread_mutex_unlock(&y->lock);
	return r;
}

bool cfs_store_is_suspect(struct cfs_store *s, uint64_t slice)
{
	struct cfs_sync *y = &s->sync;
	bool suspect;

	pthread_mutex_lock(&y->lock);
	suspect = contains(&y->suspect, slice);
	pthread_mutex_unlock(&y->lock);
	return suspect;
}

bool cfs_store_has_suspects(struct cfs_store *s)
{
	struct cfs_sync *y = &s->sync;
	bool any;

	pthread_mutex_lock(&y->lock);
	any = y->suspect.n > 0;
	pthread_mutex_unlock(&y->lock);
	return any;
}

/* ---- syncs ---- */

/* With the lock. What was put while it ran may have failed in it, too. */
static void sync_failed(struct cfs_sync *y, int err)
{
	y->failed = y->ended;
	y->err = err;
	if (y->covered.n || y->fresh.n)
		cfs_err("the object store could not make blocks durable: every file with data "
			"stored since the last sync gets EIO from fsync until that is written "
			"again: error=%s",
			cfs_errname(err));
	move_all(&y->suspect, &y->covered);
	move_all(&y->suspect, &y->fresh);
}

static void run_syncs(struct cfs_job *job)
{
	struct cfs_store *s =
		(struct cfs_store *)((char *)job - offsetof(struct cfs_store, sync.job));
	struct cfs_sync *y = &s->sync;
	int r;

	pthread_mutex_lock(&y->lock);
	while (y->started < y->wanted) {
		y->started++;
		move_all(&y->covered, &y->fresh);
		pthread_mutex_unlock(&y->lock);
		cfs_activity_wait(CFS_WAIT_OBJECT_SYNC, 0, NULL);
		r = s->object->ops->sync(s->object, cfs_deadline_in(s->put_timeout_ms));
		cfs_activity_wait_end();
		pthread_mutex_lock(&y->lock);
		y->ended = y->started;
		if (r < 0)
			sync_failed(y, r);
		y->covered.n = 0;
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
