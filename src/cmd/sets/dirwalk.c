/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/sets/dirwalk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"

#define PAGE 1000

struct dirwalk_page {
	struct cfs_dirent v[PAGE];
	char names[PAGE][CFS_NAME_MAX];
};

/* A directory on the path to the current one. */
struct dirwalk_level {
	cfs_ino_t dir;
	struct cfs_cursor cursor;
	bool last;   /* the cursor is at the end */
	size_t base; /* behind it in `todo`: subdirectories of its page */
};

struct dirwalk dirwalk_begin(struct cfs_meta *m, uint64_t page_ms, cfs_ino_t top, unsigned flags)
{
	return (struct dirwalk){
		.meta = m,
		.ctx = cfs_ctx_internal(page_ms),
		.page_ms = page_ms,
		.flags = flags,
		.top = top,
	};
}

static int keep(void *arg, const struct cfs_dirent *e)
{
	struct dirwalk *w = arg;
	struct cfs_dirent *kept = &w->page->v[w->n];

	*kept = *e;
	kept->name = memcpy(w->page->names[w->n], e->name, e->name_len);
	kept->after = NULL;
	w->n++;
	return 0;
}

static int push(struct dirwalk *w, cfs_ino_t dir)
{
	return CFS_ARRAY_ADD(w->path, w->depth, w->cap,
			     (struct dirwalk_level){.dir = dir, .base = w->todo.n});
}

static int read_page(struct dirwalk *w, struct dirwalk_level *l)
{
	int r;

	if (!w->page)
		w->page = malloc(sizeof(*w->page));
	if (!w->page)
		return -ENOMEM;
	w->n = w->i = 0;
	w->ctx.now = cfs_wall();
	w->ctx.deadline = cfs_deadline_in(w->page_ms);
	r = cfs_meta_readdir(w->meta, &w->ctx, l->dir, w->flags & DIRWALK_ATTRS, PAGE, &l->cursor,
			     keep, w);
	l->last = r != 0;
	return r < 0 && r != -ENOENT ? r : 0;
}

/* Subdirectories come before the next page. */
static int go_on(struct dirwalk *w)
{
	struct dirwalk_level *l = &w->path[w->depth - 1];

	if (w->todo.n > l->base)
		return push(w, inostack_pop(&w->todo));
	if (!l->last)
		return read_page(w, l);
	w->depth--;
	return 0;
}

int dirwalk_next(struct dirwalk *w, const struct cfs_dirent **ret)
{
	int r = w->path ? 0 : push(w, w->top);

	while (r == 0 && w->i == w->n) {
		if (!w->depth)
			return 0;
		r = go_on(w);
	}
	if (r < 0)
		return r;
	*ret = &w->page->v[w->i++];
	if (w->flags & DIRWALK_BELOW && (*ret)->type == CFS_TYPE_DIR)
		r = inostack_push(&w->todo, (*ret)->entry.ino);
	return r < 0 ? r : 1;
}

void dirwalk_end(struct dirwalk *w)
{
	inostack_free(&w->todo);
	free(w->path);
	free(w->page);
}
