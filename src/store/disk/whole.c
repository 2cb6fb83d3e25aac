/* SPDX-License-Identifier: Apache-2.0 */
/* The table of whole files. */
#include "whole.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"

#define FILES_MAX    65536u /* of 200 bytes of memory each */
#define NOFILE_PARTS 8
#define OPEN_MIN     16
#define OPEN_MAX     4096
#define SHARE	     2 /* whole files take at most one part in SHARE of a directory's size */

void cfs_whole_path(uint64_t ino, uint64_t hash, const char *suffix, char ret[CFS_WHOLE_PATH_MAX])
{
	snprintf(ret, CFS_WHOLE_PATH_MAX, CFS_WHOLE_DIR "/%" PRIu64 "_%016" PRIx64 "%s", ino, hash,
		 suffix);
}

/* By the inode, as a block is by its slice. */
static struct disk_dir *dir_of(struct cfs_disk *d, uint64_t ino)
{
	struct cfs_block b = {.slice = ino % CFS_CACHEDIR_SLICE_MAX, .len = 1};

	return cfs_disk_dir_of_key(d, &b);
}

static uint64_t share_of(const struct disk_dir *dir)
{
	return dir->index.limit / SHARE;
}

static struct cfs_whole_file **bucket_of(struct whole_files *t, uint64_t ino)
{
	return &t->buckets[(ino * 0x9E3779B97F4A7C15ULL >> 32) % CFS_WHOLE_BUCKETS];
}

static bool same_time(struct timespec a, struct timespec b)
{
	return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

bool cfs_whole_is(const struct cfs_whole_file *w, const struct cfs_whole_stamp *s)
{
	return w->stamp.ino == s->ino && w->stamp.length == s->length &&
	       same_time(w->stamp.ctime, s->ctime) && same_time(w->stamp.mtime, s->mtime);
}

/* ---- the table; with its lock ---- */

static struct cfs_whole_file *find(struct whole_files *t, uint64_t ino, uint64_t hash)
{
	struct cfs_whole_file *w = *bucket_of(t, ino);

	while (w && (w->ino != ino || w->hash != hash))
		w = w->chain;
	return w;
}

static void add(struct whole_files *t, struct cfs_whole_file *w)
{
	struct cfs_whole_file **head = bucket_of(t, w->ino), *at = TAILQ_FIRST(&t->used);

	w->chain = *head;
	*head = w;
	while (at && at->used_s > w->used_s)
		at = TAILQ_NEXT(at, link);
	if (at)
		TAILQ_INSERT_BEFORE(at, w, link);
	else
		TAILQ_INSERT_TAIL(&t->used, w, link);
	t->n++;
	t->n_open += w->fd >= 0;
	cfs_disk_index_reserve(&w->dir->index, (int64_t)w->charge);
}

/* The caller calls end() afterwards when it has no user. */
static void take_out(struct whole_files *t, struct cfs_whole_file *w)
{
	struct cfs_whole_file **link = bucket_of(t, w->ino);

	while (*link != w)
		link = &(*link)->chain;
	*link = w->chain;
	TAILQ_REMOVE(&t->used, w, link);
	w->gone = true;
	t->n--;
}

/* The caller closes it; -1: it is closed, or in use. */
static int take_fd(struct whole_files *t, struct cfs_whole_file *w)
{
	int fd = w->fd;

	if (fd < 0 || w->fd_in_use)
		return -1;
	w->fd = -1;
	t->n_open--;
	return fd;
}

/* ---- without the lock ---- */

static void run_close(struct cfs_job *job)
{
	struct cfs_whole_file *w = (struct cfs_whole_file *)job;

	if (w->fd >= 0)
		close(w->fd);
	free(w);
}

/* Ends a file that has left the table, after its last user. Closing it frees its space. */
static void end(struct cfs_whole_file *w)
{
	struct whole_files *t = &w->dir->disk->wholes;

	pthread_mutex_lock(&t->lock);
	t->n_open -= w->fd >= 0;
	pthread_mutex_unlock(&t->lock);
	cfs_disk_index_reserve(&w->dir->index, -(int64_t)w->charge);
	w->closing.run = run_close;
	if (!w->dir->closer || cfs_workers_try_submit(w->dir->closer, &w->closing) < 0)
		run_close(&w->closing);
}

static void unlink_files(struct disk_dir *dir, uint64_t ino, uint64_t hash)
{
	char path[CFS_WHOLE_PATH_MAX];
	int at = atomic_load(&dir->cd->fd);

	cfs_whole_path(ino, hash, "", path);
	unlinkat(at, path, 0);
	cfs_whole_path(ino, hash, CFS_WHOLE_SUMS, path);
	unlinkat(at, path, 0);
}

/* Takes it out of the table if it is still there, and removes its files. False: it is in use. */
static bool drop(struct disk_dir *dir, uint64_t ino, uint64_t hash, bool used)
{
	struct whole_files *t = &dir->disk->wholes;
	struct cfs_whole_file *w;
	bool last = false;
	int fd = -1;

	pthread_mutex_lock(&t->lock);
	w = find(t, ino, hash);
	if (w && w->refs && !used) {
		pthread_mutex_unlock(&t->lock);
		return false;
	}
	if (w) {
		last = w->refs == 0;
		take_out(t, w);
		if (!last)
			fd = take_fd(t, w);
	}
	pthread_mutex_unlock(&t->lock);
	unlink_files(dir, ino, hash);
	if (fd >= 0)
		close(fd);
	if (last)
		end(w);
	return true;
}

struct cfs_whole_file *cfs_whole_find(struct cfs_disk *d, const struct cfs_whole_stamp *stamp)
{
	struct whole_files *t = &d->wholes;
	struct cfs_whole_file *w;

	pthread_mutex_lock(&t->lock);
	for (w = *bucket_of(t, stamp->ino); w; w = w->chain) {
		if (w->known && w->fd >= 0 && cfs_whole_is(w, stamp) &&
		    atomic_load(&w->dir->cd->state) != DIR_FAILED)
			break;
	}
	if (w) {
		w->refs++;
		w->used_s = cfs_disk_now_s();
		TAILQ_REMOVE(&t->used, w, link);
		TAILQ_INSERT_HEAD(&t->used, w, link);
	}
	pthread_mutex_unlock(&t->lock);
	if (w)
		atomic_fetch_add_explicit(&t->stat.uses, 1, memory_order_relaxed);
	return w;
}

void cfs_whole_put(struct cfs_whole_file *w)
{
	struct whole_files *t;
	bool last;

	if (!w)
		return;
	t = &w->dir->disk->wholes;
	pthread_mutex_lock(&t->lock);
	last = --w->refs == 0 && w->gone;
	pthread_mutex_unlock(&t->lock);
	if (last)
		end(w);
}

int cfs_whole_get_fd(struct cfs_whole_file *w)
{
	struct whole_files *t = &w->dir->disk->wholes;
	CFS_LOCK_GUARD(&t->lock);

	w->fd_in_use = w->fd >= 0;
	return w->fd;
}

void cfs_whole_put_fd(struct cfs_whole_file *w)
{
	struct whole_files *t = &w->dir->disk->wholes;
	CFS_LOCK_GUARD(&t->lock);

	w->fd_in_use = false;
}

bool cfs_whole_fits(struct cfs_disk *d, uint64_t ino, uint64_t bytes)
{
	struct disk_dir *dir = dir_of(d, ino);

	return dir && atomic_load(&dir->cd->state) == DIR_OK && bytes <= share_of(dir);
}

/* ---- eviction ---- */

/* The one used longest ago without a user; with the lock. */
static struct cfs_whole_file *victim(struct whole_files *t, const struct disk_dir *dir)
{
	struct cfs_whole_file *w;

	TAILQ_FOREACH_REVERSE(w, &t->used, whole_list, link)
	{
		if (w->dir == dir && w->refs == 0)
			break;
	}
	return w;
}

bool cfs_whole_oldest(struct disk_dir *dir, uint32_t *ret_used_s)
{
	struct whole_files *t = &dir->disk->wholes;
	struct cfs_whole_file *w;
	CFS_LOCK_GUARD(&t->lock);

	w = victim(t, dir);
	if (w)
		*ret_used_s = w->used_s;
	return w;
}

uint64_t cfs_whole_evict(struct disk_dir *dir)
{
	struct whole_files *t = &dir->disk->wholes;
	struct cfs_whole_file *w;
	uint64_t ino = 0, hash = 0, charge = 0;

	do {
		pthread_mutex_lock(&t->lock);
		w = victim(t, dir);
		if (w) {
			ino = w->ino;
			hash = w->hash;
			charge = w->charge;
		}
		pthread_mutex_unlock(&t->lock);
	} while (w && !drop(dir, ino, hash, false));
	if (!w)
		return 0;
	atomic_fetch_add_explicit(&t->stat.evictions, 1, memory_order_relaxed);
	return charge;
}

static int make_room(struct disk_dir *dir, uint64_t need)
{
	if (need > share_of(dir))
		return -EFBIG;
	while (cfs_disk_index_state(&dir->index).reserved + need > share_of(dir) ||
	       cfs_whole_count(dir->disk) >= FILES_MAX) {
		if (dir->disk->conf.eviction == CFS_EVICT_NONE || !cfs_whole_evict(dir))
			return -EFBIG;
	}
	return 0;
}

/* ---- making ---- */

/* Other contents of the inode, which it will not have again. */
static void drop_others(struct disk_dir *dir, uint64_t ino, uint64_t hash)
{
	struct whole_files *t = &dir->disk->wholes;
	struct cfs_whole_file *w;
	uint64_t other = 0;

	do {
		pthread_mutex_lock(&t->lock);
		for (w = *bucket_of(t, ino); w && (w->ino != ino || w->hash == hash); w = w->chain)
			;
		if (w)
			other = w->hash;
		pthread_mutex_unlock(&t->lock);
		if (w)
			drop(dir, ino, other, true);
	} while (w);
}

/* Closes the file used longest ago. It may be in use: the kernel has a reference of its own. */
static void close_one(struct whole_files *t)
{
	struct cfs_whole_file *w = NULL;
	int fd = -1;

	pthread_mutex_lock(&t->lock);
	if (t->n_open >= t->open_max)
		w = TAILQ_LAST(&t->used, whole_list);
	for (; w && fd < 0; w = TAILQ_PREV(w, whole_list, link))
		fd = take_fd(t, w);
	pthread_mutex_unlock(&t->lock);
	if (fd >= 0)
		close(fd);
}

/* Notes that the file is there, with this stamp; takes fd over. */
static int enter(struct disk_dir *dir, const struct cfs_whole_map *map, uint64_t hash,
		 uint64_t charge, int fd)
{
	struct whole_files *t = &dir->disk->wholes;
	struct cfs_whole_file *w, *fresh = calloc(1, sizeof(*fresh));
	int r = 0;

	close_one(t);
	pthread_mutex_lock(&t->lock);
	w = find(t, map->stamp.ino, hash);
	if (!w && fresh && t->n < FILES_MAX) {
		*fresh = (struct cfs_whole_file){
			.dir = dir,
			.ino = map->stamp.ino,
			.hash = hash,
			.charge = charge,
			.used_s = cfs_disk_now_s(),
			.fd = -1,
		};
		w = fresh;
		fresh = NULL;
		add(t, w);
	}
	if (!w) {
		r = -ENOMEM;
	} else {
		w->known = true;
		w->stamp = map->stamp;
		if (w->fd < 0) {
			w->fd = fd;
			fd = -1;
			t->n_open++;
		}
	}
	pthread_mutex_unlock(&t->lock);
	free(fresh);
	if (fd >= 0)
		close(fd);
	return r;
}

/* -ENOENT: there is none. */
static int adopt(struct disk_dir *dir, const struct cfs_whole_map *map, uint64_t hash,
		 uint64_t charge, const _Atomic bool *stop)
{
	struct whole_files *t = &dir->disk->wholes;
	char path[CFS_WHOLE_PATH_MAX];
	struct cfs_whole_file *w;
	bool verified;
	int fd, r = 0;

	cfs_whole_path(map->stamp.ino, hash, "", path);
	fd = openat(atomic_load(&dir->cd->fd), path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return -errno;
	pthread_mutex_lock(&t->lock);
	w = find(t, map->stamp.ino, hash);
	verified = w && w->known;
	pthread_mutex_unlock(&t->lock);
	if (!verified)
		r = cfs_whole_verify(dir, map, hash, fd, stop);
	if (r == 0)
		return enter(dir, map, hash, charge, fd);
	close(fd);
	if (r != -EBADMSG)
		return r;
	atomic_fetch_add_explicit(&t->stat.corrupt, 1, memory_order_relaxed);
	cfs_warn("whole file in the cache is damaged, it is made again: file=%s/%s", dir->cd->path,
		 path);
	drop(dir, map->stamp.ino, hash, true);
	return -ENOENT;
}

static int assemble(struct disk_dir *dir, const struct cfs_whole_map *map, uint64_t hash,
		    uint64_t charge, const _Atomic bool *stop)
{
	struct whole_files *t = &dir->disk->wholes;
	int fd = -1, r = make_room(dir, charge);

	if (r < 0)
		return r;
	/* Reserved while it is made, so that no block takes the room. */
	cfs_disk_index_reserve(&dir->index, (int64_t)charge);
	r = cfs_disk_make_room(dir, 0);
	if (r == 0)
		r = cfs_disk_keep_free(dir, charge);
	if (r == 0)
		r = cfs_whole_assemble(dir, map, hash, stop, &fd);
	if (r == 0) {
		r = enter(dir, map, hash, charge, fd);
		if (r < 0)
			unlink_files(dir, map->stamp.ino, hash);
	}
	cfs_disk_index_reserve(&dir->index, -(int64_t)charge);
	if (r < 0)
		return r;
	atomic_fetch_add_explicit(&t->stat.made, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&t->stat.made_bytes, map->stamp.length, memory_order_relaxed);
	return 0;
}

int cfs_whole_make(struct cfs_disk *d, const struct cfs_whole_map *map, const _Atomic bool *stop)
{
	uint64_t hash = cfs_whole_hash(map), charge = cfs_whole_charge(map);
	struct disk_dir *dir = dir_of(d, map->stamp.ino);
	int r;

	if (!dir || atomic_load(&dir->cd->state) != DIR_OK)
		return -ENODEV;
	drop_others(dir, map->stamp.ino, hash);
	r = adopt(dir, map, hash, charge, stop);
	if (r == -ENOENT)
		r = assemble(dir, map, hash, charge, stop);
	switch (r) {
	case 0:
	case -ENOENT:
	case -EDQUOT:
	case -EFBIG:
	case -EOPNOTSUPP:
	case -ECANCELED:
		break;
	default:
		cfs_cachedir_fault(dir->cd, "write", r, true);
	}
	return r;
}

void cfs_whole_forget(struct cfs_disk *d, uint64_t ino)
{
	struct disk_dir *dir = dir_of(d, ino);

	if (dir)
		drop_others(dir, ino, 0);
}

/* ---- upkeep ---- */

/* False: it is not named like a whole file. */
static bool parse(const char *name, uint64_t *ret_ino, uint64_t *ret_hash, const char **ret_rest)
{
	char *end;

	if (*name < '0' || *name > '9')
		return false;
	*ret_ino = strtoull(name, &end, 10);
	if (*end != '_' || strspn(end + 1, "0123456789abcdef") != 16)
		return false;
	*ret_hash = strtoull(end + 1, NULL, 16);
	*ret_rest = end + 17;
	return true;
}

static void note(struct disk_dir *dir, uint64_t ino, uint64_t hash, const struct stat *st)
{
	struct whole_files *t = &dir->disk->wholes;
	struct cfs_whole_file *w = calloc(1, sizeof(*w));
	int64_t used_s = CFS_MAX(st->st_atim.tv_sec, st->st_mtim.tv_sec);
	bool full = false;

	if (!w)
		return;
	*w = (struct cfs_whole_file){
		.dir = dir,
		.ino = ino,
		.hash = hash,
		.charge = (uint64_t)st->st_blocks * 512 + 2 * CFS_DISK_OVERHEAD,
		.used_s = (uint32_t)CFS_MIN(CFS_MAX(used_s, 0), (int64_t)cfs_disk_now_s()),
		.fd = -1,
	};
	pthread_mutex_lock(&t->lock);
	if (!find(t, ino, hash)) {
		full = t->n >= FILES_MAX;
		if (!full) {
			add(t, w);
			w = NULL;
		}
	}
	pthread_mutex_unlock(&t->lock);
	free(w);
	if (full)
		unlink_files(dir, ino, hash);
}

static void look_at(struct disk_dir *dir, int at, const char *name)
{
	uint64_t ino, hash;
	const char *rest;
	struct stat st, data;
	char path[CFS_WHOLE_PATH_MAX];

	if (!parse(name, &ino, &hash, &rest) || fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
	    !S_ISREG(st.st_mode))
		return;
	if (!*rest) {
		note(dir, ino, hash, &st);
		return;
	}
	/* A list is older than its file; without one, or unfinished, it has no use. */
	cfs_whole_path(ino, hash, "", path);
	if (st.st_mtim.tv_sec < cfs_wall_s() - CFS_CACHEDIR_TMP_AGE_S &&
	    (strcmp(rest, CFS_WHOLE_SUMS) != 0 ||
	     fstatat(atomic_load(&dir->cd->fd), path, &data, AT_SYMLINK_NOFOLLOW) < 0))
		unlinkat(at, name, 0);
}

void cfs_whole_scan(struct disk_dir *dir)
{
	int fd = openat(atomic_load(&dir->cd->fd), CFS_WHOLE_DIR,
			O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;

	if (!d) {
		if (fd >= 0)
			close(fd);
		return;
	}
	while (!atomic_load(&dir->disk->set.stopping) && (e = readdir(d)) != NULL)
		look_at(dir, fd, e->d_name);
	closedir(d);
}

/* Lists the open files without a user, each with a reference; malloc'ed. */
static struct cfs_whole_file **ref_unused(struct disk_dir *dir, unsigned *ret_n)
{
	struct whole_files *t = &dir->disk->wholes;
	struct cfs_whole_file *w, **v;
	unsigned n = 0;

	pthread_mutex_lock(&t->lock);
	v = t->n_open ? malloc(t->n_open * sizeof(*v)) : NULL;
	if (v) {
		TAILQ_FOREACH(w, &t->used, link)
		{
			if (w->dir != dir || w->refs || w->fd < 0 || n == t->n_open)
				continue;
			w->refs++;
			v[n++] = w;
		}
	}
	pthread_mutex_unlock(&t->lock);
	*ret_n = n;
	return v;
}

/* Closes files that another mount has evicted: they only hold space. */
static void drop_removed(struct disk_dir *dir)
{
	struct whole_files *t = &dir->disk->wholes;
	struct cfs_whole_file **v;
	struct stat st;
	unsigned i, n;

	v = ref_unused(dir, &n);
	for (i = 0; i < n; i++) {
		if (fstat(v[i]->fd, &st) == 0 && st.st_nlink == 0) {
			pthread_mutex_lock(&t->lock);
			if (!v[i]->gone)
				take_out(t, v[i]);
			pthread_mutex_unlock(&t->lock);
		}
		cfs_whole_put(v[i]);
	}
	free(v);
}

void cfs_whole_keep(struct disk_dir *dir)
{
	uint32_t now_s = cfs_disk_now_s(), used_s;
	uint64_t expire_s = dir->disk->conf.expire_s;

	drop_removed(dir);
	while (cfs_disk_index_state(&dir->index).reserved > share_of(dir) && cfs_whole_evict(dir))
		;
	while (expire_s && expire_s < now_s && cfs_whole_oldest(dir, &used_s) &&
	       used_s < now_s - (uint32_t)expire_s && cfs_whole_evict(dir))
		;
}

void cfs_whole_clear(struct disk_dir *dir)
{
	struct whole_files *t = &dir->disk->wholes;
	struct cfs_whole_file *w;
	bool last = false;

	do {
		pthread_mutex_lock(&t->lock);
		for (w = TAILQ_FIRST(&t->used); w && w->dir != dir; w = TAILQ_NEXT(w, link))
			;
		if (w) {
			take_out(t, w);
			last = w->refs == 0;
		}
		pthread_mutex_unlock(&t->lock);
		if (w && last)
			end(w);
	} while (w);
}

/* ---- life ---- */

void cfs_whole_init(struct cfs_disk *d)
{
	struct rlimit lim;

	pthread_mutex_init(&d->wholes.lock, NULL);
	TAILQ_INIT(&d->wholes.used);
	d->wholes.open_max = OPEN_MAX;
	if (getrlimit(RLIMIT_NOFILE, &lim) == 0)
		d->wholes.open_max = (unsigned)CFS_MAX(
			CFS_MIN(lim.rlim_cur / NOFILE_PARTS, (rlim_t)OPEN_MAX), (rlim_t)OPEN_MIN);
}

void cfs_whole_fini(struct cfs_disk *d)
{
	unsigned i;

	for (i = 0; d->dirs && i < d->set.n; i++)
		cfs_whole_clear(&d->dirs[i]);
	pthread_mutex_destroy(&d->wholes.lock);
}

uint64_t cfs_whole_count(void *disk)
{
	struct cfs_disk *d = disk;
	CFS_LOCK_GUARD(&d->wholes.lock);

	return d->wholes.n;
}
