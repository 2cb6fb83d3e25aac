/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks on their way into files. Offered blocks are queued with references to their pages, in
 * bounded bytes, and written by the directory's one writer thread; it is dropped when the queue is
 * full or when the pool runs dry. A file appears under its name only when it is whole.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/activity.h"
#include "base/workers.h"
#include "disk-internal.h"

/* An older temporary file has no writer. */
#define TMP_AGE_S 600

/* Held by the one who waits and by the write. */
struct disk_waiter {
	pthread_mutex_t lock; /* protects what follows; a leaf */
	pthread_cond_t ended;
	unsigned refs;
	bool done;
	int err;
};

bool cfs_disk_keeps(const struct cfs_disk *d, const struct cfs_block *b)
{
	if (b->slice >= CFS_DISK_SLICE_MAX || b->index > UINT16_MAX || b->len == 0 ||
	    b->len > d->conf.block_size)
		return false;
	return !d->conf.partial_only || b->len < d->conf.block_size;
}

static int write_all(int fd, const void *src, size_t len, uint64_t off)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = pwrite(fd, (const char *)src + done, len - done, (off_t)(off + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			return -EIO;
		done += (size_t)n;
	}
	return 0;
}

/* Adds a piece at `off` to the checksums of its segments. */
static void add_crcs(uint32_t *crcs, uint32_t off, const uint8_t *p, size_t len)
{
	while (len > 0) {
		size_t n = CFS_MIN(len, CFS_DISK_SEGMENT - off % CFS_DISK_SEGMENT);
		uint32_t *crc = &crcs[off / CFS_DISK_SEGMENT];

		*crc = cfs_disk_crc_add(*crc, p, n);
		off += (uint32_t)n;
		p += n;
		len -= n;
	}
}

/* Each piece is summed up just before it is written: one way through memory for both. */
int cfs_disk_write_data(int fd, const struct cfs_segs *data, bool trailer)
{
	uint32_t crcs[CFS_DISK_LEN_MAX / CFS_DISK_SEGMENT];
	unsigned k, n_crcs = cfs_disk_n_segments((uint32_t)data->len);
	struct iovec *iov;
	uint32_t off = 0;
	int i, n, r = 0;

	n = cfs_segs_iov(data, &iov);
	if (n < 0)
		return n;
	for (k = 0; k < n_crcs; k++)
		crcs[k] = CFS_CRC_INIT;
	for (i = 0; i < n && r == 0; i++) {
		if (trailer)
			add_crcs(crcs, off, iov[i].iov_base, iov[i].iov_len);
		r = write_all(fd, iov[i].iov_base, iov[i].iov_len, off);
		off += (uint32_t)iov[i].iov_len;
	}
	free(iov);
	for (k = 0; k < n_crcs; k++)
		crcs[k] = htobe32(~crcs[k]);
	if (r == 0 && trailer)
		r = write_all(fd, crcs, n_crcs * sizeof(crcs[0]), off);
	return r;
}

static bool remove_stale(int at, const char *tmp)
{
	struct stat st;

	return fstatat(at, tmp, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
	       st.st_mtim.tv_sec < cfs_wall_s() - TMP_AGE_S && unlinkat(at, tmp, 0) == 0;
}

int cfs_disk_create_tmp(struct cache_dir *dir, char *tmp)
{
	int fd, tries, at = atomic_load(&dir->fd), r = -EEXIST;

	/* The scan removes directories that are empty: ours may be, until the file is there. */
	for (tries = 0; tries < 16; tries++) {
		fd = openat(at, tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
			    dir->disk->conf.mode);
		if (fd >= 0)
			return fd;
		r = -errno;
		if (r == -ENOENT) {
			int made = cfs_disk_dir_make_parents(dir, tmp);

			if (made < 0 && made != -ENOENT)
				return made;
		} else if (r != -EEXIST || !remove_stale(at, tmp)) {
			break;
		}
	}
	return r;
}

static int write_file(struct disk_write *w)
{
	char path[CFS_DISK_KEY_MAX], tmp[CFS_DISK_KEY_MAX + sizeof(CFS_DISK_TMP)];
	struct cache_dir *dir = w->dir;
	int fd, r, at = atomic_load(&dir->fd);

	cfs_disk_path(dir->disk, &w->id, path);
	snprintf(tmp, sizeof(tmp), "%s" CFS_DISK_TMP, path);
	fd = cfs_disk_create_tmp(dir, tmp);
	if (fd < 0)
		return fd;
	r = cfs_disk_write_data(fd, &w->data, dir->disk->conf.verify != CFS_VERIFY_NONE);
	if (close(fd) < 0 && r == 0)
		r = -errno;
	if (r == 0 && renameat(at, tmp, at, path) < 0)
		r = -errno;
	if (r < 0)
		unlinkat(at, tmp, 0);
	return r;
}

static int write_block(struct disk_write *w)
{
	struct cache_dir *dir = w->dir;
	int r;

	if (atomic_load(&dir->state) != DIR_OK || cfs_disk_index_has(&dir->index, &w->id))
		return -EAGAIN;
	r = cfs_disk_make_room(dir, cfs_disk_charge(&w->id));
	if (r == -EDQUOT)
		return -EAGAIN;
	if (r == 0)
		r = write_file(w);
	if (r == -ENOSPC && cfs_disk_keep_free(dir, cfs_disk_charge(&w->id)) == 0)
		r = write_file(w);
	if (r < 0) {
		cfs_disk_dir_fault(dir, "write", r, true);
		return r;
	}
	CFS_DISK_COUNT(dir->disk, writes, 1);
	CFS_DISK_COUNT(dir->disk, write_bytes, w->id.len);
	r = cfs_disk_index_add(&dir->index, &w->id, cfs_disk_now_s(), false);
	if (r == -ENOSPC || r == -ENOMEM)
		cfs_disk_dir_forget(dir, &w->id);
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

/* Ends a job that was written, failed or given up. */
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
	cfs_disk_await(w->dir, &w->id);
	r = write_block(w);
	cfs_activity_wait_end();
	atomic_store(&w->dir->writing_since_ms, 0);
	if (r < 0)
		CFS_DISK_COUNT(d, drops, 1);
	free_write(w, r);
}

static bool enter(struct cfs_disk *d, struct disk_write *w)
{
	bool room;

	pthread_mutex_lock(&d->write_lock);
	room = d->pending_bytes == 0 || d->pending_bytes + w->id.len <= d->conf.pending_max;
	if (room) {
		d->pending_bytes += w->id.len;
		TAILQ_INSERT_TAIL(&d->writes, w, link);
	}
	pthread_mutex_unlock(&d->write_lock);
	return room;
}

static struct disk_write *new_write(struct cache_dir *dir, const struct cfs_block *b,
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
static int queue_write(struct cache_dir *dir, const struct cfs_block *b,
		       const struct cfs_segs *data, struct disk_waiter *waiter)
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
static void drop(struct cfs_disk *d, const struct cache_dir *dir, uint64_t want)
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
static struct cache_dir *find_dir(struct cfs_disk *d, const struct cfs_block *b)
{
	struct cache_dir *dir = cfs_disk_ring_find(d, b);
	uint64_t since_ms = dir ? atomic_load(&dir->writing_since_ms) : 0;

	if (since_ms && cfs_now_ms() >= since_ms + d->conf.stall_ms) {
		cfs_disk_dir_fault(dir, "write", -ETIMEDOUT, true);
		drop(d, dir, UINT64_MAX);
	}
	return dir && atomic_load(&dir->state) == DIR_OK ? dir : NULL;
}

void cfs_disk_offer(void *tier, const struct cfs_block *b, const struct cfs_segs *data)
{
	struct cfs_disk *d = tier;
	struct cache_dir *dir;

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

	pthread_mutex_lock(&wt->lock);
	while (!wt->done && r == 0)
		r = cfs_cond_wait(&wt->ended, &wt->lock, deadline);
	r = wt->done ? wt->err : -EAGAIN;
	pthread_mutex_unlock(&wt->lock);
	return r;
}

int cfs_disk_put(void *tier, const struct cfs_block *b, const struct cfs_segs *data,
		 cfs_deadline_t deadline)
{
	struct cfs_disk *d = tier;
	struct disk_waiter *wt;
	struct cache_dir *dir;
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
