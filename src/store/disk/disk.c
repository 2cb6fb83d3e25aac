/* SPDX-License-Identifier: Apache-2.0 */
/* The disk cache: its life, the tier's operations, statistics. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/activity.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/task.h"
#include "disk-internal.h"
#include "disk-staged.h"
#include "whole.h"

#define TICK_MS	      5000
#define RETRY_MS      30000
#define STALL_MS      10000
#define CLOSE_MS      1000
#define PENDING_PARTS 4
#define MODE	      0600

uint32_t cfs_disk_now_s(void)
{
	return (uint32_t)cfs_wall_s();
}

/* ---- reading ---- */

void cfs_disk_drop_damaged(struct disk_dir *dir, const struct cfs_block *b)
{
	char path[CFS_CACHEDIR_PATH_MAX];

	cfs_disk_forget(dir, b);
	CFS_DISK_COUNT(dir->disk, corrupt, 1);
	cfs_cachedir_path(dir->cd->set, CFS_CACHEDIR_CACHED, b, path);
	cfs_warn("cached block is damaged, dropped and fetched again: file=%s/%s", dir->cd->path,
		 path);
}

/* A damaged file becomes a miss. Its removal may wait for the disk, but not if nowait. */
static int judge(struct disk_dir *dir, const struct cfs_block *b, const char *what, int r,
		 bool nowait)
{
	bool bad = r == -EBADMSG || r == -ENODATA;

	if (r == -EAGAIN || (bad && nowait))
		return -EAGAIN;
	if (r == -ENOENT)
		cfs_disk_index_remove(&dir->index, b);
	else if (r == -EBADMSG)
		cfs_disk_drop_damaged(dir, b);
	else if (bad)
		cfs_disk_forget(dir, b);
	else
		cfs_cachedir_fault(dir->cd, what, r, false);
	return -ENOENT;
}

static struct disk_dir *part_of(struct cfs_disk *d, const struct cache_dir *cd)
{
	return cd ? &d->dirs[cd->number] : NULL;
}

struct disk_dir *cfs_disk_dir_of_key(struct cfs_disk *d, const struct cfs_block *b)
{
	return part_of(d, cfs_cachedirs_find(&d->set, b));
}

struct disk_dir *cfs_disk_staged_dir(struct cfs_disk *d, const struct cfs_block *b)
{
	return d->staged_dir ? part_of(d, d->staged_dir(d->stage, b)) : NULL;
}

/* Where it was staged; the ring may have changed since. NULL: nowhere. */
static struct disk_dir *dir_of(struct cfs_disk *d, const struct cfs_block *b)
{
	struct disk_dir *dir = cfs_disk_staged_dir(d, b);

	return dir ? dir : cfs_disk_dir_of_key(d, b);
}

/* Files written by others, or not reached by the scan, are as good as known ones. */
static int get_file(struct cfs_disk *d, const struct cfs_block *b, bool nowait,
		    struct cfs_disk_file **ret)
{
	struct cfs_disk_file *f;
	struct disk_dir *dir;
	uint32_t now_s = cfs_disk_now_s();
	int r;

	if (!cfs_cachedir_is_nameable(b))
		return -ENOENT;
	f = cfs_disk_fds_get(&d->fds, b);
	if (f && atomic_load(&f->dir->cd->state) == DIR_FAILED) {
		cfs_disk_file_unref(f);
		f = NULL;
	}
	if (!f) {
		dir = dir_of(d, b);
		if (!dir)
			return -ENOENT;
		r = cfs_disk_file_open(dir, b, nowait, &f);
		if (r < 0)
			return judge(dir, b, "open", r, nowait);
		cfs_disk_fds_add(&d->fds, f);
	}
	/* Once a second is often enough for the order of eviction. */
	if (atomic_exchange_explicit(&f->used_s, now_s, memory_order_relaxed) != now_s &&
	    !cfs_disk_index_hit(&f->dir->index, b, now_s))
		cfs_disk_index_add(&f->dir->index, b, now_s, false);
	*ret = f;
	return 0;
}

static void await_disk(struct cfs_disk *d, const struct cfs_block *b)
{
	const struct disk_dir *dir = dir_of(d, b);

	cfs_cachedir_await(dir ? dir->cd : NULL, b);
}

static ssize_t get(void *tier, const struct cfs_block *b, uint32_t off, const struct iovec *dst,
		   int n_dst, bool nowait, cfs_deadline_t deadline)
{
	struct cfs_disk *d = tier;
	struct cfs_disk_file *f;
	size_t total = cfs_iov_len(dst, n_dst);
	int r;

	if (!nowait)
		await_disk(d, b);
	r = get_file(d, b, nowait, &f);
	if (r == 0) {
		r = cfs_disk_file_read(f, off, dst, n_dst, nowait);
		if (r < 0)
			r = judge(f->dir, b, "read", r, nowait);
		cfs_disk_file_unref(f);
	}
	if (!nowait)
		cfs_activity_wait_end();
	if (r == -ENOENT)
		CFS_DISK_COUNT(d, misses, 1);
	if (r < 0)
		return r;
	CFS_DISK_COUNT(d, hits, 1);
	CFS_DISK_COUNT(d, hit_bytes, total);
	return (ssize_t)total;
}

static void ahead(void *tier, const struct cfs_block *b, uint32_t off, uint32_t len)
{
	struct cfs_disk *d = tier;
	struct cfs_disk_file *f;

	if (get_file(d, b, false, &f) < 0)
		return;
	cfs_disk_file_ahead(f, off, len);
	cfs_disk_file_unref(f);
}

/* A disk that is slow, or hangs. */
static void late(void *tier, const struct cfs_block *b)
{
	struct cfs_disk *d = tier;
	struct disk_dir *dir = cfs_cachedir_is_nameable(b) ? dir_of(d, b) : NULL;

	if (dir)
		cfs_cachedir_fault(dir->cd, "read", -ETIMEDOUT, false);
}

static bool only(void *tier, const struct cfs_block *b)
{
	struct cfs_disk *d = tier;

	return cfs_disk_staged_dir(d, b) != NULL;
}

static void forget(void *tier, const struct cfs_block *b)
{
	struct cfs_disk *d = tier;
	struct disk_dir *dir = cfs_cachedir_is_nameable(b) ? cfs_disk_dir_of_key(d, b) : NULL;

	if (dir)
		cfs_disk_forget_soon(dir, b, false);
}

static bool has_room(void *tier, const struct cfs_block *b)
{
	struct cfs_disk *d = tier;
	struct disk_dir *dir = cfs_disk_keeps(d, b) ? cfs_disk_dir_of_key(d, b) : NULL;

	return dir && atomic_load(&dir->cd->state) == DIR_OK &&
	       !atomic_load(&dir->short_of_space) && !cfs_disk_exceeds(dir, cfs_disk_charge(b));
}

static bool holds(void *tier, const struct cfs_block *b)
{
	struct cfs_disk *d = tier;
	struct disk_dir *dir = cfs_cachedir_is_nameable(b) ? cfs_disk_dir_of_key(d, b) : NULL;

	if (!dir)
		return false;
	if (cfs_disk_index_has(&dir->index, b))
		return true;
	/* Counts blocks that the scan has not reached, as far as the kernel knows them. */
	return atomic_load(&d->stat.scanned) < d->set.n && cfs_disk_file_is_known(dir, b);
}

/* Leaves no trace in the order of eviction. */
static int check_file(void *tier, const struct cfs_block *b)
{
	struct cfs_disk *d = tier;
	struct cfs_disk_file *f;
	struct disk_dir *dir;
	int r;

	if (!cfs_cachedir_is_nameable(b))
		return -EOPNOTSUPP;
	dir = dir_of(d, b);
	r = dir ? cfs_disk_file_open(dir, b, false, &f) : -ENOENT;
	if (r == 0) {
		cfs_disk_file_unref(f);
		return 1;
	}
	if (dir)
		judge(dir, b, "open", r, false);
	return cfs_disk_keeps(d, b) ? 0 : -EOPNOTSUPP;
}

static uint64_t pending(void *tier)
{
	struct cfs_disk *d = tier;
	CFS_LOCK_GUARD(&d->write_lock);

	return d->pending_bytes;
}

/* ---- writeback ---- */

struct cache_dirs *cfs_disk_dirs(struct cfs_disk *d)
{
	return &d->set;
}

void cfs_disk_set_staged(struct cfs_disk *d, cfs_disk_staged_fn staged_dir, void *stage)
{
	d->stage = stage;
	d->staged_dir = staged_dir;
}

static ssize_t run_nothing(struct cfs_task *task)
{
	return 0;
}

/* A file that was open has its space until the closer has closed it. */
void cfs_disk_evict_for_staged(struct cfs_disk *d, struct cache_dir *cd, uint64_t need)
{
	struct cfs_task *closed = cfs_task_new(sizeof(*closed), run_nothing, NULL);
	struct disk_dir *dir = part_of(d, cd);
	ssize_t ignored;

	cfs_disk_keep_free(dir, need);
	if (!closed)
		return;
	cfs_task_wait(closed, dir->closer, cfs_deadline_in(CLOSE_MS), &ignored);
	cfs_task_end(closed);
}

void cfs_disk_adopt(struct cfs_disk *d, struct cache_dir *cd, const struct cfs_block *b)
{
	struct disk_dir *dir = part_of(d, cd);
	int r = -EAGAIN;

	if (cfs_disk_index_has(&dir->index, b))
		return;
	if (cfs_disk_keeps(d, b))
		r = cfs_disk_make_room(dir, cfs_disk_charge(b));
	if (r == 0)
		r = cfs_disk_index_add(&dir->index, b, cfs_disk_now_s(), false);
	if (r < 0 && r != -EEXIST)
		cfs_disk_forget(dir, b);
}

void cfs_disk_forget_staged(struct cfs_disk *d, struct cache_dir *cd, const struct cfs_block *b)
{
	cfs_disk_forget_soon(part_of(d, cd), b, true);
}

const struct cfs_tier_ops cfs_disk_tier = {
	.name = "disk",
	.local = true,
	.get = get,
	.ahead = ahead,
	.late = late,
	.only = only,
	.offer = cfs_disk_offer,
	.put = cfs_disk_put,
	.has_room = has_room,
	.holds = holds,
	.check = check_file,
	.forget = forget,
	.pending = pending,
};

int cfs_disk_pin(struct cfs_disk *d, const struct cfs_block *b, bool nowait,
		 struct cfs_disk_pin *ret)
{
	struct cfs_disk_file *f = NULL;
	int r;

	r = get_file(d, b, nowait, &f);
	if (r < 0)
		return r;
	*ret = (struct cfs_disk_pin){
		.fd = f->fd,
		.dir = f->dir->cd->number,
		.len = b->len,
		.n_crcs = f->n_crcs,
		.crcs = f->n_crcs ? f->crcs : NULL,
		.file = f,
	};
	return 0;
}

void cfs_disk_unpin(struct cfs_disk_pin *pin)
{
	cfs_disk_file_unref(pin->file);
	pin->file = NULL;
}

/* ---- life ---- */

static int check(const struct cfs_disk_conf *conf, char err[256])
{
	if (conf->block_size == 0 || conf->block_size > CFS_CACHEDIR_LEN_MAX)
		snprintf(err, 256, "disk cache: block size %u is out of range", conf->block_size);
	else if (conf->free_ratio < 0 || conf->free_ratio >= 1)
		snprintf(err, 256, "free-space-ratio: must be at least 0 and less than 1");
	else if (conf->mode & ~0666u)
		snprintf(err, 256, "cache-mode: %04o is not a mode for files", conf->mode);
	else
		return 0;
	return -EINVAL;
}

static void set_defaults(struct cfs_disk *d, const struct cfs_disk_conf *conf)
{
	struct cfs_pool_stats pool;

	d->conf = *conf;
	d->conf.dirs = d->conf.uuid = NULL;
	if (!d->conf.mode)
		d->conf.mode = MODE;
	if (!d->conf.items || d->conf.items > CFS_DISK_ITEMS_MAX)
		d->conf.items = CFS_DISK_ITEMS_MAX;
	if (!d->conf.tick_ms)
		d->conf.tick_ms = TICK_MS;
	if (!d->conf.retry_ms)
		d->conf.retry_ms = RETRY_MS;
	if (!d->conf.stall_ms)
		d->conf.stall_ms = STALL_MS;
	if (!d->conf.pending_max) {
		cfs_pool_stats(conf->pool, &pool);
		d->conf.pending_max = pool.budget / PENDING_PARTS;
	}
}

static int add_dirs(struct cfs_disk *d, const struct cfs_disk_conf *conf)
{
	const struct cache_dirs_conf set = {
		.dirs = conf->dirs,
		.uuid = conf->uuid,
		.hash_prefix = conf->hash_prefix,
		.checksums = conf->verify != CFS_VERIFY_NONE,
		.block_size = conf->block_size,
		.mode = d->conf.mode,
		.retry_ms = d->conf.retry_ms,
		.stall_ms = d->conf.stall_ms,
	};
	unsigned i, n;
	int r;

	r = cfs_cachedirs_init(&d->set, &set);
	if (r < 0)
		return r;
	n = d->set.n;
	d->dirs = calloc(n, sizeof(*d->dirs));
	if (!d->dirs)
		return -ENOMEM;
	for (i = 0; i < n && r == 0; i++)
		r = cfs_disk_dir_init(&d->dirs[i], d, &d->set.v[i], d->conf.size / n,
				      (uint32_t)CFS_MAX(d->conf.items / n, 1));
	return r;
}

static int start(struct cfs_disk *d)
{
	unsigned i;
	int r;

	r = cfs_disk_fds_init(&d->fds);
	if (r == 0)
		r = cfs_pool_add_reclaim(d->conf.pool, cfs_disk_reclaim, d);
	for (i = 0; i < d->set.n && r == 0; i++)
		r = cfs_disk_dir_start(&d->dirs[i]);
	return r;
}

static void explain(const struct cfs_disk *d, const struct cfs_disk_conf *conf, int err,
		    char ret[256])
{
	if (d->set.n > 0)
		snprintf(ret, 256, "disk cache: %s", strerror(-err));
	else
		snprintf(ret, 256, "cache-dir=%.150s: %s", conf->dirs,
			 err == -EINVAL	  ? "not a list of absolute paths"
			 : err == -ENOENT ? "no such directory"
					  : strerror(-err));
}

int cfs_disk_create(const struct cfs_disk_conf *conf, struct cfs_disk **ret, char err[256])
{
	struct cfs_disk *d;
	int r;

	r = check(conf, err);
	if (r < 0)
		return r;
	d = calloc(1, sizeof(*d));
	if (!d)
		return -ENOMEM;
	if (cfs_cond_init(&d->write_ended) < 0) {
		free(d);
		return -ENOMEM;
	}
	pthread_mutex_init(&d->write_lock, NULL);
	TAILQ_INIT(&d->writes);
	cfs_whole_init(d);
	set_defaults(d, conf);
	r = add_dirs(d, conf);
	if (r == 0)
		r = start(d);
	if (r < 0) {
		explain(d, conf, r, err);
		cfs_disk_destroy(d);
		return r;
	}
	*ret = d;
	return 0;
}

void cfs_disk_destroy(struct cfs_disk *d)
{
	unsigned i;

	if (!d)
		return;
	atomic_store(&d->set.stopping, true);
	cfs_pool_remove_reclaim(d->conf.pool, cfs_disk_reclaim, d);
	for (i = 0; d->dirs && i < d->set.n; i++)
		cfs_disk_dir_stop(&d->dirs[i]);
	cfs_disk_fds_fini(&d->fds);
	cfs_whole_fini(d);
	for (i = 0; d->dirs && i < d->set.n; i++)
		cfs_disk_index_fini(&d->dirs[i].index);
	cfs_cachedirs_fini(&d->set);
	free(d->dirs);
	pthread_mutex_destroy(&d->write_lock);
	pthread_cond_destroy(&d->write_ended);
	free(d);
}
