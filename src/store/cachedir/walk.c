/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a tree: <tree>/chunks/<x>/<y>/<block>. Directories that are empty are removed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cachedir.h"

struct walk {
	struct cache_dir *dir;
	const char *tree;
	cfs_cachedir_visit_fn visit;
	void *arg;
	char path[64]; /* of the directory that is being read */
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
	char path[CFS_CACHEDIR_PATH_MAX], want[CFS_CACHEDIR_PATH_MAX];
	uint64_t slice, index, len;
	const char *p = name;

	p = parse_number(p, CFS_CACHEDIR_SLICE_MAX - 1, &slice);
	if (!p || *p++ != '_')
		return false;
	p = parse_number(p, UINT16_MAX, &index);
	if (!p || *p++ != '_')
		return false;
	p = parse_number(p, s->dir->set->conf.block_size, &len);
	if (!p || len == 0)
		return false;
	*ret = (struct cfs_block){.slice = slice, .index = (uint32_t)index, .len = (uint32_t)len};
	*ret_rest = p;
	cfs_cachedir_path(s->dir->set, s->tree, ret, path);
	return snprintf(want, sizeof(want), "%s/%.*s", s->path, (int)(p - name), name) <
		       (int)sizeof(want) &&
	       !strcmp(path, want);
}

static int visit_file(struct walk *s, int fd, const char *name)
{
	struct cfs_block b;
	const char *rest;

	if (!parse_block(s, name, &b, &rest))
		return 0;
	if (*rest != '\0' && strcmp(rest, CFS_CACHEDIR_TMP) != 0)
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
		if (atomic_load(&s->dir->set->stopping))
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

int cfs_cachedir_walk(struct cache_dir *dir, const char *tree, cfs_cachedir_visit_fn visit,
		      void *arg)
{
	struct walk w = {.dir = dir, .tree = tree, .visit = visit, .arg = arg};

	snprintf(w.path, sizeof(w.path), "%s/chunks", tree);
	return walk(&w, atomic_load(&dir->fd), w.path, 2);
}
