/* SPDX-License-Identifier: Apache-2.0 */
/* statfs, and the usage of trees that move between directories with limits. */
#include <stdlib.h>

#include "base/bytes.h"
#include "meta/quota-internal.h"

static void statfs_volume(struct cfs_meta *m, struct cfs_statfs *s)
{
	const struct cfs_quotas *q = m->quotas;
	int64_t space = atomic_load(&q->base_space) + atomic_load(&q->delta_space);
	int64_t inodes = atomic_load(&q->base_inodes) + atomic_load(&q->delta_inodes);
	uint64_t capacity = atomic_load(&m->capacity);
	uint64_t max_inodes = atomic_load(&m->max_inodes);

	s->used_bytes = space > 0 ? (uint64_t)space : 0;
	s->used_inodes = inodes > 0 ? (uint64_t)inodes : 0;
	if (capacity) {
		s->total_bytes = CFS_MAX(capacity, s->used_bytes);
	} else {
		s->total_bytes = 1ULL << 50;
		while (s->total_bytes / 10 * 8 < s->used_bytes)
			s->total_bytes *= 2;
	}
	s->avail_bytes = s->total_bytes - s->used_bytes;
	if (max_inodes) {
		s->avail_inodes = max_inodes > s->used_inodes ? max_inodes - s->used_inodes : 0;
	} else {
		s->avail_inodes = 10 << 20;
		while (s->used_inodes > 4 * s->avail_inodes)
			s->avail_inodes *= 2;
	}
	s->total_inodes = s->used_inodes + s->avail_inodes;
}

static uint64_t room(int64_t max, int64_t used)
{
	return max > used ? (uint64_t)(max - used) : 0;
}

static int statfs_dir(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t root,
		      struct cfs_statfs *s)
{
	struct cfs_quota q = {0};
	struct scopes scopes;
	size_t i;
	int rc = cfs_quotas_scopes(m, ctx, root, &scopes);

	if (rc || !scopes.n)
		return rc;
	for (i = 0; i < scopes.n; i++) {
		if (!cfs_quotas_get(m, scopes.v[i], &q))
			continue;
		if (q.max_space > 0)
			s->avail_bytes = CFS_MIN(s->avail_bytes, room(q.max_space, q.used_space));
		if (q.max_inodes > 0)
			s->avail_inodes =
				CFS_MIN(s->avail_inodes, room(q.max_inodes, q.used_inodes));
	}
	/* The nearest limit's usage is what is used here. */
	if (cfs_quotas_get(m, scopes.v[0], &q)) {
		s->used_bytes = q.used_space > 0 ? (uint64_t)q.used_space : 0;
		s->used_inodes = q.used_inodes > 0 ? (uint64_t)q.used_inodes : 0;
		s->total_bytes = s->used_bytes + s->avail_bytes;
		s->total_inodes = s->used_inodes + s->avail_inodes;
	}
	free(scopes.v);
	return 0;
}

int cfs_meta_statfs(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t root,
		    struct cfs_statfs *ret)
{
	struct cfs_statfs s;
	struct cfs_call c;
	int rc = 0;

	cfs_call_begin(&c, m, CFS_META_OP_other, ctx);
	/* Without heartbeat nobody else keeps the counters fresh. */
	if (!atomic_load(&m->started))
		rc = cfs_quotas_load(m, c.ctx);
	statfs_volume(m, &s);
	if (!rc && cfs_quotas_on_dirs(m))
		rc = statfs_dir(m, c.ctx, root, &s);
	if (!rc)
		*ret = s;
	return (int)cfs_call_end(&c, rc);
}

/* ---- trees ---- */

struct walk {
	cfs_ino_t *todo;
	size_t n, cap;
	int64_t space, inodes;
};

static int visit(void *arg, const struct cfs_dirent *e)
{
	struct walk *w = arg;

	w->inodes++;
	w->space += cfs_space_of(e->type == CFS_TYPE_FILE ? e->entry.attr.length : 0);
	if (e->type != CFS_TYPE_DIR)
		return 0;
	if (w->n == w->cap) {
		size_t cap = w->cap ? w->cap * 2 : 64;
		cfs_ino_t *v = reallocarray(w->todo, cap, sizeof(*v));

		if (!v)
			return -ENOMEM;
		w->todo = v;
		w->cap = cap;
	}
	w->todo[w->n++] = e->entry.ino;
	return 0;
}

static int measure(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t dir, int64_t *ret_space,
		   int64_t *ret_inodes)
{
	const size_t page = 1000;
	struct walk w = {0};
	struct cfs_quota own;
	int rc = 0;

	if (cfs_quotas_get(m, dir, &own)) {
		*ret_space = own.used_space;
		*ret_inodes = own.used_inodes;
		return 0;
	}
	for (;;) {
		struct cfs_cursor cursor = {0};

		do {
			rc = m->eng->ops->readdir(m->eng, ctx, dir, true, page, &cursor, visit, &w);
		} while (rc == 0);
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

/* Only limits that the entry is not under already are concerned. */
static void keep_entered(struct scopes *to, const struct scopes *from)
{
	size_t i, n = 0;

	for (i = 0; i < to->n; i++)
		if (!contains(from, to->v[i]))
			to->v[n++] = to->v[i];
	to->n = n;
}

int cfs_quotas_check_move(struct cfs_meta *m, const struct cfs_ctx *ctx,
			  const struct cfs_entry *entry, cfs_ino_t from, cfs_ino_t to,
			  struct cfs_tree_move *ret)
{
	bool is_dir = entry->attr.type == CFS_TYPE_DIR;
	struct scopes left = {0}, entered = {0};
	int64_t space = 0, inodes = 0;
	int rc = cfs_quotas_scopes(m, ctx, from, &left);

	if (!rc)
		rc = cfs_quotas_scopes(m, ctx, to, &entered);
	if (rc || (!left.n && !entered.n))
		goto out;
	if (is_dir)
		rc = measure(m, ctx, entry->ino, &space, &inodes);
	if (rc)
		goto out;
	*ret = (struct cfs_tree_move){from, to, space, inodes};
	keep_entered(&entered, &left);
	rc = cfs_quotas_check_scopes(
		m, &entered,
		space + cfs_space_of(entry->attr.type == CFS_TYPE_FILE ? entry->attr.length : 0),
		inodes + 1);
out:
	free(left.v);
	free(entered.v);
	return rc;
}

void cfs_quotas_moved(struct cfs_meta *m, const struct cfs_ctx *ctx,
		      const struct cfs_tree_move *move)
{
	if (!move->space && !move->inodes)
		return;
	cfs_quotas_add_scoped(m, ctx, move->from, -move->space, -move->inodes);
	cfs_quotas_add_scoped(m, ctx, move->to, move->space, move->inodes);
}
