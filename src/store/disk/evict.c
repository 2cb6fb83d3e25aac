/* SPDX-License-Identifier: Apache-2.0 */
/* Keeping a directory within its size, its file system's free space, and the age of its blocks. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/clock.h"
#include "disk-internal.h"
#include "whole.h"

#define EXPIRE_BATCH 64
/* Staged blocks of another client that are skipped before the search ends. */
#define STAGED_MAX 64

/* A second link: another client has staged the block. Removing this name would free no space. */
static bool is_staged(struct disk_dir *dir, const struct cfs_block *b)
{
	char path[CFS_CACHEDIR_PATH_MAX];
	struct stat st;

	cfs_cachedir_path(dir->cd->set, CFS_CACHEDIR_CACHED, b, path);
	return fstatat(atomic_load(&dir->cd->fd), path, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
	       st.st_nlink > 1;
}

/* Bytes that were charged for it; 0: nothing left to evict. */
static uint64_t evict_one(struct disk_dir *dir)
{
	struct cfs_disk *d = dir->disk;
	struct cfs_block b;
	uint32_t used_s;
	unsigned i;

	/* A whole file leaves before blocks that were used after it. */
	if (d->conf.eviction != CFS_EVICT_NONE && cfs_whole_oldest(dir, &used_s) &&
	    used_s <= cfs_disk_index_victim_s(&dir->index))
		return cfs_whole_evict(dir);
	for (i = 0; i < STAGED_MAX; i++) {
		if (!cfs_disk_index_take_victim(&dir->index, &b))
			return 0;
		if (!is_staged(dir, &b)) {
			cfs_disk_forget(dir, &b);
			CFS_DISK_COUNT(d, evictions, 1);
			CFS_DISK_COUNT(d, evicted_bytes, b.len);
			return cfs_disk_charge(&b);
		}
		cfs_disk_index_add(&dir->index, &b, cfs_disk_now_s(), false);
	}
	return 0;
}

bool cfs_disk_exceeds(struct disk_dir *dir, uint64_t need)
{
	struct index_state state = cfs_disk_index_state(&dir->index);

	return state.bytes + state.reserved + need > dir->index.limit ||
	       state.n + (need > 0) > dir->index.max;
}

/* The need is computed once, because unlinked files may free their space later. */
int cfs_disk_keep_free(struct disk_dir *dir, uint64_t need)
{
	double ratio = dir->disk->conf.free_ratio;
	uint64_t lack = 0, lack_files = 0, keep, avail, freed;
	bool full;
	struct statvfs fs;

	if (fstatvfs(atomic_load(&dir->cd->fd), &fs) < 0)
		return -errno;
	keep = (uint64_t)(ratio * (double)fs.f_blocks) * fs.f_frsize + need;
	avail = (uint64_t)fs.f_bavail * fs.f_frsize;
	if (avail < keep)
		lack = keep - avail;
	keep = (uint64_t)(ratio * (double)fs.f_files) + (need > 0);
	if (fs.f_files > 0 && fs.f_favail < keep)
		lack_files = keep - fs.f_favail;
	full = avail < need || (fs.f_files > 0 && need > 0 && fs.f_favail == 0);
	atomic_store(&dir->short_of_space, lack > 0 || lack_files > 0);
	while (lack > 0 || lack_files > 0) {
		freed = evict_one(dir);
		/* Blocks that are staged may use a part of what is kept free. */
		if (freed == 0)
			return full ? -ENOSPC : -EDQUOT;
		lack -= CFS_MIN(lack, freed);
		lack_files -= CFS_MIN(lack_files, 1u);
	}
	return 0;
}

int cfs_disk_make_room(struct disk_dir *dir, uint64_t need)
{
	while (cfs_disk_exceeds(dir, need)) {
		if (evict_one(dir) == 0)
			return -EDQUOT;
	}
	return cfs_disk_keep_free(dir, need);
}

void cfs_disk_expire(struct disk_dir *dir)
{
	struct cfs_disk *d = dir->disk;
	uint32_t now_s = cfs_disk_now_s(), start = dir->expire_cursor;
	struct cfs_block expired[EXPIRE_BATCH];
	unsigned i, n;

	if (d->conf.expire_s == 0 || d->conf.expire_s >= now_s)
		return;
	do {
		n = cfs_disk_index_take_expired(&dir->index, now_s - (uint32_t)d->conf.expire_s,
						&dir->expire_cursor, expired, EXPIRE_BATCH);
		for (i = 0; i < n; i++)
			cfs_disk_forget(dir, &expired[i]);
		CFS_DISK_COUNT(d, expired, n);
	} while (dir->expire_cursor > start && !atomic_load(&d->set.stopping));
}
