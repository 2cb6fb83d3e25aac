/* SPDX-License-Identifier: Apache-2.0 */
/* Writeback: the table of staged blocks by age, admission, and blocks of earlier processes. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/activity.h"
#include "base/array.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "stage-internal.h"
#include "store/store-internal.h"

#define DEFAULT_UPLOADS 20
#define WRITE_QUEUE	1024
#define TICK_MS		1000
#define DRAIN_POLL_MS	200
/* Uploads may hold that fraction (1/n) of the pool. */
#define POOL_PARTS 4
/* Staging leaves that fraction (1/n) of the space free that the cache leaves free. */
#define FREE_PARTS  2
#define SPACE_TRIES 3
/* A line that there is no room is not repeated before. */
#define FULL_QUIET_MS 600000

/* ---- the table; called with the lock held ---- */

static struct staged_bucket *bucket_of(struct cfs_stage *st, const struct cfs_block *b)
{
	uint64_t h = (b->slice + ((uint64_t)b->index << 48)) * 0x9E3779B97F4A7C15ULL;

	return &st->buckets[h >> 32 & (CFS_STAGE_BUCKETS - 1)];
}

static struct staged *find(struct cfs_stage *st, const struct cfs_block *b)
{
	struct staged *e;

	LIST_FOREACH(e, bucket_of(st, b), link)
	{
		if (cfs_block_equal(&e->id, b))
			return e;
	}
	return NULL;
}

/* Removes an entry from the list by age. Readers still find it in the table. */
static void unlist(struct cfs_stage *st, struct staged *e)
{
	TAILQ_REMOVE(&st->list, e, by_age);
	st->n--;
	st->bytes -= e->id.len;
	pthread_cond_broadcast(&st->changed);
}

void cfs_stage_list_damaged(struct cfs_stage *st, struct staged *e)
{
	unlist(st, e);
	e->state = STAGED_DAMAGED;
	st->n_damaged++;
}

void cfs_stage_free_entry(struct cfs_stage *st, struct staged *e)
{
	if (e->state == STAGED_DAMAGED)
		st->n_damaged--;
	else
		unlist(st, e);
	LIST_REMOVE(e, link);
	free(e);
}

static struct staged *new_entry(struct cache_dir *dir, const struct cfs_block *b, int64_t age_s)
{
	struct staged *e = calloc(1, sizeof(*e));

	if (e) {
		e->id = *b;
		e->dir = dir;
		e->since_ms = (int64_t)cfs_now_ms() - 1000 * age_s;
	}
	return e;
}

/* False: the block is in the table already. */
static bool add_entry(struct cfs_stage *st, struct staged *e, bool oldest)
{
	if (find(st, &e->id))
		return false;
	LIST_INSERT_HEAD(bucket_of(st, &e->id), e, link);
	if (oldest)
		TAILQ_INSERT_HEAD(&st->list, e, by_age);
	else
		TAILQ_INSERT_TAIL(&st->list, e, by_age);
	st->n++;
	st->bytes += e->id.len;
	return true;
}

/* ---- staging ---- */

/* Not for each block: writers that are faster than uploads are at the limit all the time. */
static void log_full(struct cfs_stage *st, const struct cache_dir *dir)
{
	uint64_t n, bytes;
	bool told;

	pthread_mutex_lock(&st->lock);
	told = !cfs_deadline_passed(st->full_quiet);
	if (!told)
		st->full_quiet = cfs_deadline_in(FULL_QUIET_MS);
	n = st->n;
	bytes = st->bytes;
	pthread_mutex_unlock(&st->lock);
	if (!told)
		cfs_warn("no room to stage more blocks, they are uploaded at once until there is; "
			 "staged so far: dir=%s blocks=%llu bytes=%llu",
			 dir->base, (unsigned long long)n, (unsigned long long)bytes);
}

/* -EDQUOT: there is no room; -EBUSY: an abandoned write of the same block still runs. */
static int reserve(struct cfs_stage *st, struct stage_write *w)
{
	const struct stage_write *other;
	CFS_LOCK_GUARD(&st->lock);

	if (st->n + st->n_damaged + st->pending_n >= CFS_STAGE_BLOCKS_MAX ||
	    (st->conf.size && st->bytes + st->pending_bytes + w->id.len > st->conf.size))
		return -EDQUOT;
	LIST_FOREACH(other, &st->writes, link)
	{
		if (other->id.slice == w->id.slice && other->id.index == w->id.index)
			return -EBUSY;
	}
	st->pending_n++;
	st->pending_bytes += w->id.len;
	LIST_INSERT_HEAD(&st->writes, w, link);
	w->listed = true;
	return 0;
}

static bool has_room(const struct stage_write *w)
{
	struct cfs_stage *st = w->stage;
	double ratio = st->conf.free_ratio / FREE_PARTS;

	if (cfs_stage_disk_has_room(w->dir, ratio, w->id.len))
		return true;
	cfs_disk_evict_for_staged(st->disk, w->dir, w->id.len);
	return cfs_stage_disk_has_room(w->dir, ratio, w->id.len);
}

static ssize_t run_write(struct cfs_task *task)
{
	struct stage_write *w = (struct stage_write *)task;
	struct cfs_stage *st = w->stage;
	int tries, r = -ENOSPC;

	/* A block in a directory that was moved away would be lost with this process. */
	cfs_cachedir_check_root(w->dir);
	if (!cfs_cachedir_may_stage(w->dir))
		return -EAGAIN;
	cfs_cachedir_await(w->dir, &w->id);
	/* Blocks that are written at the same time may leave each other no space. */
	for (tries = 0; tries < SPACE_TRIES && r == -ENOSPC; tries++)
		r = has_room(w) ? cfs_stage_file_write(st, w->dir, &w->id, &w->data) : -EAGAIN;
	cfs_activity_wait_end();
	w->written = r == 0;
	/* Lack of space for staging is not a disk fault: the disk still takes cached blocks. */
	if (r == -EAGAIN)
		log_full(st, w->dir);
	return r;
}

/* uncollected: the caller has timed out, and has stored the block in the object store. */
static void free_write(struct cfs_task *task, bool uncollected)
{
	struct stage_write *w = (struct stage_write *)task;
	struct cfs_stage *st = w->stage;

	if (uncollected && w->written)
		cfs_cachedir_unlink(w->dir, CFS_CACHEDIR_STAGED, &w->id);
	pthread_mutex_lock(&st->lock);
	if (w->listed)
		LIST_REMOVE(w, link);
	pthread_mutex_unlock(&st->lock);
	cfs_segs_release(&w->data);
	free(w);
}

static int new_write(struct cfs_stage *st, struct cache_dir *dir, const struct cfs_block *b,
		     const struct cfs_segs *data, struct stage_write **ret)
{
	struct stage_write *w = cfs_task_new(sizeof(*w), run_write, free_write);
	int r;

	if (!w)
		return -ENOMEM;
	w->stage = st;
	w->dir = dir;
	w->id = *b;
	cfs_segs_init(&w->data);
	r = cfs_segs_slice(&w->data, data, 0, data->len);
	if (r == 0)
		r = reserve(st, w);
	if (r == -EDQUOT)
		log_full(st, dir);
	if (r < 0) {
		cfs_task_end(&w->task);
		return r;
	}
	*ret = w;
	return 0;
}

/* Waits for half of the time at most: the other half is for the object store. */
static int write_in_time(struct stage_write *w, cfs_deadline_t deadline)
{
	struct cache_dir *dir = w->dir;
	uint64_t left_ms = cfs_deadline_left_ms(deadline) / 2;
	ssize_t result = 0;
	int r;

	r = cfs_task_wait(&w->task, w->stage->writers[dir->number],
			  cfs_deadline_in(CFS_MIN(left_ms, dir->set->conf.stall_ms)), &result);
	if (r == 0)
		r = (int)result;
	if (r < 0 && r != -EAGAIN)
		cfs_cachedir_fault(dir, "stage", r, true);
	return r;
}

/* Ends the reservation of reserve(), and enters the block in the table if it was written. */
static int settle(struct cfs_stage *st, struct cache_dir *dir, const struct cfs_block *b,
		  bool written)
{
	struct staged *e = written ? new_entry(dir, b, 0) : NULL;
	int r = written && !e ? -ENOMEM : 0;

	if (r < 0)
		cfs_cachedir_unlink(dir, CFS_CACHEDIR_STAGED, b);
	pthread_mutex_lock(&st->lock);
	st->pending_n--;
	st->pending_bytes -= b->len;
	if (e && add_entry(st, e, false))
		e = NULL;
	cfs_stage_wake(st);
	pthread_mutex_unlock(&st->lock);
	free(e);
	return r;
}

static int stage_block(struct cfs_stage *st, const struct cfs_block *b, const struct cfs_segs *data,
		       cfs_deadline_t deadline)
{
	struct cache_dir *dir = cfs_cachedirs_find(st->dirs, b);
	struct stage_write *w;
	int r, err;

	if (!cfs_cachedir_is_nameable(b))
		return -EDQUOT;
	if (!dir || !cfs_cachedir_may_stage(dir))
		return -ENODEV;
	r = new_write(st, dir, b, data, &w);
	if (r < 0)
		return r;
	r = write_in_time(w, deadline);
	err = settle(st, dir, b, r == 0);
	cfs_task_end(&w->task);
	return r < 0 ? r : err;
}

static int put(struct cfs_stage *st, const struct cfs_block *b, const struct cfs_segs *data,
	       cfs_deadline_t deadline)
{
	int r;

	/* Our own files have no field for a block's tier. */
	if (!st->conf.writeback || st->conf.read_only || b->tier ||
	    (st->conf.threshold && b->len >= st->conf.threshold))
		return -EOPNOTSUPP;
	r = stage_block(st, b, data, deadline);
	if (r < 0)
		atomic_fetch_add(&st->stat.bypassed, 1);
	return r;
}

/* cfs_disk_staged_fn. */
static struct cache_dir *staged_dir(void *stage, const struct cfs_block *b)
{
	struct cfs_stage *st = stage;
	const struct staged *e;
	CFS_LOCK_GUARD(&st->lock);

	e = find(st, b);
	return e ? e->dir : NULL;
}

static bool has(struct cfs_stage *st, const struct cfs_block *b)
{
	CFS_LOCK_GUARD(&st->lock);

	return find(st, b) != NULL;
}

static void drop(struct cfs_stage *st, const struct cfs_block *b)
{
	struct cache_dir *dir = NULL;
	struct staged *e;

	pthread_mutex_lock(&st->lock);
	e = find(st, b);
	if (e && e->state == STAGED_UPLOADING) {
		e->dropped = true;
	} else if (e) {
		dir = e->dir;
		cfs_stage_free_entry(st, e);
	}
	pthread_mutex_unlock(&st->lock);
	if (dir)
		cfs_disk_forget_staged(st->disk, dir, b);
}

/* ---- blocks of earlier processes ---- */

struct found {
	struct cfs_block id;
	int64_t age_s;
};

struct scan {
	struct cfs_stage *st;
	struct cache_dir *dir;
	struct found *v;
	size_t n, cap, max;
};

static int visit(void *arg, int fd, const char *name, const struct cfs_block *b, bool tmp)
{
	struct scan *s = arg;
	struct stat st;

	if (atomic_load(&s->st->stopping))
		return -ECANCELED;
	if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
		return 0;
	if (tmp) {
		if (st.st_mtim.tv_sec < cfs_wall_s() - CFS_CACHEDIR_TMP_AGE_S)
			unlinkat(fd, name, 0);
		return 0;
	}
	if (s->n == s->max)
		return 1;
	if (CFS_ARRAY_ROOM(s->v, s->n, s->cap) < 0)
		return -ENOMEM;
	s->v[s->n] = (struct found){
		.id = *b,
		.age_s = CFS_MAX(cfs_wall_s() - (int64_t)st.st_mtim.tv_sec, 0),
	};
	s->v[s->n++].id.tier = cfs_stage_file_tier(fd, name, b, (uint64_t)st.st_size);
	return 0;
}

static int newest_first(const void *a, const void *b)
{
	const struct found *x = a, *y = b;

	return (x->age_s > y->age_s) - (x->age_s < y->age_s);
}

/*
 * Adds all blocks at once, so that the oldest is uploaded first. Returns how many there was memory
 * for; *ret_n: those that were not known.
 */
static size_t add_found(struct cfs_stage *st, const struct scan *s, size_t *ret_n,
			unsigned long long *ret_bytes)
{
	size_t i, n = 0;

	*ret_bytes = 0;
	pthread_mutex_lock(&st->lock);
	for (i = 0; i < s->n; i++) {
		struct staged *e = new_entry(s->dir, &s->v[i].id, s->v[i].age_s);

		if (!e)
			break;
		/* Blocks that are found are older than those staged since. */
		if (add_entry(st, e, true)) {
			n++;
			*ret_bytes += e->id.len;
		} else {
			free(e);
		}
	}
	pthread_mutex_unlock(&st->lock);
	*ret_n = n;
	return i;
}

/* 1: the directory has more blocks than the table has room for. */
static int scan_dir(struct cfs_stage *st, struct cache_dir *dir)
{
	struct scan s = {.st = st, .dir = dir};
	unsigned long long bytes;
	size_t added;
	int r;

	pthread_mutex_lock(&st->lock);
	s.max = CFS_STAGE_BLOCKS_MAX - CFS_MIN(st->n + st->n_damaged, CFS_STAGE_BLOCKS_MAX);
	pthread_mutex_unlock(&st->lock);
	r = cfs_cachedir_walk(dir, CFS_CACHEDIR_STAGED, visit, &s);
	if (s.n > 0)
		qsort(s.v, s.n, sizeof(*s.v), newest_first);
	if (add_found(st, &s, &added, &bytes) < s.n && r >= 0)
		r = 1;
	free(s.v);
	if (added > 0)
		cfs_info("staged blocks were found, %s: dir=%s blocks=%zu bytes=%llu",
			 st->conf.read_only ? "a read-only mount leaves them there"
					    : "to be uploaded",
			 dir->path, added, bytes);
	return r;
}

static void run_scan(struct cfs_job *job)
{
	struct stage_scan *scan = (struct stage_scan *)job;
	struct cfs_stage *st = scan->stage;
	int r = scan_dir(st, scan->dir);

	if (r < 0 && r != -ECANCELED)
		cfs_cachedir_fault(scan->dir, "scan", r, false);
	pthread_mutex_lock(&st->lock);
	scan->running = false;
	scan->due |= r < 0;
	st->rescan |= r > 0;
	cfs_stage_wake(st);
	pthread_mutex_unlock(&st->lock);
}

/* Called with the lock held. A failed directory is scanned when it works again. */
static void scan_when_due(struct cfs_stage *st, unsigned i)
{
	bool failed = atomic_load(&st->dirs->v[i].state) == DIR_FAILED;
	struct stage_scan *scan = &st->scans[i];

	scan->due |= failed;
	if (failed || !scan->due || scan->running ||
	    cfs_workers_try_submit(st->writers[i], &scan->job) < 0)
		return;
	scan->due = false;
	scan->running = true;
}

static void tick(void *arg)
{
	struct cfs_stage *st = arg;
	bool rescan;
	unsigned i;
	CFS_LOCK_GUARD(&st->lock);

	rescan = st->rescan && st->n < CFS_STAGE_BLOCKS_MAX / 2;
	if (rescan)
		st->rescan = false;
	for (i = 0; i < st->dirs->n; i++) {
		st->scans[i].due |= rescan;
		scan_when_due(st, i);
	}
	cfs_stage_wake(st);
}

/* ---- life ---- */

int cfs_stage_parse_hours(const char *text, int *ret_from, int *ret_until)
{
	int from, until, end = 0;
	char sep;

	if (sscanf(text, "%2d%c%2d%n", &from, &sep, &until, &end) != 3 || text[end] ||
	    (sep != ',' && sep != '-') || from < 0 || from > 23 || until < 0 || until > 24 ||
	    strspn(text, "0123456789,-") != strlen(text))
		return -EINVAL;
	*ret_from = from;
	*ret_until = until % 24;
	return 0;
}

static int start(struct cfs_stage *st)
{
	unsigned i;
	int r;

	st->scans = calloc(st->dirs->n, sizeof(*st->scans));
	st->uploaders = calloc(st->conf.max_uploads, sizeof(*st->uploaders));
	st->writers = calloc(st->dirs->n, sizeof(struct cfs_workers *));
	if (!st->scans || !st->uploaders || !st->writers)
		return -ENOMEM;
	r = cfs_stage_syncs_new(st->dirs->n, &st->syncs);
	if (r < 0)
		return r;
	for (i = 0; i < st->conf.max_uploads; i++) {
		st->uploaders[i].job.run = cfs_stage_run_uploader;
		st->uploaders[i].stage = st;
	}
	r = cfs_workers_create("cfs-stage-up", st->conf.max_uploads, st->conf.max_uploads,
			       &st->workers);
	for (i = 0; i < st->dirs->n && r == 0; i++) {
		st->scans[i] = (struct stage_scan){
			.job.run = run_scan, .stage = st, .dir = &st->dirs->v[i], .due = true};
		r = cfs_workers_create("cfs-stage-write", st->conf.max_uploads + 1, WRITE_QUEUE,
				       &st->writers[i]);
	}
	if (r == 0)
		r = cfs_ticker_start("cfs-stage", st->conf.tick_ms, tick, st, &st->ticker);
	if (r == 0)
		cfs_ticker_kick(st->ticker);
	return r;
}

static void stop(struct cfs_stage *st)
{
	struct staged *e, *next;
	size_t i;

	atomic_store(&st->stopping, true);
	if (st->ticker)
		cfs_ticker_stop(st->ticker);
	cfs_workers_destroy(st->workers);
	for (i = 0; st->writers && i < st->dirs->n; i++)
		cfs_workers_destroy(st->writers[i]);
	if (st->attached)
		cfs_disk_set_staged(st->disk, NULL, NULL);
	for (i = 0; i < CFS_STAGE_BUCKETS; i++) {
		for (e = LIST_FIRST(&st->buckets[i]); e; e = next) {
			next = LIST_NEXT(e, link);
			free(e);
		}
	}
	cfs_stage_syncs_free(st->syncs, st->dirs->n);
	pthread_cond_destroy(&st->changed);
	pthread_mutex_destroy(&st->lock);
	free(st->writers);
	free(st->uploaders);
	free(st->scans);
	free(st);
}

static void set_max_uploads(struct cfs_stage *st, unsigned max)
{
	cfs_workers_set_max(st->workers, max);
}

static const struct stage_ops ops = {
	.put = put,
	.has = has,
	.drop = drop,
	.set_max_uploads = set_max_uploads,
	.stop = stop,
};

int cfs_stage_start(struct cfs_store *s, struct cfs_disk *d, const struct cfs_stage_conf *conf)
{
	struct cfs_stage *st = calloc(1, sizeof(*st));
	struct cfs_pool_stats pool;
	int r;

	if (!st)
		return -ENOMEM;
	st->conf = *conf;
	if (!st->conf.max_uploads)
		st->conf.max_uploads = DEFAULT_UPLOADS;
	if (!st->conf.tick_ms)
		st->conf.tick_ms = TICK_MS;
	st->store = s;
	st->disk = d;
	st->dirs = cfs_disk_dirs(d);
	cfs_pool_stats(s->pool, &pool);
	st->uploading_max = pool.budget / POOL_PARTS;
	TAILQ_INIT(&st->list);
	LIST_INIT(&st->writes);
	pthread_mutex_init(&st->lock, NULL);
	cfs_cond_init(&st->changed);
	r = start(st);
	if (r < 0) {
		stop(st);
		return r;
	}
	cfs_disk_set_staged(d, staged_dir, st);
	st->attached = true;
	s->stage_ops = &ops;
	s->stage = st;
	return 0;
}

void cfs_stage_set_mode(struct cfs_store *s, enum cfs_stage_mode mode)
{
	struct cfs_stage *st = s->stage;

	if (!st)
		return;
	pthread_mutex_lock(&st->lock);
	st->mode = mode;
	pthread_cond_broadcast(&st->changed);
	cfs_stage_wake(st);
	pthread_mutex_unlock(&st->lock);
}

static void log_left(struct cfs_stage *st, const struct cache_dir *dir)
{
	unsigned long long n = 0, bytes = 0;
	const struct staged *e;

	pthread_mutex_lock(&st->lock);
	TAILQ_FOREACH(e, &st->list, by_age)
	{
		n += e->dir == dir;
		bytes += e->dir == dir ? e->id.len : 0;
	}
	pthread_mutex_unlock(&st->lock);
	if (n > 0)
		cfs_warn("staged blocks are left for the next mount with this cache-dir: dir=%s "
			 "blocks=%llu bytes=%llu",
			 dir->base, n, bytes);
}

uint64_t cfs_stage_drain(struct cfs_store *s, uint64_t idle_timeout_ms)
{
	struct cfs_stage *st = s->stage;
	cfs_deadline_t give_up = cfs_deadline_in(idle_timeout_ms);
	uint64_t left, seen;
	unsigned i;

	if (!st || st->conf.read_only)
		return 0;
	pthread_mutex_lock(&st->lock);
	if (st->mode == CFS_STAGE_NORMAL)
		st->mode = CFS_STAGE_FLUSH;
	for (seen = st->n;
	     st->n > 0 && st->mode == CFS_STAGE_FLUSH && !cfs_deadline_passed(give_up);) {
		cfs_stage_wake(st);
		cfs_cond_wait(&st->changed, &st->lock, cfs_deadline_in(DRAIN_POLL_MS));
		if (st->n < seen)
			give_up = cfs_deadline_in(idle_timeout_ms);
		seen = st->n;
	}
	st->mode = CFS_STAGE_LEAVE;
	left = st->n;
	pthread_mutex_unlock(&st->lock);
	for (i = 0; i < st->dirs->n; i++)
		log_left(st, &st->dirs->v[i]);
	return left;
}
