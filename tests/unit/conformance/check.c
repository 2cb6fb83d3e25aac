/* SPDX-License-Identifier: Apache-2.0 */
/* The invariants of a volume, seen through the engine. */
#include <sched.h>
#include <search.h>
#include <stdio.h>

#include "conformance.h"

struct node {
	cfs_ino_t ino;
	struct cfs_attr attr;
	uint32_t names; /* seen */
	cfs_ino_t last_parent;
	uint32_t subdirs;
	struct cfs_dir_stat stat; /* of its direct children */
};

struct check {
	struct cfs_meta *m;
	void *nodes;	    /* tree of struct node by ino */
	struct node **dirs; /* to visit */
	size_t n, cap;
	struct node *dir; /* being listed */
	int64_t space, inodes;
	int damage;
};

static int by_ino(const void *a, const void *b)
{
	const struct node *x = a, *y = b;

	return (x->ino > y->ino) - (x->ino < y->ino);
}

__attribute__((format(printf, 3, 4))) static void damaged(struct check *k, cfs_ino_t ino,
							  const char *fmt, ...)
{
	va_list ap;

	k->damage++;
	fprintf(stderr, "volume check: inode %llu: ", (unsigned long long)ino);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
}

static int64_t space_of(const struct cfs_attr *a)
{
	return cfs_space_of(a->type == CFS_TYPE_FILE ? a->length : 0);
}

static struct node *meet(struct check *k, cfs_ino_t ino, const struct cfs_attr *attr)
{
	struct node wanted = {.ino = ino}, *n;
	void *found = tfind(&wanted, &k->nodes, by_ino);

	if (found)
		return *(struct node **)found;
	n = calloc(1, sizeof(*n));
	assert_non_null(n);
	n->ino = ino;
	n->attr = *attr;
	assert_non_null(tsearch(n, &k->nodes, by_ino));
	if (ino != CFS_ROOT_INO && ino != CFS_TRASH_INO) {
		k->space += space_of(attr);
		k->inodes++;
	}
	if (attr->type == CFS_TYPE_DIR) {
		if (k->n == k->cap) {
			k->cap = k->cap ? k->cap * 2 : 64;
			k->dirs = realloc(k->dirs, k->cap * sizeof(struct node *));
			assert_non_null(k->dirs);
		}
		k->dirs[k->n++] = n;
	}
	return n;
}

static int entry(void *arg, const struct cfs_dirent *e)
{
	struct check *k = arg;
	struct node *n = meet(k, e->entry.ino, &e->entry.attr);

	if (e->type != e->entry.attr.type)
		damaged(k, e->entry.ino, "entry says type %d, inode %d", e->type,
			e->entry.attr.type);
	n->names++;
	n->last_parent = k->dir->ino;
	k->dir->stat.inodes++;
	k->dir->stat.space += space_of(&e->entry.attr);
	if (e->type == CFS_TYPE_FILE)
		k->dir->stat.length += (int64_t)e->entry.attr.length;
	if (e->type == CFS_TYPE_DIR)
		k->dir->subdirs++;
	return 0;
}

static void list(struct check *k, struct node *dir)
{
	struct cfs_cursor cursor = {0};
	int rc;

	k->dir = dir;
	do {
		struct cfs_ctx c = as_root();

		rc = k->m->eng->ops->readdir(k->m->eng, &c, dir->ino, true, 1000, &cursor, entry,
					     k);
		assert_true(rc >= 0);
	} while (rc == 0);
}

static void judge_dir(struct check *k, const struct node *n)
{
	bool counts_subdirs = !cfs_ino_is_trash(n->ino);
	uint32_t nlink = 2 + (counts_subdirs ? n->subdirs : 0);
	struct cfs_ctx c = as_root();
	struct cfs_dir_stat st;
	int rc;

	if (n->attr.nlink != nlink)
		damaged(k, n->ino, "nlink %u, expected %u", n->attr.nlink, nlink);
	if (n->ino != CFS_ROOT_INO && n->ino != CFS_TRASH_INO) {
		if (n->names != 1)
			damaged(k, n->ino, "directory with %u names", n->names);
		if (n->attr.parent != n->last_parent)
			damaged(k, n->ino, "parent %llu, found in %llu",
				(unsigned long long)n->attr.parent,
				(unsigned long long)n->last_parent);
	}
	if (!k->m->eng->ops->inline_usage)
		return;
	rc = k->m->eng->ops->get_dir_stat(k->m->eng, &c, n->ino, &st);
	if (rc == -ENODATA)
		return;
	OK(rc);
	if (st.space != n->stat.space || st.inodes != n->stat.inodes || st.length != n->stat.length)
		damaged(k, n->ino, "statistics %lld %lld %lld, expected %lld %lld %lld",
			(long long)st.length, (long long)st.space, (long long)st.inodes,
			(long long)n->stat.length, (long long)n->stat.space,
			(long long)n->stat.inodes);
}

static void judge_other(struct check *k, const struct node *n)
{
	if (n->attr.nlink != n->names)
		damaged(k, n->ino, "nlink %u, but %u names", n->attr.nlink, n->names);
	if (n->attr.parent == 0 || (n->names == 1 && n->attr.parent == n->last_parent))
		return;
	damaged(k, n->ino, "parent %llu, found in %llu (%u names)",
		(unsigned long long)n->attr.parent, (unsigned long long)n->last_parent, n->names);
}

static struct check *current;

static void judge(const void *node, VISIT visit, int depth)
{
	const struct node *n = *(struct node *const *)node;

	(void)depth;
	if (visit != postorder && visit != leaf)
		return;
	if (n->attr.type == CFS_TYPE_DIR)
		judge_dir(current, n);
	else
		judge_other(current, n);
}

int volume_damage(struct cfs_meta *m)
{
	struct check k = {.m = m};
	struct cfs_ctx c = as_root();
	int64_t space = 0, inodes = 0;
	cfs_deadline_t soon;
	struct cfs_attr attr;

	OK(cfs_quotas_flush(m->quotas, &c));
	OK(cfs_quotas_flush(vol.other->quotas, &c));
	OK(m->eng->ops->getattr(m->eng, &c, CFS_ROOT_INO, &attr));
	meet(&k, CFS_ROOT_INO, &attr);
	if (m->eng->ops->getattr(m->eng, &c, CFS_TRASH_INO, &attr) == 0)
		meet(&k, CFS_TRASH_INO, &attr);
	while (k.n)
		list(&k, k.dirs[--k.n]);
	current = &k;
	twalk(k.nodes, judge);
	/* A batch that the flusher took a moment ago is on its way. */
	soon = cfs_deadline_in(3000);
	do
		OK(m->eng->ops->get_counters(m->eng, &c, &space, &inodes));
	while ((space != k.space || inodes != k.inodes) && !m->eng->ops->inline_usage &&
	       !cfs_deadline_passed(soon) && sched_yield() == 0);
	if (space != k.space || inodes != k.inodes)
		damaged(&k, 0, "usage %lld bytes %lld inodes, expected %lld %lld", (long long)space,
			(long long)inodes, (long long)k.space, (long long)k.inodes);
	tdestroy(k.nodes, free);
	free(k.dirs);
	return k.damage;
}

void volume_check(struct cfs_meta *m)
{
	assert_int_equal(volume_damage(m), 0);
}
