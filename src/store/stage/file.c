/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of staged blocks. A file gets its name when its bytes are durable, and the block counts as
 * staged when the name is durable: a crash leaves a whole block or a temporary file.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "stage-internal.h"
#include "store/store-internal.h"

#define SYNC_WAIT_MS 1000

/* ---- durable names ---- */

struct dir_sync_wait {
	TAILQ_ENTRY(dir_sync_wait) link;
	const char *path;
	bool done;
	int err;
};

TAILQ_HEAD(wait_list, dir_sync_wait);

int cfs_stage_syncs_new(unsigned n, struct dir_sync **ret)
{
	struct dir_sync *y = calloc(n, sizeof(*y));
	unsigned i;

	if (!y)
		return -ENOMEM;
	for (i = 0; i < n; i++) {
		pthread_mutex_init(&y[i].lock, NULL);
		cfs_cond_init(&y[i].changed);
		TAILQ_INIT(&y[i].queue);
	}
	*ret = y;
	return 0;
}

void cfs_stage_syncs_free(struct dir_sync *y, unsigned n)
{
	unsigned i;

	for (i = 0; y && i < n; i++) {
		pthread_cond_destroy(&y[i].changed);
		pthread_mutex_destroy(&y[i].lock);
	}
	free(y);
}

/*
 * Identifies a directory beyond its name: any mount of the cache directory may remove an empty one
 * and make it again. 0: the file system cannot tell.
 */
static uint64_t id_of(int fd)
{
	const unsigned want = STATX_INO | STATX_BTIME;
	struct statx st;

	if (statx(fd, "", AT_EMPTY_PATH, want, &st) < 0 || (st.stx_mask & want) != want)
		return 0;
	return st.stx_ino * 0x9E3779B97F4A7C15ULL ^
	       ((uint64_t)st.stx_btime.tv_sec * 1000000000 + st.stx_btime.tv_nsec);
}

static int sync_path(const struct cache_dir *dir, const char *path, uint64_t *ret_id)
{
	int r = 0, fd = openat(atomic_load(&dir->fd), path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	if (fsync(fd) < 0)
		r = -errno;
	*ret_id = id_of(fd);
	close(fd);
	return r;
}

static bool parents_are_durable(const struct dir_sync *y, uint64_t id)
{
	unsigned i;

	for (i = 0; id && i < CFS_MIN(y->n_durable, CFS_ARRAY_SIZE(y->durable)); i++) {
		if (y->durable[i] == id)
			return true;
	}
	return false;
}

/* Syncs the directories above the volume's, up to the root of the file system: a mount makes those that
 * are missing. */
static int sync_base(const struct cache_dir *dir)
{
	char path[PATH_MAX] = "..";
	struct stat st, below;
	size_t len = 2;
	uint64_t ignored;
	int r;

	if (fstat(atomic_load(&dir->fd), &below) < 0)
		return -errno;
	for (;;) {
		if (fstatat(atomic_load(&dir->fd), path, &st, 0) < 0)
			return -errno;
		if (st.st_dev != below.st_dev || st.st_ino == below.st_ino)
			return 0;
		r = sync_path(dir, path, &ignored);
		/* A directory that this user may not read cannot be synced. */
		if (r < 0 && r != -EACCES)
			return r;
		below = st;
		if (len + sizeof("/..") > sizeof(path))
			return -ENAMETOOLONG;
		memcpy(path + len, "/..", sizeof("/.."));
		len += 3;
	}
}

/* Syncs a directory, and at the first time all directories above it. */
static int sync_dir(struct dir_sync *y, const struct cache_dir *dir, const char *path)
{
	char above[CFS_CACHEDIR_PATH_MAX];
	uint64_t id, ignored;
	char *slash;
	int r;

	r = sync_path(dir, path, &id);
	if (r < 0 || parents_are_durable(y, id))
		return r;
	snprintf(above, sizeof(above), "%s", path);
	while (r == 0 && (slash = strrchr(above, '/')) != NULL) {
		*slash = '\0';
		r = sync_path(dir, above, &ignored);
	}
	if (r == 0)
		r = sync_path(dir, ".", &ignored);
	if (r == 0)
		r = sync_base(dir);
	if (r == 0)
		y->durable[y->n_durable++ % CFS_ARRAY_SIZE(y->durable)] = id;
	return r;
}

/* Syncs each directory that the list names once. */
static void sync_all(struct dir_sync *y, const struct cache_dir *dir, struct wait_list *list)
{
	struct dir_sync_wait *w, *same;

	TAILQ_FOREACH(w, list, link)
	{
		TAILQ_FOREACH(same, list, link)
		{
			if (same == w || !strcmp(same->path, w->path))
				break;
		}
		w->err = same == w ? sync_dir(y, dir, w->path) : same->err;
	}
}

/* Waits as long as fsync(2) takes: callers are workers, and their callers have deadlines. */
static int make_durable(struct dir_sync *y, const struct cache_dir *dir, const char *path)
{
	struct dir_sync_wait me = {.path = path}, *w;
	struct wait_list list = TAILQ_HEAD_INITIALIZER(list);

	pthread_mutex_lock(&y->lock);
	TAILQ_INSERT_TAIL(&y->queue, &me, link);
	while (!me.done) {
		if (y->running) {
			cfs_cond_wait(&y->changed, &y->lock, cfs_deadline_in(SYNC_WAIT_MS));
			continue;
		}
		y->running = true;
		TAILQ_CONCAT(&list, &y->queue, link);
		pthread_mutex_unlock(&y->lock);
		sync_all(y, dir, &list);
		pthread_mutex_lock(&y->lock);
		while ((w = TAILQ_FIRST(&list)) != NULL) {
			TAILQ_REMOVE(&list, w, link);
			w->done = true;
		}
		y->running = false;
		pthread_cond_broadcast(&y->changed);
	}
	pthread_mutex_unlock(&y->lock);
	return me.err;
}

/* ---- writing ---- */

/* Links the file into the disk cache. A failure does no harm. */
static void link_cached(struct cache_dir *dir, const struct cfs_block *b, const char *path)
{
	int at = atomic_load(&dir->fd);
	char cached[CFS_CACHEDIR_PATH_MAX];

	cfs_cachedir_path(dir->set, CFS_CACHEDIR_CACHED, b, cached);
	if (linkat(at, path, at, cached, 0) == 0 || errno != ENOENT ||
	    cfs_cachedir_make_parents(dir, cached) < 0)
		return;
	if (linkat(at, path, at, cached, 0) < 0)
		cfs_debug("staged block is not in the cache: file=%s error=%s", cached,
			  cfs_errname(errno));
}

int cfs_stage_file_write(struct cfs_stage *st, struct cache_dir *dir, const struct cfs_block *b,
			 const struct cfs_segs *data)
{
	char path[CFS_CACHEDIR_PATH_MAX];
	int r;

	r = cfs_cachedir_write(dir, CFS_CACHEDIR_STAGED, b, data, true);
	if (r < 0)
		return r;
	cfs_cachedir_path(dir->set, CFS_CACHEDIR_STAGED, b, path);
	link_cached(dir, b, path);
	*strrchr(path, '/') = '\0';
	r = make_durable(&st->syncs[dir->number], dir, path);
	if (r < 0)
		cfs_cachedir_unlink(dir, CFS_CACHEDIR_STAGED, b);
	return r;
}

/* ---- reading ---- */

/* One uploader at a time waits for pages, so two that hold a part never wait for each other. */
int cfs_stage_file_room(struct cfs_stage *st, const struct cfs_block *b, cfs_deadline_t deadline,
			struct cfs_segs *ret)
{
	struct cfs_pool *pool = st->store->pool;
	struct cfs_page *page;
	uint32_t off, n;
	int r = 0;

	pthread_mutex_lock(&st->lock);
	while (st->taking_memory && r == 0)
		r = cfs_cond_wait(&st->changed, &st->lock, deadline);
	if (!st->taking_memory) {
		st->taking_memory = true;
		r = 0;
	}
	pthread_mutex_unlock(&st->lock);
	if (r < 0)
		return r;
	for (off = 0; off < b->len && r == 0; off += n) {
		n = CFS_MIN(CFS_PAGE_LARGE, b->len - off);
		r = cfs_page_get(pool, n, CFS_USE_READ, deadline, &page);
		if (r < 0)
			break;
		r = cfs_segs_add(ret, page, 0, n);
		if (r < 0)
			cfs_page_unref(page);
	}
	pthread_mutex_lock(&st->lock);
	st->taking_memory = false;
	pthread_cond_broadcast(&st->changed);
	pthread_mutex_unlock(&st->lock);
	return r;
}

static int read_and_verify(int fd, const struct cfs_block *b, bool trailer,
			   const struct cfs_segs *data)
{
	uint32_t crcs[CFS_CACHEDIR_LEN_MAX / CFS_CACHEDIR_SEGMENT];
	uint32_t off = 0, in, n;
	size_t i;
	int r = 0;

	if (trailer)
		r = cfs_cachedir_read(fd, crcs, cfs_cachedir_n_segments(b->len) * sizeof(crcs[0]),
				      b->len, 0);
	for (i = 0; i < data->n && r == 0; i++) {
		const struct cfs_seg *seg = &data->v[i];
		uint8_t *p = seg->page->data + seg->off;

		r = cfs_cachedir_read(fd, p, seg->len, off, 0);
		/* Pages hold whole segments; only the last one may be shorter. */
		for (in = 0; in < seg->len && r == 0 && trailer; in += n) {
			n = CFS_MIN(CFS_CACHEDIR_SEGMENT, seg->len - in);
			if (cfs_cachedir_crc(p + in, n) !=
			    be32toh(crcs[(off + in) / CFS_CACHEDIR_SEGMENT]))
				r = -EBADMSG;
		}
		off += seg->len;
	}
	return r;
}

int cfs_stage_file_read(const struct cache_dir *dir, const struct cfs_block *b,
			const struct cfs_segs *data)
{
	char path[CFS_CACHEDIR_PATH_MAX];
	struct cfs_cachedir_tail tail;
	cfs_auto_close int fd = -1;
	struct stat s;
	int r;

	cfs_cachedir_path(dir->set, CFS_CACHEDIR_STAGED, b, path);
	fd = openat(atomic_load(&dir->fd), path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0 || fstat(fd, &s) < 0)
		return -errno;
	r = cfs_cachedir_read_tail(fd, b, (uint64_t)s.st_size, 0, &tail);
	return r < 0 ? r : read_and_verify(fd, b, tail.checksums, data);
}

uint8_t cfs_stage_file_tier(int at, const char *name, const struct cfs_block *b, uint64_t size)
{
	struct cfs_cachedir_tail tail = {0};
	int fd;

	if (cfs_cachedir_size_fits(b, size))
		return 0;
	fd = openat(at, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return 0;
	cfs_cachedir_read_tail(fd, b, size, 0, &tail);
	close(fd);
	return tail.tier;
}

bool cfs_stage_disk_has_room(const struct cache_dir *dir, double free_ratio, uint64_t need)
{
	struct statvfs fs;

	if (fstatvfs(atomic_load(&dir->fd), &fs) < 0)
		return false;
	return (double)fs.f_bavail * (double)fs.f_frsize >=
		       free_ratio * (double)fs.f_blocks * (double)fs.f_frsize + (double)need &&
	       (fs.f_files == 0 || (double)fs.f_favail > free_ratio * (double)fs.f_files);
}
