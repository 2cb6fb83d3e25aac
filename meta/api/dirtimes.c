/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every created or removed name changes its directory's times. Threads that create names in one
 * directory would queue for its record. Therefore the times are batched here: every answer of this
 * mount shows them at once, and one thread stores them a little later.
 *
 *	changed ──> pending ──store()──> stored ──> dropped
 *
 * The ctime shows concurrent changes by other clients: a time replaces, and overlays, only a record
 * whose ctime is at most `until`. `until` is the time itself, or the ctime of a later change that
 * left the mtime alone. A stored time still overlays the answers to calls that began before it was
 * stored, because they may have read the record earlier.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/activity.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/workers.h"
#include "meta/api/core.h"
#include "meta/api/dirtimes.h"
#include "meta/quota/inomap.h"

enum {
	LIMIT = 16384,	  /* directories; beyond it, the changing thread stores the times */
	KEEP_S = 60,	  /* longer than a call lasts */
	IDLE_MS = 600000, /* wake-up interval of the idle thread */
	STORE_MS = 3000,  /* how long stopping waits for the last store */
	RETRY_MS = 10000,
};

struct dir {
	cfs_ino_t ino;
	struct timespec time, until;
	struct timespec stored; /* wall clock; zero: pending */
};

struct cfs_dirtimes {
	pthread_mutex_t lock; /* protects all fields but n */
	pthread_cond_t wake;
	struct cfs_inomap dirs; /* of struct dir */
	size_t n_pending;
	cfs_deadline_t due; /* when the pending ones are stored */
	pthread_t thread;   /* started by the first change */
	bool running, stopping;
	_Atomic size_t n; /* dirs.n, read without the lock */
};

int cfs_dirtimes_create(struct cfs_dirtimes **ret)
{
	struct cfs_dirtimes *t = calloc(1, sizeof(*t));

	if (!t)
		return -ENOMEM;
	pthread_mutex_init(&t->lock, NULL);
	cfs_cond_init(&t->wake);
	cfs_inomap_init(&t->dirs, sizeof(struct dir));
	*ret = t;
	return 0;
}

static bool is_later(struct timespec a, struct timespec b)
{
	return cfs_timespec_cmp(a, b) > 0;
}

static struct timespec later_of(struct timespec a, struct timespec b)
{
	return is_later(a, b) ? a : b;
}

static bool is_pending(const struct dir *d)
{
	return d->time.tv_sec && !d->stored.tv_sec;
}

/* ---- storing ---- */

static bool is_over(const struct dir *d, struct timespec now)
{
	return !is_pending(d) && now.tv_sec - d->stored.tv_sec > KEEP_S;
}

/* Drops stored times that no running call needs. all: drops all stored times. */
static void drop_stored(struct cfs_dirtimes *t, struct timespec now, bool all)
{
	struct cfs_inomap kept;
	struct dir *d = NULL, *copy;

	cfs_inomap_init(&kept, sizeof(struct dir));
	while ((d = cfs_inomap_next(&t->dirs, d))) {
		if (all ? !is_pending(d) : is_over(d, now))
			continue;
		copy = cfs_inomap_add(&kept, d->ino);
		if (!copy) {
			cfs_inomap_destroy(&kept);
			return;
		}
		*copy = *d;
	}
	cfs_inomap_destroy(&t->dirs);
	t->dirs = kept;
	atomic_store_explicit(&t->n, kept.n, memory_order_release);
}

static int by_ino(const void *a, const void *b)
{
	const struct cfs_dir_time *x = a, *y = b;

	return CFS_COMPARE(x->dir, y->dir);
}

/* *ret: malloc'ed. */
static int collect(struct cfs_dirtimes *t, struct cfs_dir_time **ret, size_t *ret_n)
{
	struct dir *d = NULL;
	size_t n = 0;

	*ret_n = 0;
	*ret = NULL;
	if (!t->n_pending)
		return 0;
	*ret = calloc(t->n_pending, sizeof(**ret));
	if (!*ret)
		return -ENOMEM;
	while ((d = cfs_inomap_next(&t->dirs, d)))
		if (is_pending(d))
			(*ret)[n++] = (struct cfs_dir_time){d->ino, d->time, d->until};
	qsort(*ret, n, sizeof(**ret), by_ino);
	*ret_n = n;
	return 0;
}

static void mark_stored(struct cfs_dirtimes *t, const struct cfs_dir_time *v, size_t n)
{
	struct timespec now = cfs_wall();

	for (size_t i = 0; i < n; i++) {
		struct dir *d = cfs_inomap_find(&t->dirs, v[i].dir);

		if (!d || !is_pending(d) || cfs_timespec_cmp(d->time, v[i].time) ||
		    cfs_timespec_cmp(d->until, v[i].until))
			continue;
		d->stored = now;
		t->n_pending--;
	}
}

int cfs_dirtimes_store(struct cfs_meta *m, const struct cfs_ctx *ctx)
{
	struct cfs_dirtimes *t = m->dirtimes;
	struct cfs_dir_time *v;
	size_t n;
	int rc;

	pthread_mutex_lock(&t->lock);
	rc = collect(t, &v, &n);
	t->due = cfs_deadline_in(m->conf.skip_dir_mtime_ms);
	pthread_mutex_unlock(&t->lock);
	if (!rc && n) {
		cfs_activity_wait(CFS_WAIT_META, 0, "times of directories");
		rc = m->eng->ops->touch_dirs(m->eng, ctx, v, n);
		cfs_activity_wait_end();
	}
	pthread_mutex_lock(&t->lock);
	if (rc)
		t->due = cfs_deadline_in(m->conf.skip_dir_mtime_ms + RETRY_MS);
	else
		mark_stored(t, v, n);
	pthread_mutex_unlock(&t->lock);
	free(v);
	return rc;
}

static void *run(void *arg)
{
	struct cfs_meta *m = arg;
	struct cfs_dirtimes *t = m->dirtimes;
	struct cfs_ctx ctx;
	int rc;

	pthread_mutex_lock(&t->lock);
	while (!t->stopping) {
		if (!t->n_pending) {
			drop_stored(t, cfs_wall(), false);
			cfs_cond_wait(&t->wake, &t->lock,
				      cfs_deadline_in(t->dirs.n ? KEEP_S * 1000 : IDLE_MS));
			continue;
		}
		if (!cfs_deadline_passed(t->due)) {
			cfs_cond_wait(&t->wake, &t->lock, t->due);
			continue;
		}
		pthread_mutex_unlock(&t->lock);
		ctx = cfs_ctx_internal(CFS_MIN(m->conf.timeout_ms, (uint64_t)STORE_MS));
		rc = cfs_dirtimes_store(m, &ctx);
		if (rc)
			cfs_warn("cannot store the times of directories, keeping them for the next "
				 "try: url=%s error=%s",
				 m->masked_url, cfs_errname(rc));
		pthread_mutex_lock(&t->lock);
	}
	pthread_mutex_unlock(&t->lock);
	return NULL;
}

void cfs_dirtimes_stop(struct cfs_meta *m, const struct cfs_ctx *ctx)
{
	struct cfs_dirtimes *t = m->dirtimes;
	bool running;
	int rc;

	pthread_mutex_lock(&t->lock);
	running = t->running;
	t->running = false;
	t->stopping = true;
	pthread_cond_broadcast(&t->wake);
	pthread_mutex_unlock(&t->lock);
	if (running)
		pthread_join(t->thread, NULL);
	pthread_mutex_lock(&t->lock);
	t->stopping = false;
	pthread_mutex_unlock(&t->lock);
	rc = cfs_dirtimes_store(m, ctx);
	if (rc)
		cfs_warn("the last changes of directories' times are not stored: url=%s error=%s",
			 m->masked_url, cfs_errname(rc));
}

void cfs_dirtimes_destroy(struct cfs_dirtimes *t)
{
	if (!t)
		return;
	cfs_inomap_destroy(&t->dirs);
	pthread_cond_destroy(&t->wake);
	pthread_mutex_destroy(&t->lock);
	free(t);
}

/* ---- changes ---- */

static void wake(struct cfs_meta *m, struct cfs_dirtimes *t, uint64_t in_ms)
{
	t->due = cfs_deadline_in(in_ms);
	if (!t->running && !t->stopping)
		t->running = !cfs_thread_start("meta-dirtimes", run, m, &t->thread);
	else
		pthread_cond_signal(&t->wake);
}

static void make_pending(struct cfs_meta *m, struct cfs_dirtimes *t, struct dir *d)
{
	bool first = !t->n_pending;

	t->n_pending += !is_pending(d);
	d->stored = (struct timespec){0};
	/* Without a delay the changing thread stores the times. */
	if ((first || !t->running) && m->conf.skip_dir_mtime_ms)
		wake(m, t, m->conf.skip_dir_mtime_ms);
}

/* False: there is no room. */
static bool note(struct cfs_meta *m, struct cfs_dirtimes *t, cfs_ino_t ino, struct timespec time)
{
	struct dir *d;

	if (t->dirs.n >= LIMIT && t->n_pending <= LIMIT / 2)
		drop_stored(t, time, true);
	d = t->dirs.n < LIMIT ? cfs_inomap_add(&t->dirs, ino) : cfs_inomap_find(&t->dirs, ino);
	if (!d)
		return false;
	atomic_store_explicit(&t->n, t->dirs.n, memory_order_release);
	if (!is_later(time, d->time))
		return true;
	make_pending(m, t, d);
	d->time = time;
	d->until = later_of(d->until, time);
	return true;
}

void cfs_dirtimes_changed(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t dir,
			  const struct cfs_attr *attr)
{
	struct cfs_dirtimes *t = m->dirtimes;
	struct cfs_dir_time one = {.dir = dir, .time = ctx->now};
	bool noted;
	int rc;

	if (cfs_ino_is_trash(dir))
		return;
	/* Times must advance even when another client with a clock ahead of ours has set them. */
	if (attr && attr->type == CFS_TYPE_DIR && !is_later(one.time, attr->ctime)) {
		one.time = attr->ctime;
		one.time.tv_nsec += 1000;
		if (one.time.tv_nsec >= 1000000000) {
			one.time.tv_sec++;
			one.time.tv_nsec -= 1000000000;
		}
	}
	one.until = one.time;
	pthread_mutex_lock(&t->lock);
	noted = note(m, t, dir, one.time);
	pthread_mutex_unlock(&t->lock);
	if (noted && m->conf.skip_dir_mtime_ms)
		return;
	rc = m->eng->ops->touch_dirs(m->eng, ctx, &one, 1);
	if (rc)
		cfs_warn("cannot store the times of a directory: inode=%llu error=%s",
			 (unsigned long long)dir, cfs_errname(rc));
	pthread_mutex_lock(&t->lock);
	if (!rc)
		mark_stored(t, &one, 1);
	else if (noted)
		wake(m, t, RETRY_MS);
	pthread_mutex_unlock(&t->lock);
}

void cfs_dirtimes_set(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t dir,
		      const struct cfs_attr *attr, bool mtime)
{
	struct cfs_dirtimes *t = m->dirtimes;
	struct dir *d;

	if (attr->type != CFS_TYPE_DIR || !atomic_load_explicit(&t->n, memory_order_acquire))
		return;
	pthread_mutex_lock(&t->lock);
	d = cfs_inomap_find(&t->dirs, dir);
	if (d && mtime && !is_later(d->time, attr->ctime)) {
		t->n_pending -= is_pending(d);
		*d = (struct dir){.ino = dir};
	} else if (d && !mtime && d->time.tv_sec && is_later(attr->ctime, d->until) &&
		   (is_pending(d) || !is_later(ctx->now, d->stored))) {
		/* When this change reached the record first, the engine did not store the time. */
		make_pending(m, t, d);
		d->until = attr->ctime;
	}
	pthread_mutex_unlock(&t->lock);
}

/* ---- answers ---- */

bool cfs_dirtimes_any(struct cfs_meta *m)
{
	return atomic_load_explicit(&m->dirtimes->n, memory_order_acquire) != 0;
}

void cfs_dirtimes_show(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t dir,
		       struct cfs_attr *attr)
{
	struct cfs_dirtimes *t = m->dirtimes;
	const struct dir *d;

	if (attr->type != CFS_TYPE_DIR || !cfs_dirtimes_any(m))
		return;
	pthread_mutex_lock(&t->lock);
	d = cfs_inomap_find(&t->dirs, dir);
	if (d && (is_pending(d) || !is_later(ctx->now, d->stored)) &&
	    !is_later(attr->ctime, d->until) &&
	    (!is_later(attr->mtime, d->time) || is_later(attr->mtime, d->until))) {
		attr->mtime = d->time;
		attr->ctime = later_of(attr->ctime, d->time);
	}
	pthread_mutex_unlock(&t->lock);
}
