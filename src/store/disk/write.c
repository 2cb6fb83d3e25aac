/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes blocks into files. An offered block waits in a queue, with references to its pages, for
 * the writer thread of its directory. The bytes in the queue are bounded: a block is dropped when it
 * has no room, or when the pool runs dry. A file gets its name when it is complete.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/activity.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/workers.h"
#include "disk-internal.h"

/* Held by the waiting thread and by the write. */
struct disk_waiter {
	pthread_mutex_t lock; /* protects what follows; a leaf */
	pthread_cond_t ended;
	unsigned refs;
	bool done;
	int err;
};

bool cfs_disk_keeps(const struct cfs_disk *d, const struct cfs_block *b)
{
	if (!cfs_cachedir_is_nameable(b) || b->len > d->conf.block_size)
		return false;
	return !d->conf.partial_only || b->len < d->conf.block_size;
}

static int write_block(struct disk_write *w)
{
	struct disk_dir *dir = w->dir;
	bool short_of_space;
	int r;

	if (atomic_load(&dir->cd->state) != DIR_OK || cfs_disk_index_has(&dir->index, &w->id))
		return -EAGAIN;
	r = cfs_disk_make_room(dir, cfs_disk_charge(&w->id));
	short_of_space = r == -EDQUOT && atomic_load(&dir->short_of_space);
	if (short_of_space && !dir->told_space)
		cfs_warn(
			"cache directory has no more than the free space that is kept, and nothing "
			"to remove; blocks that are read are not cached: dir=%s",
			dir->cd->base);
	dir->told_space = short_of_space;
	if (r == -EDQUOT)
		return -EAGAIN;
	if (r == 0)
		r = cfs_cachedir_write(dir->cd, CFS_CACHEDIR_CACHED, &w->id, &w->data, false);
	if (r == -ENOSPC && cfs_disk_keep_free(dir, cfs_disk_charge(&w->id)) == 0)
		r = cfs_cachedir_write(dir->cd, CFS_CACHEDIR_CACHED, &w->id, &w->data, false);
	if (r < 0) {
		cfs_cachedir_fault(dir->cd, "write", r, true);
		return r;
	}
	CFS_DISK_COUNT(dir->disk, writes, 1);
	CFS_DISK_COUNT(dir->disk, write_bytes, w->id.len);
	r = cfs_disk_index_add(&dir->index, &w->id, cfs_disk_now_s(), false);
	if (r == -ENOSPC || r == -ENOMEM)
		cfs_disk_forget(dir, &w->id);
	return 0;
}

static void unref_waiter(struct disk_waiter *wt)
{
	bool last;

	pthread_mutex_lock(&wt->lock);
	last = --wt->refs == 0;
	pthread_mutex_unlock(&wt->lock);
	if (!last)
		return;
	pthread_cond_destroy(&wt->ended);
	pthread_mutex_destroy(&wt->lock);
	free(wt);
}

static void tell(struct disk_waiter *wt, int err)
{
	pthread_mutex_lock(&wt->lock);
	wt->done = true;
	wt->err = err;
	pthread_cond_signal(&wt->ended);
	pthread_mutex_unlock(&wt->lock);
	unref_waiter(wt);
}

/* Ends a job that was written, has failed or was dropped. */
static void free_write(struct disk_write *w, int err)
{
	struct cfs_disk *d = w->dir->disk;

	if (w->waiter)
		tell(w->waiter, err);
	pthread_mutex_lock(&d->write_lock);
	d->pending_bytes -= w->id.len;
	pthread_mutex_unlock(&d->write_lock);
	cfs_segs_release(&w->data);
	free(w);
}

static void run_write(struct cfs_job *job)
{
	struct disk_write *w = (struct disk_write *)job;
	struct cfs_disk *d = w->dir->disk;
	int r;

	pthread_mutex_lock(&d->write_lock);
	TAILQ_REMOVE(&d->writes, w, link);
	pthread_mutex_unlock(&d->write_lock);
	atomic_store(&w->dir->writing_since_ms, cfs_now_ms());
	cfs_cachedir_await(w->dir->cd, &w->id);
	r = write_block(w);
	cfs_activity_wait_end();
	atomic_store(&w->dir->writing_since_ms, 0);
	if (r < 0)
		CFS_DISK_COUNT(d, drops, 1);
	free_write(w, r);
}

static bool enter(struct cfs_disk *d, struct disk_write *w)
{
	CFS_LOCK_GUARD(&d->write_lock);

	if (d->pending_bytes > 0 && d->pending_bytes + w->id.len > d->conf.pending_max)
		return false;
	d->pending_bytes += w->id.len;
	TAILQ_INSERT_TAIL(&d->writes, w, link);
	return true;
}

static struct disk_write *new_write(struct disk_dir *dir, const struct cfs_block *b,
				    const struct cfs_segs *data)
{
	struct disk_write *w = calloc(1, sizeof(*w));

	if (!w)
		return NULL;
	w->job.run = run_write;
	w->dir = dir;
	w->id = *b;
	cfs_segs_init(&w->data);
	if (cfs_segs_slice(&w->data, data, 0, data->len) < 0) {
		cfs_segs_release(&w->data);
		free(w);
		return NULL;
	}
	return w;
}

/* Queues it; the waiter, if any, will be told. -EAGAIN: there is no room in the queue. */
static int queue_write(struct disk_dir *dir, const struct cfs_block *b, const struct cfs_segs *data,
		       struct disk_waiter *waiter)
{
	struct disk_write *w = new_write(dir, b, data);
	struct cfs_disk *d = dir->disk;

	if (!w)
		return -ENOMEM;
	if (!enter(d, w)) {
		cfs_segs_release(&w->data);
		free(w);
		return -EAGAIN;
	}
	w->waiter = waiter;
	if (cfs_workers_try_submit(dir->writer, &w->job) < 0) {
		pthread_mutex_lock(&d->write_lock);
		TAILQ_REMOVE(&d->writes, w, link);
		pthread_mutex_unlock(&d->write_lock);
		w->waiter = NULL;
		free_write(w, 0);
		return -EAGAIN;
	}
	return 0;
}

/*
 * Drops queued writes, of one directory or any, oldest first: they are at the head of their
 * worker's queue. One that is being run stays.
 */
static void drop(struct cfs_disk *d, const struct disk_dir *dir, uint64_t want)
{
	struct write_list dropped = TAILQ_HEAD_INITIALIZER(dropped);
	struct disk_write *w, *next;
	uint64_t freed = 0;

	pthread_mutex_lock(&d->write_lock);
	for (w = TAILQ_FIRST(&d->writes); w && freed < want; w = next) {
		next = TAILQ_NEXT(w, link);
		if ((dir && w->dir != dir) || !cfs_workers_cancel(w->dir->writer, &w->job))
			continue;
		TAILQ_REMOVE(&d->writes, w, link);
		TAILQ_INSERT_TAIL(&dropped, w, link);
		freed += w->id.len;
	}
	pthread_mutex_unlock(&d->write_lock);
	while ((w = TAILQ_FIRST(&dropped)) != NULL) {
		TAILQ_REMOVE(&dropped, w, link);
		free_write(w, -EAGAIN);
		CFS_DISK_COUNT(d, drops, 1);
	}
}

void cfs_disk_reclaim(void *arg, uint64_t want)
{
	drop(arg, NULL, want);
}

/* Where the block is to be written; NULL: nowhere. */
static struct disk_dir *find_dir(struct cfs_disk *d, const struct cfs_block *b)
{
	struct disk_dir *dir = cfs_disk_dir_of_key(d, b);
	uint64_t since_ms = dir ? atomic_load(&dir->writing_since_ms) : 0;

	if (since_ms && cfs_now_ms() >= since_ms + d->conf.stall_ms) {
		cfs_cachedir_fault(dir->cd, "write", -ETIMEDOUT, true);
		drop(d, dir, UINT64_MAX);
	}
	return dir && atomic_load(&dir->cd->state) == DIR_OK ? dir : NULL;
}

void cfs_disk_offer(void *tier, const struct cfs_block *b, const struct cfs_segs *data)
{
	struct cfs_disk *d = tier;
	struct disk_dir *dir;

	if (!cfs_disk_keeps(d, b) || data->len != b->len)
		return;
	dir = find_dir(d, b);
	if (!dir || cfs_disk_index_has(&dir->index, b))
		return;
	if (queue_write(dir, b, data, NULL) < 0)
		CFS_DISK_COUNT(d, drops, 1);
}

static int wait_for(struct disk_waiter *wt, cfs_deadline_t deadline)
{
	int r = 0;
	CFS_LOCK_GUARD(&wt->lock);

	while (!wt->done && r == 0)
		r = cfs_cond_wait(&wt->ended, &wt->lock, deadline);
	return wt->done ? wt->err : -EAGAIN;
}

int cfs_disk_put(void *tier, const struct cfs_block *b, const struct cfs_segs *data,
		 cfs_deadline_t deadline)
{
	struct cfs_disk *d = tier;
	struct disk_waiter *wt;
	struct disk_dir *dir;
	int r;

	if (!cfs_disk_keeps(d, b) || data->len != b->len)
		return -EOPNOTSUPP;
	dir = find_dir(d, b);
	if (!dir)
		return -EROFS;
	wt = calloc(1, sizeof(*wt));
	if (!wt)
		return -ENOMEM;
	if (cfs_cond_init(&wt->ended) < 0) {
		free(wt);
		return -ENOMEM;
	}
	pthread_mutex_init(&wt->lock, NULL);
	wt->refs = 2;
	r = queue_write(dir, b, data, wt);
	if (r < 0)
		unref_waiter(wt);
	else
		r = wait_for(wt, deadline);
	unref_waiter(wt);
	/* Another writer may have been first. */
	return r < 0 && cfs_disk_index_has(&dir->index, b) ? 0 : r;
}
