/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/sets/inoset.h"

#include <errno.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/bytes.h"
#include "cmd/sets/inostack.h"

#define PAGE 1000

int inoset_add(struct inoset *s, cfs_ino_t ino, uint32_t names)
{
	if (CFS_ARRAY_ROOM(s->v, s->n, s->cap) < 0)
		return -ENOMEM;
	s->v[s->n++] = (struct inoset_item){.ino = ino, .names = names, .added = 1};
	return 0;
}

static int compare(const void *a, const void *b)
{
	const struct inoset_item *x = a, *y = b;

	return CFS_COMPARE(x->ino, y->ino);
}

void inoset_sort(struct inoset *s)
{
	size_t i, n = 0;

	if (s->n)
		qsort(s->v, s->n, sizeof(*s->v), compare);
	for (i = 0; i < s->n; i++) {
		if (n && s->v[n - 1].ino == s->v[i].ino)
			s->v[n - 1].added += s->v[i].added;
		else
			s->v[n++] = s->v[i];
	}
	s->n = n;
}

bool inoset_has(const struct inoset *s, cfs_ino_t ino)
{
	struct inoset_item key = {.ino = ino}, *found;

	found = s->n ? bsearch(&key, s->v, s->n, sizeof(*s->v), compare) : NULL;
	return found && found->added >= found->names;
}

void inoset_free(struct inoset *s)
{
	free(s->v);
	*s = (struct inoset){0};
}

/* ---- the trash ---- */

struct walk {
	struct inoset *set;
	struct inostack todo;
};

struct visit {
	struct walk *w;
	int err;
};

static int visit(void *arg, const struct cfs_dirent *e)
{
	struct visit *v = arg;

	v->err = e->type == CFS_TYPE_DIR ? inostack_push(&v->w->todo, e->entry.ino)
					 : inoset_add(v->w->set, e->entry.ino, e->entry.attr.nlink);
	return v->err;
}

static int visit_dir(struct admin *a, struct walk *w, cfs_ino_t dir)
{
	struct cfs_cursor cursor = {0};
	struct visit v = {.w = w};
	int r;

	do {
		struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);

		r = cfs_meta_readdir(a->meta, &ctx, dir, true, PAGE, &cursor, visit, &v);
	} while (r == 0 && v.err == 0);
	if (v.err)
		return v.err;
	/* Emptied by another client meanwhile. */
	return r < 0 && r != -ENOENT ? r : 0;
}

int inoset_add_trash(struct inoset *s, struct admin *a)
{
	struct walk w = {.set = s};
	int r = inostack_push(&w.todo, CFS_TRASH_INO);

	while (r == 0 && w.todo.n)
		r = visit_dir(a, &w, inostack_pop(&w.todo));
	inostack_free(&w.todo);
	return r;
}
