/* SPDX-License-Identifier: Apache-2.0 */
/* The paths of an inode, by following names upwards. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "meta/api/call.h"
#include "meta/api/core.h"

/* Names of one inode. Directories have one parent each, so there are no more paths than names. */
enum { MAX_NAMES = 65536, MAX_PATH_BYTES = 1 << 20 };

struct name {
	cfs_ino_t parent;
	char *text;
	size_t len;
};

struct names {
	struct name *v;
	size_t n;
};

static int collect(void *arg, cfs_ino_t parent, const char *text, size_t len)
{
	struct names *names = arg;
	struct name *v;
	char *copy;

	if (names->n == MAX_NAMES)
		return -EOVERFLOW;
	v = reallocarray(names->v, names->n + 1, sizeof(*v));
	if (!v)
		return -ENOMEM;
	names->v = v;
	copy = malloc(len);
	if (!copy)
		return -ENOMEM;
	memcpy(copy, text, len);
	v[names->n++] = (struct name){parent, copy, len};
	return 0;
}

static void free_names(struct names *names)
{
	size_t i;

	for (i = 0; i < names->n; i++)
		free(names->v[i].text);
	free(names->v);
	*names = (struct names){0};
}

/* A path is built from its end towards the root. */
struct path {
	char *buf;
	size_t start, cap;
};

static int prepend(struct path *p, const char *name, size_t len)
{
	if (len + 1 > p->start) {
		size_t used = p->cap - p->start;
		size_t cap = (p->cap + len + 1) * 2;
		char *buf;

		if (cap > MAX_PATH_BYTES * 2)
			return -ENAMETOOLONG;
		buf = malloc(cap);
		if (!buf)
			return -ENOMEM;
		memcpy(buf + cap - used, p->buf + p->start, used);
		free(p->buf);
		*p = (struct path){buf, cap - used, cap};
	}
	p->start -= len;
	memcpy(p->buf + p->start, name, len);
	p->buf[--p->start] = '/';
	return 0;
}

static int prepend_parents(struct cfs_meta *m, const struct cfs_ctx *ctx, struct path *p,
			   cfs_ino_t dir)
{
	const unsigned deepest = 1000000;
	unsigned depth;

	for (depth = 0; dir != CFS_ROOT_INO && depth < deepest; depth++) {
		struct names up = {0};
		int rc;

		if (dir == CFS_TRASH_INO)
			return prepend(p, ".trash", 6);
		rc = m->eng->ops->each_parent(m->eng, ctx, dir, collect, &up);
		if (!rc && up.n == 0)
			rc = -ENOENT;
		if (!rc)
			rc = prepend(p, up.v[0].text, up.v[0].len);
		if (!rc)
			dir = up.v[0].parent;
		free_names(&up);
		if (rc)
			return rc;
	}
	return depth < deepest ? 0 : -ELOOP;
}

static int begin(struct path *p)
{
	*p = (struct path){malloc(256), 255, 256};
	if (!p->buf)
		return -ENOMEM;
	p->buf[255] = '\0';
	return 0;
}

static int emit(const struct path *dir, const struct name *name, cfs_path_fn fn, void *arg)
{
	struct path p;
	int rc = begin(&p);

	if (!rc)
		rc = prepend(&p, name->text, name->len);
	/* The first slash comes with the name. */
	if (!rc && dir->start < dir->cap - 1)
		rc = prepend(&p, dir->buf + dir->start + 1, dir->cap - dir->start - 2);
	if (!rc)
		rc = fn(arg, p.buf + p.start);
	free(p.buf);
	return rc;
}

static int each_path(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, cfs_path_fn fn,
		     void *arg)
{
	struct names names = {0};
	struct path dir = {0}; /* of names[i].parent */
	size_t i;
	int rc;

	if (ino == CFS_ROOT_INO)
		return fn(arg, "/");
	if (ino == CFS_TRASH_INO)
		return fn(arg, "/.trash");
	rc = m->eng->ops->each_parent(m->eng, ctx, ino, collect, &names);
	for (i = 0; i < names.n && !rc; i++) {
		if (!i || names.v[i].parent != names.v[i - 1].parent) {
			free(dir.buf);
			rc = begin(&dir);
			if (!rc)
				rc = prepend_parents(m, ctx, &dir, names.v[i].parent);
		}
		if (!rc)
			rc = emit(&dir, &names.v[i], fn, arg);
	}
	free(dir.buf);
	free_names(&names);
	return rc;
}

int cfs_meta_each_path(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, cfs_path_fn fn,
		       void *arg)
{
	return (int)CFS_CALL(c, m, CFS_META_OP_other, ctx, each_path(m, c.ctx, ino, fn, arg));
}
