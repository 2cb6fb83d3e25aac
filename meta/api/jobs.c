/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removes data without references (volume-format section 9). A few workers remove the data of files
 * that were just deleted. Jobs remove leftovers soon after a mount has begun and then hourly, each
 * on the mount that claims it.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/activity.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/unwanted.h"
#include "base/workers.h"
#include "meta/api/clock.h"
#include "meta/api/clone.h"
#include "meta/api/core.h"
#include "meta/api/jobs.h"
#include "meta/api/release.h"
#include "meta/api/trash.h"

enum { MAX_QUEUED = 1024, DEFAULT_DELETES = 2, PAGE = 1000, BATCH = 512 };
enum {
	TICK_MS = 15 * 1000,
	TICKS_OF_JOBS = 20,
	HOURLY_S = 3600 * 9 / 10,
	CHANGELOG_S = 300 * 9 / 10,
	BUDGET_MS = 50 * 60 * 1000,
	LEFT_BEHIND_S = 3600,
	QUIET_MS = 60 * 1000,
	STOP_GRACE_MS = 3000,
	CLONE_LIFE_S = 24 * 3600,
};

/* One file or slice to remove. */
struct deletion {
	enum { DELETE_FILE, DELETE_SLICE, DELETE_STRAY } kind;
	uint64_t id; /* inode or slice */
	uint64_t size;
};

struct cfs_jobs {
	struct cfs_workers *workers;
	unsigned threads;
	struct cfs_ticker *ticker;
	unsigned ticks;
	int64_t started_s;	  /* by the engine's clock */
	_Atomic bool stopping;	  /* no more work is accepted, and hourly jobs end */
	_Atomic uint64_t stop_at; /* deadline of the work that is queued then */
	_Atomic bool overflowed;  /* the queue had no room for some deleted files */
	_Atomic uint64_t told_ms; /* when the log last had a deletion that failed */

	/* Protects what follows; held for memory accesses only. */
	pthread_mutex_t lock;
	struct deletion queue[MAX_QUEUED]; /* a ring */
	size_t first, n;
};

/* Has a worker look into the queue. */
struct task {
	struct cfs_job job;
	struct cfs_meta *m;
};

int cfs_jobs_create(struct cfs_jobs **ret)
{
	struct cfs_jobs *j = calloc(1, sizeof(*j));

	if (!j)
		return -ENOMEM;
	pthread_mutex_init(&j->lock, NULL);
	*ret = j;
	return 0;
}

void cfs_jobs_destroy(struct cfs_jobs *j)
{
	if (!j)
		return;
	pthread_mutex_destroy(&j->lock);
	free(j);
}

/* ---- slices and files ---- */

/* Queued deletions go on until stop_at: an unmount right after rm -r leaves no data behind. */
bool cfs_jobs_cut_short(struct cfs_meta *m)
{
	return atomic_load(&m->jobs->stopping) &&
	       cfs_deadline_passed(atomic_load(&m->jobs->stop_at));
}

/* Where one deletion fails, all do: a full disk, an object store that refuses. */
bool cfs_jobs_may_log(struct cfs_meta *m)
{
	uint64_t now = cfs_now_ms(), last = atomic_load(&m->jobs->told_ms);

	return (!last || now - last >= QUIET_MS) &&
	       atomic_compare_exchange_strong(&m->jobs->told_ms, &last, now);
}

/* Removes the rows of a deleted file. Adds its slices to *dead, and releases these when many. */
static int delete_rows(struct cfs_meta *m, cfs_ino_t ino, struct cfs_release *dead)
{
	int rc;

	do {
		struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);

		rc = m->eng->ops->delete_chunk(m->eng, &ctx, ino, cfs_release_add, dead);
		if (dead->n >= PAGE)
			cfs_release_slices(m, dead, true);
	} while (rc == 0 && !cfs_jobs_cut_short(m));
	return rc;
}

/*
 * Removes a batch of files, and releases their slices together with those in *dead. The records of
 * the files are removed last. Returns how many were removed. *ret_error: the last error, if any.
 */
static size_t delete_batch(struct cfs_meta *m, struct deletion *v, size_t n,
			   struct cfs_release *dead, int *ret_error)
{
	size_t i, done = 0;
	int rc;

	for (i = 0; i < n && !cfs_jobs_cut_short(m); i++) {
		rc = delete_rows(m, v[i].id, dead);
		if (rc == 1)
			v[done++] = v[i];
		if (rc < 0) {
			*ret_error = rc;
			if (cfs_jobs_may_log(m))
				cfs_warn("cannot remove deleted data, the hourly job tries again: "
					 "inode=%llu error=%s",
					 (unsigned long long)v[i].id, cfs_errname(rc));
		}
	}
	cfs_release_slices(m, dead, true);
	for (i = 0; i < done; i++) {
		struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);

		rc = m->eng->ops->drop_delfile(m->eng, &ctx, v[i].id, v[i].size);
		if (rc < 0)
			*ret_error = rc;
	}
	return done;
}

/* Whether a round of an hourly job must end. */
static bool time_is_up(struct cfs_meta *m, cfs_deadline_t end)
{
	return atomic_load(&m->jobs->stopping) || cfs_deadline_passed(end);
}

struct delfiles {
	struct deletion v[PAGE];
	size_t n;
};

static int keep_delfile(void *arg, cfs_ino_t ino, uint64_t length, int64_t when_s)
{
	struct delfiles *d = arg;

	if (d->n < PAGE)
		d->v[d->n++] = (struct deletion){DELETE_FILE, ino, length};
	return 0;
}

/*
 * Removes all files that any client deleted before that time, and adds their number to *count. A
 * failure delays no other file.
 */
static int delete_files(struct cfs_meta *m, int64_t before_s, cfs_deadline_t end, uint64_t *count)
{
	struct delfiles *d = malloc(sizeof(*d));
	struct cfs_release dead = {0};
	size_t i, k, done;
	int rc = 0, rc2;

	if (!d)
		return -ENOMEM;
	do {
		struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);

		d->n = done = 0;
		rc2 = m->eng->ops->each_delfile(m->eng, &ctx, before_s, PAGE, keep_delfile, d);
		if (rc2 < 0)
			rc = rc2;
		for (i = 0; i < d->n && !time_is_up(m, end); i += k) {
			k = CFS_MIN(d->n - i, (size_t)BATCH);
			done += delete_batch(m, d->v + i, k, &dead, &rc);
		}
		*count += done;
	} while (d->n == PAGE && done && !time_is_up(m, end));
	cfs_release_free(&dead);
	free(d);
	return rc;
}

/* Takes a share of the queue that leaves work for each of the other workers. */
static size_t take(struct cfs_jobs *j, struct deletion v[BATCH])
{
	size_t i, n;
	CFS_LOCK_GUARD(&j->lock);

	n = CFS_MIN(CFS_DIV_UP(j->n, j->threads), (size_t)BATCH);
	for (i = 0; i < n; i++)
		v[i] = j->queue[(j->first + i) % MAX_QUEUED];
	j->first = (j->first + n) % MAX_QUEUED;
	j->n -= n;
	return n;
}

static bool is_cut_short(void *arg)
{
	return cfs_jobs_cut_short(arg);
}

static void run_task(struct cfs_job *job)
{
	struct cfs_meta *m = ((struct task *)job)->m;
	struct cfs_release dead = {0}, strays = {0};
	struct deletion v[BATCH];
	size_t i, n, files;
	uint64_t count = 0;
	int rc = 0;

	free(job);
	cfs_unwanted_set(is_cut_short, m);
	while (!cfs_jobs_cut_short(m) && (n = take(m->jobs, v)) > 0) {
		for (i = files = 0; i < n; i++) {
			if (v[i].kind == DELETE_FILE)
				v[files++] = v[i];
			else
				cfs_release_add(v[i].kind == DELETE_STRAY ? &strays : &dead,
						v[i].id, (uint32_t)v[i].size);
		}
		cfs_release_slices(m, &strays, false);
		delete_batch(m, v, files, &dead, &rc);
	}
	cfs_release_free(&strays);
	cfs_release_free(&dead);
	/* By now the table has the files that the queue had no room for. */
	if (!cfs_jobs_cut_short(m) && atomic_exchange(&m->jobs->overflowed, false))
		delete_files(m, cfs_wall_s() + 1, cfs_deadline_in(BUDGET_MS), &count);
	cfs_unwanted_set(NULL, NULL);
}

static void wake(struct cfs_meta *m)
{
	struct task *t = malloc(sizeof(*t));

	if (!t)
		return;
	t->m = m;
	t->job.run = run_task;
	/* When the workers' queue is full, tasks in it will take this work. */
	if (cfs_workers_try_submit(m->jobs->workers, &t->job))
		free(t);
}

static bool is_working(struct cfs_meta *m)
{
	return atomic_load(&m->started) && m->jobs->workers && !atomic_load(&m->jobs->stopping);
}

static void submit(struct cfs_meta *m, const struct deletion *what)
{
	struct cfs_jobs *j = m->jobs;

	if (!is_working(m))
		return;
	pthread_mutex_lock(&j->lock);
	/* The tables have the deletions that a full queue refuses. */
	if (j->n == MAX_QUEUED)
		atomic_store(&j->overflowed, true);
	else
		j->queue[(j->first + j->n++) % MAX_QUEUED] = *what;
	pthread_mutex_unlock(&j->lock);
	wake(m);
}

void cfs_jobs_delete_file(struct cfs_meta *m, cfs_ino_t ino, uint64_t length)
{
	submit(m, &(struct deletion){DELETE_FILE, ino, length});
}

void cfs_jobs_delete_slice(struct cfs_meta *m, uint64_t id, uint32_t size, bool committed)
{
	submit(m, &(struct deletion){committed ? DELETE_SLICE : DELETE_STRAY, id, size});
}

void cfs_jobs_sweep(struct cfs_meta *m)
{
	if (!is_working(m))
		return;
	atomic_store(&m->jobs->overflowed, true);
	wake(m);
}

/* ---- hourly ---- */

/* The first run takes all deleted files: another mount may be removing some of them, too. */
static int clean_files(struct cfs_meta *m, cfs_deadline_t end)
{
	uint64_t count = 0;

	return delete_files(m, cfs_wall_s() - (m->jobs->ticks ? LEFT_BEHIND_S : -1), end, &count);
}

int cfs_jobs_clean_slices(struct cfs_meta *m, cfs_deadline_t end)
{
	struct cfs_release dead = {0};
	size_t n, gone;
	int rc;

	do {
		struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);

		rc = m->eng->ops->each_dead_slice(m->eng, &ctx, PAGE, cfs_release_add, &dead);
		n = dead.n;
		gone = rc < 0 ? 0 : cfs_release_slices(m, &dead, true);
	} while (n >= PAGE && gone && !time_is_up(m, end));
	cfs_release_free(&dead);
	return rc;
}

static int expire_delayed(struct cfs_meta *m, cfs_deadline_t end, uint64_t *count)
{
	int64_t before_s = cfs_clock_earliest_s(m) - (int64_t)atomic_load(&m->trash_days) * 86400;
	struct cfs_release dead = {0};
	int rc;

	do {
		struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);

		rc = m->eng->ops->expire_delayed(m->eng, &ctx, before_s, cfs_release_add, &dead);
		*count += rc == 0;
		if (rc || dead.n >= PAGE)
			cfs_release_slices(m, &dead, true);
	} while (rc == 0 && !time_is_up(m, end));
	cfs_release_slices(m, &dead, true);
	cfs_release_free(&dead);
	return rc < 0 ? rc : 0;
}

static int trim_changelog(struct cfs_meta *m, cfs_deadline_t end)
{
	struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
	struct cfs_setting *s;
	int64_t before_s = 0;
	int rc;

	rc = cfs_meta_setting(m, &s);
	if (rc)
		return rc;
	if (s->changelog_max_age_s > 0)
		before_s = cfs_clock_earliest_s(m) - s->changelog_max_age_s;
	rc = m->eng->ops->trim_changelog(m->eng, &ctx, before_s, s->changelog_max_lines);
	cfs_setting_free(s);
	return rc;
}

static int clean_trash(struct cfs_meta *m, cfs_deadline_t end)
{
	uint64_t count = 0;
	int rc = cfs_trash_expire(m, end, &m->jobs->stopping);
	int rc2 = expire_delayed(m, end, &count);

	return rc < 0 ? rc : rc2;
}

static void run_job(struct cfs_meta *m, const char *counter, int64_t interval_s,
		    int (*job)(struct cfs_meta *m, cfs_deadline_t end))
{
	struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
	int rc;

	if (atomic_load(&m->jobs->stopping))
		return;
	cfs_activity_wait(CFS_WAIT_META, 0, counter);
	rc = m->eng->ops->claim_job(m->eng, &ctx, counter, cfs_clock_s(m), interval_s);
	if (rc == 1)
		rc = job(m, cfs_deadline_in(BUDGET_MS));
	cfs_activity_wait_end();
	if (rc < 0 && rc != -ECANCELED)
		cfs_warn("a background job failed, it runs again within the hour: job=%s error=%s",
			 counter, cfs_errname(rc));
}

/* The first run removes leftovers, unless another mount has done so since this one began. */
static void tick(void *arg)
{
	struct cfs_meta *m = arg;
	struct cfs_jobs *j = m->jobs;
	int64_t interval_s = j->ticks ? HOURLY_S : CFS_MAX(cfs_clock_s(m) - j->started_s, 1);

	cfs_unwanted_set(is_cut_short, m);
	if (j->ticks % TICKS_OF_JOBS == 0) {
		run_job(m, "lastCleanupFiles", interval_s, clean_files);
		run_job(m, "nextCleanupSlices", interval_s, cfs_jobs_clean_slices);
		run_job(m, "lastCleanupTrash", interval_s, clean_trash);
		if (atomic_load(&m->host.changelog))
			run_job(m, "lastCleanupChangelog", CHANGELOG_S, trim_changelog);
	}
	j->ticks++;
}

int cfs_jobs_start(struct cfs_meta *m)
{
	struct cfs_jobs *j = m->jobs;
	unsigned threads =
		m->conf.max_deletes > 0 ? (unsigned)m->conf.max_deletes : DEFAULT_DELETES;
	int rc;

	atomic_store(&j->stopping, false);
	j->threads = threads;
	j->ticks = 0;
	j->started_s = cfs_clock_s(m);
	if (m->conf.read_only)
		return 0;
	rc = cfs_workers_create("meta-delete", threads, MAX_QUEUED, &j->workers);
	if (rc || m->conf.no_bgjob)
		return rc;
	return cfs_ticker_start("meta-jobs", TICK_MS, tick, m, &j->ticker);
}

void cfs_jobs_stop(struct cfs_meta *m)
{
	struct cfs_jobs *j = m->jobs;

	atomic_store(&j->stop_at, cfs_deadline_in(STOP_GRACE_MS));
	atomic_store(&j->stopping, true);
	if (j->ticker)
		cfs_ticker_stop(j->ticker);
	if (j->workers)
		cfs_workers_destroy(j->workers);
	j->ticker = NULL;
	j->workers = NULL;
}

/* ---- the same for administration, which leaves the slices to its own checks ---- */

struct clones {
	cfs_ino_t v[PAGE];
	size_t n;
	int64_t before_s;
};

static int keep_clone(void *arg, const struct cfs_row *row)
{
	struct clones *c = arg;

	if (row->added_s < c->before_s && c->n < PAGE)
		c->v[c->n++] = row->ino;
	return 0;
}

static int reap_clones(struct cfs_meta *m, uint64_t *count)
{
	struct clones c = {.before_s = cfs_clock_earliest_s(m) - CLONE_LIFE_S};
	int rc = cfs_meta_scan(m, CFS_TABLE_DETACHED, keep_clone, &c);
	size_t i;

	for (i = 0; i < c.n && !rc; i++) {
		rc = cfs_clone_discard(m, c.v[i]);
		*count += rc == 0;
	}
	return rc;
}

int cfs_meta_reap(struct cfs_meta *m, struct cfs_reaped *ret)
{
	int rc = cfs_core_check_writable(m), rc2, rc3;

	*ret = (struct cfs_reaped){0};
	if (rc)
		return rc;
	rc = reap_clones(m, &ret->clones);
	rc2 = delete_files(m, cfs_wall_s() - LEFT_BEHIND_S, UINT64_MAX, &ret->files);
	rc3 = expire_delayed(m, UINT64_MAX, &ret->delayed);
	return rc ? rc : rc2 ? rc2 : rc3;
}
