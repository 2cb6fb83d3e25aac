/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding the blocks of a directory. Blocks of the right size enter the index. Torn ones and old
 * temporary files are removed; everything else is left alone.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "disk-internal.h"

/* A younger one may have a writer. */
#define TORN_AGE_S 60

struct scan {
	struct disk_dir *dir;
	uint64_t found, removed;
};

static void remove_file(struct scan *s, int fd, const char *name)
{
	if (unlinkat(fd, name, 0) == 0)
		s->removed++;
}

static void add_block(struct scan *s, const struct cfs_block *b, int fd, const char *name,
		      struct stat *st)
{
	int64_t used_s = CFS_MAX(st->st_atim.tv_sec, st->st_mtim.tv_sec);
	struct index *ix = &s->dir->index;
	struct cfs_block victim;
	int r;

	used_s = CFS_MIN(CFS_MAX(used_s, 0), (int64_t)cfs_disk_now_s());
	r = cfs_disk_index_add(ix, b, (uint32_t)used_s, true);
	if (r == -ENOSPC && cfs_disk_index_take_victim(ix, &victim)) {
		cfs_disk_forget(s->dir, &victim);
		r = cfs_disk_index_add(ix, b, (uint32_t)used_s, true);
	}
	if (r < 0)
		return;
	/* A block that was written and evicted during the scan has no file. */
	if (fstatat(fd, name, st, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT)
		cfs_disk_index_remove(ix, b);
	else
		s->found++;
}

static int visit_cached(void *arg, int fd, const char *name, const struct cfs_block *b, bool tmp)
{
	struct scan *s = arg;
	struct stat st;

	if (!tmp && cfs_disk_index_has(&s->dir->index, b))
		return 0;
	if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
		return 0;
	if (!tmp && cfs_cachedir_size_fits(b, (uint64_t)st.st_size))
		add_block(s, b, fd, name, &st);
	else if (st.st_nlink == 1 &&
		 st.st_mtim.tv_sec < cfs_wall_s() - (tmp ? CFS_CACHEDIR_TMP_AGE_S : TORN_AGE_S))
		remove_file(s, fd, name);
	return 0;
}

int cfs_disk_scan(struct disk_dir *dir)
{
	uint64_t start = cfs_now_ms();
	struct scan s = {.dir = dir};
	int r;

	r = cfs_cachedir_walk(dir->cd, CFS_CACHEDIR_CACHED, visit_cached, &s);
	cfs_disk_index_sort_found(&dir->index);
	CFS_DISK_COUNT(dir->disk, scanned, 1);
	if (r == -ECANCELED)
		return 0;
	if (s.found > 0 || s.removed > 0)
		cfs_info("cache directory was read: dir=%s found=%llu removed=%llu ms=%llu",
			 dir->cd->base, (unsigned long long)s.found, (unsigned long long)s.removed,
			 (unsigned long long)(cfs_now_ms() - start));
	return r;
}
