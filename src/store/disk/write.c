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

/* Ends a job that was written, has failed or was dropped. A thread that waits for it frees it. */
static void end_write(struct disk_write *w, int err)
{
	struct cfs_disk *d = w->dir->disk;
	bool waited;

	cfs_segs_release(&w->data);
	pthread_mutex_lock(&d->write_lock);
	d->pending_bytes -= w->id.len;
	w->done = true;
	w->err = err;
	waited = w->waited;
	if (waited)
		pthread_cond_broadcast(&d->write_ended);
	pthread_mutex_unlock(&d->write_lock);
	if (!waited)
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
	end_write(w, r);
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

/* *ret, if wanted, is for wait_for(). -EAGAIN: there is no room in the queue. */
static int queue_write(struct disk_dir *dir, const struct cfs_block *b, const struct cfs_segs *data,
		       struct disk_write **ret)
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
	w->waited = ret;
	if (cfs_workers_try_submit(dir->writer, &w->job) < 0) {
		pthread_mutex_lock(&d->write_lock);
		TAILQ_REMOVE(&d->writes, w, link);
		pthread_mutex_unlock(&d->write_lock);
		w->waited = false;
		end_write(w, 0);
		return -EAGAIN;
	}
	if (ret)
		*ret = w;
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
		end_write(w, -EAGAIN);
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

static int wait_for(struct disk_write *w, cfs_deadline_t deadline)
{
	struct cfs_disk *d = w->dir->disk;
	int r = 0;
	bool done;

	pthread_mutex_lock(&d->write_lock);
	while (!w->done && r == 0)
		r = cfs_cond_wait(&d->write_ended, &d->write_lock, deadline);
	done = w->done;
	r = done ? w->err : -EAGAIN;
	w->waited = false;
	pthread_mutex_unlock(&d->write_lock);
	if (done)
		free(w);
	return r;
}

int cfs_disk_put(void *tier, const struct cfs_block *b, const struct cfs_segs *data,
		 cfs_deadline_t deadline)
{
	struct cfs_disk *d = tier;
	struct disk_write *w;
	struct disk_dir *dir;
	int r;

	if (!cfs_disk_keeps(d, b) || data->len != b->len)
		return -EOPNOTSUPP;
	dir = find_dir(d, b);
	if (!dir)
		return -EROFS;
	r = queue_write(dir, b, data, &w);
	if (r == 0)
		r = wait_for(w, deadline);
	/* Another writer may have been first. */
	return r < 0 && cfs_disk_index_has(&dir->index, b) ? 0 : r;
}
