/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/sets/dirwalk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 1000

struct dirwalk_page {
	struct cfs_dirent v[PAGE];
	char names[PAGE][CFS_NAME_MAX];
};

struct dirwalk dirwalk_begin(struct cfs_meta *m, uint64_t page_ms, cfs_ino_t dir, unsigned flags)
{
	return (struct dirwalk){
		.meta = m,
		.ctx = cfs_ctx_internal(page_ms),
		.page_ms = page_ms,
		.flags = flags,
		.dir = dir,
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

static int read_page(struct dirwalk *w)
{
	int r;

	if (!w->page)
		w->page = malloc(sizeof(*w->page));
	if (!w->page)
		return -ENOMEM;
	w->n = w->i = 0;
	w->ctx.now = cfs_wall();
	w->ctx.deadline = cfs_deadline_in(w->page_ms);
	r = cfs_meta_readdir(w->meta, &w->ctx, w->dir, w->flags & DIRWALK_ATTRS, PAGE, &w->cursor,
			     keep, w);
	w->last = r != 0;
	return r < 0 && r != -ENOENT ? r : 0;
}

int dirwalk_next(struct dirwalk *w, const struct cfs_dirent **ret)
{
	int r = 0;

	while (w->i == w->n && r == 0) {
		if (!w->last) {
			r = read_page(w);
		} else if (w->todo.n) {
			w->dir = inostack_pop(&w->todo);
			w->cursor = (struct cfs_cursor){0};
			w->last = false;
		} else {
			return 0;
		}
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
	free(w->page);
}
