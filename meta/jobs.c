/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removing what metadata no longer names (volume-format section 9): the data of files just deleted,
 * by a few workers; and what was left behind, hour by hour, by whichever mount claims the job.
 */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "meta/core-internal.h"

enum { MAX_QUEUED = 100, DEFAULT_DELETES = 2, PAGE = 1000 };
enum {
	TICK_MS = 300 * 1000,
	HOURLY_S = 3600 * 9 / 10,
	CHANGELOG_S = 300 * 9 / 10,
	BUDGET_MS = 50 * 60 * 1000,
	LEFT_BEHIND_S = 3600,
	STOP_GRACE_MS = 3000,
};

struct cfs_jobs {
	struct cfs_workers *workers;
	struct cfs_ticker *ticker;
	_Atomic bool stopping;	  /* no new work, hourly jobs end */
	_Atomic uint64_t stop_at; /* and what is queued may take until then */
	_Atomic bool overflowed;  /* files were deleted that the queue had no room for */
};

/* One file or slice to remove. */
struct task {
	struct cfs_job job;
	struct cfs_meta *m;
	enum { TASK_FILE, TASK_SLICE, TASK_SWEEP } kind;
	uint64_t id; /* inode or slice */
	uint64_t size;
};

int cfs_jobs_create(struct cfs_meta *m, struct cfs_jobs **ret)
{
	struct cfs_jobs *j = calloc(1, sizeof(*j));

	(void)m;
	if (!j)
		return -ENOMEM;
	*ret = j;
	return 0;
}

void cfs_jobs_destroy(struct cfs_jobs *j)
{
	free(j);
}

/* ---- slices and files ---- */

/* An unmount right after an rm -r need not leave the data to another mount's hourly job. */
static bool grace_over(struct cfs_meta *m)
{
	return atomic_load(&m->jobs->stopping) &&
	       cfs_deadline_passed(atomic_load(&m->jobs->stop_at));
}

/* What fails stays in the tables, and the hourly job tries again. */
static int delete_slice(struct cfs_meta *m, uint64_t id, uint32_t size)
{
	struct cfs_ctx ctx;
	int rc;

	if (!m->hooks.delete_slice)
		return -EAGAIN;
	rc = m->hooks.delete_slice(m->hooks.arg, id, size);
	if (rc)
		return rc;
	ctx = cfs_ctx_internal(m->conf.timeout_ms);
	return m->eng->ops->drop_slice(m->eng, &ctx, id, size);
}

struct slices {
	struct cfs_dead_slice *v;
	size_t n, cap;
};

static int keep_slice(void *arg, uint64_t id, uint32_t size)
{
	struct slices *s = arg;

	if (s->n == s->cap) {
		size_t cap = s->cap ? s->cap * 2 : 16;
		struct cfs_dead_slice *v = reallocarray(s->v, cap, sizeof(*v));

		if (!v)
			return -ENOMEM;
		s->v = v;
		s->cap = cap;
	}
	s->v[s->n++] = (struct cfs_dead_slice){id, size};
	return 0;
}

/* How many of them are gone. */
static size_t delete_slices(struct cfs_meta *m, struct slices *s)
{
	size_t i, gone = 0;
	int rc = 0;

	for (i = 0; i < s->n && !grace_over(m); i++) {
		rc = delete_slice(m, s->v[i].id, s->v[i].size);
		gone += !rc;
		if (rc && rc != -EAGAIN)
			cfs_warn("cannot remove the objects of a slice, trying again within the "
				 "hour: slice=%llu error=%s",
				 (unsigned long long)s->v[i].id, cfs_errname(rc));
	}
	s->n = 0;
	return gone;
}

static int delete_file(struct cfs_meta *m, cfs_ino_t ino, uint64_t length)
{
	struct slices dead = {0};
	struct cfs_ctx ctx;
	int rc;

	do {
		ctx = cfs_ctx_internal(m->conf.timeout_ms);
		rc = m->eng->ops->delete_chunk(m->eng, &ctx, ino, keep_slice, &dead);
		delete_slices(m, &dead);
	} while (rc == 0 && !grace_over(m));
	free(dead.v);
	if (rc != 1)
		return rc;
	ctx = cfs_ctx_internal(m->conf.timeout_ms);
	return m->eng->ops->drop_delfile(m->eng, &ctx, ino, length);
}

/* Time that one round of a job may take. */
static bool time_is_up(struct cfs_meta *m, cfs_deadline_t end)
{
	return atomic_load(&m->jobs->stopping) || cfs_deadline_passed(end);
}

struct delfiles {
	struct delfile {
		cfs_ino_t ino;
		uint64_t length;
	} v[PAGE];
	size_t n;
};

static int keep_delfile(void *arg, cfs_ino_t ino, uint64_t length, int64_t when_s)
{
	struct delfiles *d = arg;

	(void)when_s;
	if (d->n < PAGE)
		d->v[d->n++] = (struct delfile){ino, length};
	return 0;
}

/* All files deleted before that time, by whomever. One that fails does not hold up the others. */
static int delete_files(struct cfs_meta *m, int64_t before_s, cfs_deadline_t end)
{
	struct delfiles *d = malloc(sizeof(*d));
	size_t i, done;
	int rc = 0, rc2;

	if (!d)
		return -ENOMEM;
	do {
		struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);

		d->n = done = 0;
		rc2 = m->eng->ops->each_delfile(m->eng, &ctx, before_s, PAGE, keep_delfile, d);
		if (rc2 < 0)
			rc = rc2;
		for (i = 0; i < d->n && !time_is_up(m, end); i++) {
			rc2 = delete_file(m, d->v[i].ino, d->v[i].length);
			if (rc2 < 0)
				rc = rc2;
			else
				done++;
		}
	} while (d->n == PAGE && done && !time_is_up(m, end));
	free(d);
	return rc;
}

static void run_task(struct cfs_job *job)
{
	struct task *t = (struct task *)job;
	struct cfs_meta *m = t->m;
	int rc = 0;

	if (!grace_over(m) && t->kind == TASK_FILE)
		rc = delete_file(m, t->id, t->size);
	else if (!grace_over(m) && t->kind == TASK_SLICE)
		rc = delete_slice(m, t->id, (uint32_t)t->size);
	if (rc && rc != -EAGAIN)
		cfs_warn("cannot remove deleted data, the hourly job tries again: %s=%llu error=%s",
			 t->kind == TASK_FILE ? "inode" : "slice", (unsigned long long)t->id,
			 cfs_errname(rc));
	free(t);
	/* Whatever was refused is in the tables by now. */
	if (!grace_over(m) && atomic_exchange(&m->jobs->overflowed, false))
		delete_files(m, cfs_wall_s() + 1, cfs_deadline_in(BUDGET_MS));
}

static void submit(struct cfs_meta *m, const struct task *task)
{
	struct task *t;

	if (!atomic_load(&m->started) || !m->jobs->workers || atomic_load(&m->jobs->stopping))
		return;
	t = malloc(sizeof(*t));
	if (!t)
		return;
	*t = *task;
	t->m = m;
	t->job.run = run_task;
	/* A full queue means that somebody deletes much; the tables remember the rest. */
	if (cfs_workers_try_submit(m->jobs->workers, &t->job)) {
		free(t);
		atomic_store(&m->jobs->overflowed, true);
	}
}

void cfs_jobs_delete_file(struct cfs_meta *m, cfs_ino_t ino, uint64_t length)
{
	struct task t = {.kind = TASK_FILE, .id = ino, .size = length};

	submit(m, &t);
}

void cfs_jobs_delete_slice(struct cfs_meta *m, uint64_t id, uint32_t size)
{
	struct task t = {.kind = TASK_SLICE, .id = id, .size = size};

	submit(m, &t);
}

void cfs_jobs_sweep(struct cfs_meta *m)
{
	struct task t = {.kind = TASK_SWEEP};

	atomic_store(&m->jobs->overflowed, true);
	submit(m, &t);
}

/* ---- hourly ---- */

static int clean_files(struct cfs_meta *m, cfs_deadline_t end)
{
	return delete_files(m, cfs_wall_s() - LEFT_BEHIND_S, end);
}

int cfs_jobs_clean_slices(struct cfs_meta *m, cfs_deadline_t end)
{
	struct slices dead = {0};
	size_t n, gone;
	int rc;

	do {
		struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);

		rc = m->eng->ops->each_dead_slice(m->eng, &ctx, PAGE, keep_slice, &dead);
		n = dead.n;
		gone = rc < 0 ? 0 : delete_slices(m, &dead);
	} while (n >= PAGE && gone && !time_is_up(m, end));
	free(dead.v);
	return rc;
}

static int clean_delayed(struct cfs_meta *m, cfs_deadline_t end)
{
	int64_t before_s = cfs_clock_earliest_s(m) - (int64_t)atomic_load(&m->trash_days) * 86400;
	struct slices dead = {0};
	int rc;

	do {
		struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);

		rc = m->eng->ops->expire_delayed(m->eng, &ctx, before_s, keep_slice, &dead);
		delete_slices(m, &dead);
	} while (rc == 0 && !time_is_up(m, end));
	free(dead.v);
	return rc;
}

static int trim_changelog(struct cfs_meta *m, cfs_deadline_t end)
{
	struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
	struct cfs_setting *s;
	int64_t before_s = 0;
	int rc;

	(void)end;
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
	int rc = cfs_trash_expire(m, end, &m->jobs->stopping);
	int rc2 = clean_delayed(m, end);

	return rc < 0 ? rc : rc2;
}

static void run_job(struct cfs_meta *m, const char *counter, int64_t interval_s,
		    int (*job)(struct cfs_meta *m, cfs_deadline_t end))
{
	struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
	int rc;

	if (atomic_load(&m->jobs->stopping))
		return;
	rc = m->eng->ops->claim_job(m->eng, &ctx, counter, cfs_clock_s(m), interval_s);
	if (rc == 1)
		rc = job(m, cfs_deadline_in(BUDGET_MS));
	if (rc < 0)
		cfs_warn("a background job failed, it runs again within the hour: job=%s error=%s",
			 counter, cfs_errname(rc));
}

static void tick(void *arg)
{
	struct cfs_meta *m = arg;

	run_job(m, "lastCleanupFiles", HOURLY_S, clean_files);
	run_job(m, "nextCleanupSlices", HOURLY_S, cfs_jobs_clean_slices);
	run_job(m, "lastCleanupTrash", HOURLY_S, clean_trash);
	if (atomic_load(&m->changelog))
		run_job(m, "lastCleanupChangelog", CHANGELOG_S, trim_changelog);
}

int cfs_jobs_start(struct cfs_meta *m)
{
	struct cfs_jobs *j = m->jobs;
	unsigned threads =
		m->conf.max_deletes > 0 ? (unsigned)m->conf.max_deletes : DEFAULT_DELETES;
	int rc;

	atomic_store(&j->stopping, false);
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
