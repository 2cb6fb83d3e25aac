/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding what is in a directory: raw/chunks/<x>/<y>/<block>. Blocks of the right size enter the
 * index; torn ones and old temporary files are removed; everything else is left alone.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "disk-internal.h"

/* Younger ones may have a writer. */
#define TMP_AGE_S  600
#define TORN_AGE_S 60

struct walk {
	struct cache_dir *dir;
	cfs_disk_visit_fn visit;
	void *arg;
	char path[64]; /* of the directory that is being read */
};

struct scan {
	struct cache_dir *dir;
	uint64_t found, removed;
};

/* Decimal without sign; leading zeros are caught when the path is made again from the number. */
static const char *parse_number(const char *p, uint64_t max, uint64_t *ret)
{
	uint64_t v = 0;

	if (*p < '0' || *p > '9')
		return NULL;
	for (; *p >= '0' && *p <= '9'; p++) {
		if (v > (max - (uint64_t)(*p - '0')) / 10)
			return NULL;
		v = v * 10 + (uint64_t)(*p - '0');
	}
	*ret = v;
	return p;
}

/* False when the file is not a block, or not where that block belongs. */
static bool parse_block(const struct walk *s, const char *name, struct cfs_block *ret,
			const char **ret_rest)
{
	char path[CFS_DISK_KEY_MAX], want[CFS_DISK_KEY_MAX];
	const char *below_root = strchr(s->path, '/');
	uint64_t slice, index, len;
	const char *p = name;

	p = parse_number(p, CFS_DISK_SLICE_MAX - 1, &slice);
	if (!p || *p++ != '_')
		return false;
	p = parse_number(p, UINT16_MAX, &index);
	if (!p || *p++ != '_')
		return false;
	p = parse_number(p, s->dir->disk->conf.block_size, &len);
	if (!p || len == 0)
		return false;
	*ret = (struct cfs_block){.slice = slice, .index = (uint32_t)index, .len = (uint32_t)len};
	*ret_rest = p;
	cfs_disk_path(s->dir->disk, ret, path);
	return snprintf(want, sizeof(want), "%s/%.*s", below_root, (int)(p - name), name) <
		       (int)sizeof(want) &&
	       !strcmp(strchr(path, '/'), want);
}

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
		cfs_disk_dir_forget(s->dir, &victim);
		r = cfs_disk_index_add(ix, b, (uint32_t)used_s, true);
	}
	if (r < 0)
		return;
	/* It may have been written, and evicted again, while we looked: then there is no file. */
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
	if (!tmp && cfs_disk_size_fits(b, (uint64_t)st.st_size))
		add_block(s, b, fd, name, &st);
	else if (st.st_nlink == 1 &&
		 st.st_mtim.tv_sec < cfs_wall_s() - (tmp ? TMP_AGE_S : TORN_AGE_S))
		remove_file(s, fd, name);
	return 0;
}

static int visit_file(struct walk *s, int fd, const char *name)
{
	struct cfs_block b;
	const char *rest;

	if (!parse_block(s, name, &b, &rest))
		return 0;
	if (*rest != '\0' && strcmp(rest, CFS_DISK_TMP) != 0)
		return 0;
	return s->visit(s->arg, fd, name, &b, *rest != '\0');
}

static bool is_name_of_dir(const char *name)
{
	return name[strspn(name, "0123456789ABCDEF")] == '\0';
}

static int walk(struct walk *s, int at, const char *name, unsigned depth);

static int visit_dir(struct walk *s, DIR *d, unsigned depth, bool *empty)
{
	size_t len = strlen(s->path);
	struct dirent *e;
	int r = 0;

	*empty = true;
	while (r == 0 && (errno = 0, e = readdir(d)) != NULL) {
		if (atomic_load(&s->dir->disk->stopping))
			return -ECANCELED;
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		*empty = false;
		if (depth == 0) {
			r = visit_file(s, dirfd(d), e->d_name);
		} else if (is_name_of_dir(e->d_name) &&
			   len + strlen(e->d_name) + 2 < sizeof(s->path)) {
			snprintf(s->path + len, sizeof(s->path) - len, "/%.60s", e->d_name);
			r = walk(s, dirfd(d), e->d_name, depth - 1);
			s->path[len] = '\0';
		}
	}
	return r ? r : -errno;
}

/* A directory that goes away meanwhile is no error. */
static int walk(struct walk *s, int at, const char *name, unsigned depth)
{
	int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW), r;
	bool empty;
	DIR *d;

	if (fd < 0)
		return errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
	d = fdopendir(fd);
	if (!d) {
		r = -errno;
		close(fd);
		return r;
	}
	r = visit_dir(s, d, depth, &empty);
	closedir(d);
	if (r == 0 && empty && depth < 2)
		unlinkat(at, name, AT_REMOVEDIR);
	return r;
}

int cfs_disk_walk(struct cache_dir *dir, const char *root, cfs_disk_visit_fn visit, void *arg)
{
	struct walk w = {.dir = dir, .visit = visit, .arg = arg};

	snprintf(w.path, sizeof(w.path), "%s/chunks", root);
	return walk(&w, atomic_load(&dir->fd), w.path, 2);
}

int cfs_disk_scan(struct cache_dir *dir)
{
	uint64_t start = cfs_now_ms();
	struct scan s = {.dir = dir};
	int r;

	r = cfs_disk_walk(dir, "raw", visit_cached, &s);
	cfs_disk_index_sort_found(&dir->index);
	CFS_DISK_COUNT(dir->disk, scanned, 1);
	if (r == -ECANCELED)
		return 0;
	if (s.found > 0 || s.removed > 0)
		cfs_info("cache directory was read: dir=%s found=%llu removed=%llu ms=%llu",
			 dir->base, (unsigned long long)s.found, (unsigned long long)s.removed,
			 (unsigned long long)(cfs_now_ms() - start));
	return r;
}
