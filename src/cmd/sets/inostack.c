/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/sets/inostack.h"

#include <errno.h>
#include <stdlib.h>

#include "base/array.h"

#define PAGE 1000

int inostack_push(struct inostack *s, cfs_ino_t ino)
{
	return CFS_ARRAY_ADD(s->v, s->n, s->cap, ino);
}

void inostack_free(struct inostack *s)
{
	free(s->v);
	*s = (struct inostack){0};
}

struct walk {
	struct inostack todo;
	cfs_dirent_fn fn;
	void *arg;
	int err;
};

static int visit(void *arg, const struct cfs_dirent *e)
{
	struct walk *w = arg;

	w->err = w->fn(w->arg, e);
	if (!w->err && e->type == CFS_TYPE_DIR)
		w->err = inostack_push(&w->todo, e->entry.ino);
	return w->err;
}

int inostack_walk(struct cfs_meta *m, uint64_t step_ms, cfs_ino_t top, cfs_dirent_fn fn, void *arg)
{
	struct walk w = {.fn = fn, .arg = arg};

	w.err = inostack_push(&w.todo, top);
	while (!w.err && w.todo.n) {
		cfs_ino_t dir = inostack_pop(&w.todo);
		struct cfs_cursor cursor = {0};
		int r;

		do {
			struct cfs_ctx ctx = cfs_ctx_internal(step_ms);

			r = cfs_meta_readdir(m, &ctx, dir, true, PAGE, &cursor, visit, &w);
		} while (r == 0 && !w.err);
		/* -ENOENT: removed by another client meanwhile. */
		if (!w.err && r < 0 && r != -ENOENT)
			w.err = r;
	}
	inostack_free(&w.todo);
	return w.err;
}
