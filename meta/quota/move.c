/* SPDX-License-Identifier: Apache-2.0 */
/* The usage of trees that move between directories with limits. */
#include <errno.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/bytes.h"
#include "meta/engine/rules.h"
#include "meta/quota/quota-internal.h"

struct walk {
	cfs_ino_t *todo;
	size_t n, cap;
	int64_t space, inodes;
};

static int visit(void *arg, const struct cfs_dirent *e)
{
	struct walk *w = arg;

	w->inodes++;
	w->space += cfs_weight_of(&e->entry.attr);
	if (e->type != CFS_TYPE_DIR)
		return 0;
	if (CFS_ARRAY_ROOM(w->todo, w->n, w->cap) < 0)
		return -ENOMEM;
	w->todo[w->n++] = e->entry.ino;
	return 0;
}

static int measure(struct cfs_quotas *q, const struct cfs_ctx *ctx, cfs_ino_t dir,
		   int64_t *ret_space, int64_t *ret_inodes)
{
	const size_t page = 1000;
	struct walk w = {0};
	struct cfs_quota own;
	int rc = 0;

	if (cfs_quotas_get(q, dir, &own)) {
		*ret_space = own.used_space;
		*ret_inodes = own.used_inodes;
		return 0;
	}
	for (;;) {
		struct cfs_cursor cursor = {0};

		do {
			rc = q->eng->ops->readdir(q->eng, ctx, dir, true, page, &cursor, visit, &w);
		} while (rc == 0);
		/* A directory that was removed during the walk has no usage. */
		if (rc == -ENOENT)
			rc = 0;
		if (rc < 0 || w.n == 0)
			break;
		dir = w.todo[--w.n];
	}
	free(w.todo);
	if (rc < 0)
		return rc;
	*ret_space = w.space;
	*ret_inodes = w.inodes;
	return 0;
}

static bool contains(const struct scopes *s, cfs_ino_t dir)
{
	size_t i;

	for (i = 0; i < s->n; i++)
		if (s->v[i] == dir)
			return true;
	return false;
}

/* Removes the directories that are in both: their usage does not change. */
static void remove_common(struct scopes *to, const struct scopes *from)
{
	size_t i, n = 0;

	for (i = 0; i < to->n; i++)
		if (!contains(from, to->v[i]))
			to->v[n++] = to->v[i];
	to->n = n;
}

int cfs_quotas_check_move(struct cfs_quotas *q, const struct cfs_ctx *ctx,
			  const struct cfs_entry *entry, cfs_ino_t from, cfs_ino_t to,
			  struct cfs_tree_move *ret)
{
	bool is_dir = entry->attr.type == CFS_TYPE_DIR;
	struct scopes left = {0}, entered = {0};
	int64_t space = 0, inodes = 0;
	int rc = cfs_quotas_scopes(q, ctx, from, &left);

	if (!rc)
		rc = cfs_quotas_scopes(q, ctx, to, &entered);
	if (rc || (!left.n && !entered.n))
		goto out;
	if (is_dir)
		rc = measure(q, ctx, entry->ino, &space, &inodes);
	if (rc)
		goto out;
	*ret = (struct cfs_tree_move){from, to, space, inodes};
	remove_common(&entered, &left);
	rc = cfs_quotas_check_now(q, &(struct cfs_reservation){
					     .space = space + cfs_weight_of(&entry->attr),
					     .inodes = inodes + 1,
					     .dirs = entered,
				     });
out:
	free(left.v);
	free(entered.v);
	return rc;
}

void cfs_quotas_moved(struct cfs_quotas *q, const struct cfs_ctx *ctx,
		      const struct cfs_tree_move *move)
{
	if (!move->space && !move->inodes)
		return;
	cfs_quotas_add_scoped(q, ctx, move->from, -move->space, -move->inodes);
	cfs_quotas_add_scoped(q, ctx, move->to, move->space, move->inodes);
}
