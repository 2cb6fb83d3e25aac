/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Durability of what was stored. A sync of the object store covers all puts that had ended when it
 * began, so concurrent callers share one; later callers share the next.
 *
 * The kernel reports a failure to one sync only, and the layers below do not retry. So puts since the
 * last successful sync are recorded here, for every caller whose data they have.
 */
#include <errno.h>

#include "base/activity.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "store-internal.h"

/*
 * ---- sets of slices ----
 *
 * The process may be killed between any two stores to memory, and its successor uses the sets as they
 * are. So the ends of ranges ascend at every instruction, a range is extended before the ranges that
 * it absorbs are removed, and a range that is moved exists twice in between.
 */

static void set(_Atomic uint64_t *at, uint64_t value)
{
	atomic_store_explicit(at, value, memory_order_release);
}

/* Makes runs i and i + 1 one. */
static void join(struct cfs_slice_runs *l, unsigned i)
{
	unsigned n = l->n;

	set(&l->run[i].last, l->run[i + 1].last);
	for (i++; i + 1 < n; i++) {
		set(&l->run[i].last, l->run[i + 1].last);
		set(&l->run[i].first, l->run[i + 1].first);
	}
	atomic_store(&l->n, n - 1);
}

static void join_nearest(struct cfs_slice_runs *l)
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
static unsigned find(const struct cfs_slice_runs *l, uint64_t id)
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

static bool contains(const struct cfs_slice_runs *l, uint64_t id)
{
	unsigned i = find(l, id);

	return i < l->n && l->run[i].first <= id;
}

/* Between run i - 1 and run i. */
static void insert(struct cfs_slice_runs *l, unsigned i, uint64_t first, uint64_t last)
{
	unsigned n = l->n, k;

	set(&l->run[n].first, i < n ? l->run[n - 1].first : first);
	set(&l->run[n].last, i < n ? l->run[n - 1].last : last);
	atomic_store(&l->n, n + 1);
	if (i == n)
		return;
	for (k = n - 1; k > i; k--) {
		set(&l->run[k].first, l->run[k - 1].first);
		set(&l->run[k].last, l->run[k - 1].last);
	}
	set(&l->run[i].first, first);
	set(&l->run[i].last, last);
}

static void add_run(struct cfs_slice_runs *l, uint64_t first, uint64_t last)
{
	unsigned i = find(l, first ? first - 1 : 0);

	if (i == l->n || l->run[i].first > last + 1) {
		if (l->n == CFS_STORE_RUNS) {
			join_nearest(l);
			i = find(l, first);
		}
		/* The merged range covers those between the two. */
		if (!contains(l, first))
			insert(l, i, first, last);
		return;
	}
	if (first < l->run[i].first)
		set(&l->run[i].first, first);
	while (i + 1 < l->n && l->run[i + 1].first <= last + 1)
		join(l, i);
	if (last > l->run[i].last)
		set(&l->run[i].last, last);
}

static void move_all(struct cfs_slice_runs *to, struct cfs_slice_runs *from)
{
	unsigned i;

	for (i = 0; i < from->n; i++)
		add_run(to, from->run[i].first, from->run[i].last);
	atomic_store(&from->n, 0);
}

/* ---- puts ---- */

uint64_t cfs_sync_begin(struct cfs_store *s)
{
	struct cfs_sync *y = &s->sync;
	CFS_LOCK_GUARD(&y->lock);

	return y->ended + 1;
}

int cfs_sync_check(struct cfs_store *s, uint64_t begun)
{
	struct cfs_sync *y = &s->sync;
	CFS_LOCK_GUARD(&y->lock);

	return y->failed >= begun ? -EIO : 0;
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
		add_run(&y->slices->fresh, slice, slice);
	pthread_mutex_unlock(&y->lock);
	return r;
}

bool cfs_store_is_suspect(struct cfs_store *s, uint64_t slice)
{
	struct cfs_sync *y = &s->sync;
	CFS_LOCK_GUARD(&y->lock);

	return contains(&y->slices->suspect, slice);
}

bool cfs_store_has_suspects(struct cfs_store *s)
{
	struct cfs_sync *y = &s->sync;
	CFS_LOCK_GUARD(&y->lock);

	return y->slices->suspect.n > 0;
}

/* ---- syncs ---- */

/* Called with the lock: ranges that are not durable yet. */
static void suspect_all(struct cfs_unsynced *u, const char *cause)
{
	if (u->covered.n || u->fresh.n)
		cfs_err("the object store could not make blocks durable: every file with data "
			"stored since the last sync gets EIO from fsync until that is written "
			"again: error=%s",
			cause);
	move_all(&u->suspect, &u->covered);
	move_all(&u->suspect, &u->fresh);
}

/* Called with the lock. Puts made during the failed sync may be lost with it. */
static void sync_failed(struct cfs_sync *y, int err)
{
	y->failed = y->ended;
	y->err = err;
	suspect_all(y->slices, cfs_errname(err));
}

static void run_syncs(struct cfs_job *job)
{
	struct cfs_store *s = caa_container_of(job, struct cfs_store, sync.job);
	struct cfs_sync *y = &s->sync;
	int r;

	pthread_mutex_lock(&y->lock);
	while (y->started < y->wanted) {
		y->started++;
		move_all(&y->slices->covered, &y->slices->fresh);
		pthread_mutex_unlock(&y->lock);
		cfs_activity_wait(CFS_WAIT_OBJECT_SYNC, 0, NULL);
		r = s->object->ops->sync(s->object, cfs_deadline_in(s->put_timeout_ms));
		cfs_activity_wait_end();
		pthread_mutex_lock(&y->lock);
		y->ended = y->started;
		if (r < 0)
			sync_failed(y, r);
		atomic_store(&y->slices->covered.n, 0);
		pthread_cond_broadcast(&y->changed);
	}
	y->running = false;
	pthread_mutex_unlock(&y->lock);
}

uint64_t cfs_store_moment(struct cfs_store *s)
{
	CFS_LOCK_GUARD(&s->sync.lock);

	return s->sync.started;
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

int cfs_store_hand_over(struct cfs_store *s, cfs_deadline_t deadline)
{
	struct cfs_sync *y = &s->sync;
	uint64_t moment = cfs_store_moment(s);
	int r = 0;

	cfs_store_sync_since(s, moment, deadline);
	pthread_mutex_lock(&y->lock);
	if (s->object->ops->sync && y->ended <= moment)
		r = -EIO;
	else
		atomic_store(&y->slices->handed_over, 1);
	pthread_mutex_unlock(&y->lock);
	return r;
}

void cfs_store_take_back(struct cfs_store *s)
{
	atomic_store(&s->sync.slices->handed_over, 0);
}

/* Continues with the ranges of the previous process. */
static void go_on(struct cfs_unsynced *u, bool reported)
{
	u->fresh.n = CFS_MIN(u->fresh.n, CFS_STORE_RUNS);
	u->covered.n = CFS_MIN(u->covered.n, CFS_STORE_RUNS);
	u->suspect.n = CFS_MIN(u->suspect.n, CFS_STORE_RUNS);
	move_all(&u->fresh, &u->covered);
	if (!atomic_exchange(&u->handed_over, 0) && !reported)
		suspect_all(u, "unknown, as the process that has stored them is gone");
}

int cfs_sync_init(struct cfs_store *s, const struct cfs_store_conf *conf)
{
	s->sync.slices = conf->unsynced ? conf->unsynced : &s->sync.own;
	go_on(s->sync.slices, conf->reports_unsynced);
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
