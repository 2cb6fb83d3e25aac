/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What quotas should say. Directories are walked (8 bytes per directory still to be visited);
 * owners are summed up in one scan of all inodes (32 bytes per owner).
 */
#include <errno.h>
#include <stdlib.h>

#include "cmd/quota.h"

#define PAGE  1000
#define TRIES 3

/* ---- directories ---- */

struct walk {
	cfs_ino_t *todo;
	size_t n, cap;
	int64_t space, inodes;
	int err;
};

static int push(struct walk *w, cfs_ino_t dir)
{
	if (w->n == w->cap) {
		size_t cap = w->cap ? 2 * w->cap : 64;
		cfs_ino_t *v = reallocarray(w->todo, cap, sizeof(*v));

		if (!v)
			return -ENOMEM;
		w->todo = v;
		w->cap = cap;
	}
	w->todo[w->n++] = dir;
	return 0;
}

static int visit(void *arg, const struct cfs_dirent *e)
{
	struct walk *w = arg;

	w->inodes++;
	w->space += cfs_space_of(e->type == CFS_TYPE_FILE ? e->entry.attr.length : 0);
	w->err = e->type == CFS_TYPE_DIR ? push(w, e->entry.ino) : 0;
	return w->err;
}

int quota_measure(struct admin *a, cfs_ino_t dir, int64_t *ret_space, int64_t *ret_inodes)
{
	struct walk w = {0};
	int r = push(&w, dir);

	while (r == 0 && w.n) {
		struct cfs_cursor cursor = {0};

		dir = w.todo[--w.n];
		do {
			struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);

			r = cfs_meta_readdir(a->meta, &ctx, dir, true, PAGE, &cursor, visit, &w);
		} while (r == 0 && w.err == 0);
		r = w.err ? w.err : r < 0 && r != -ENOENT ? r : 0;
	}
	free(w.todo);
	if (r < 0)
		return r;
	*ret_space = w.space;
	*ret_inodes = w.inodes;
	return 0;
}

/* ---- owners ---- */

struct owner {
	enum cfs_quota_kind kind;
	uint32_t id;
	int64_t space, inodes;
};

/* Open addressing, at most half full. */
struct owners {
	struct owner *v; /* inodes 0: free */
	size_t n, cap;
};

static struct owner *slot(struct owners *o, enum cfs_quota_kind kind, uint32_t id)
{
	size_t i = (id * 2654435761u + kind) & (o->cap - 1);

	while (o->v[i].inodes && (o->v[i].kind != kind || o->v[i].id != id))
		i = (i + 1) & (o->cap - 1);
	return &o->v[i];
}

static int grow(struct owners *o)
{
	struct owners bigger = {.cap = o->cap ? 2 * o->cap : 256};
	size_t i;

	bigger.v = calloc(bigger.cap, sizeof(*bigger.v));
	if (!bigger.v)
		return -ENOMEM;
	for (i = 0; i < o->cap; i++) {
		if (o->v[i].inodes)
			*slot(&bigger, o->v[i].kind, o->v[i].id) = o->v[i];
	}
	bigger.n = o->n;
	free(o->v);
	*o = bigger;
	return 0;
}

static int charge(struct owners *o, enum cfs_quota_kind kind, uint32_t id, int64_t space)
{
	struct owner *w;
	int r = 2 * o->n >= o->cap ? grow(o) : 0;

	if (r < 0)
		return r;
	w = slot(o, kind, id);
	if (!w->inodes) {
		w->kind = kind;
		w->id = id;
		o->n++;
	}
	w->inodes++;
	w->space += space;
	return 0;
}

static int add_node(void *arg, const struct cfs_row *row)
{
	const struct cfs_attr *attr = &row->attr;
	int64_t space = cfs_space_of(attr->type == CFS_TYPE_FILE ? attr->length : 0);
	int r;

	if (row->ino == CFS_ROOT_INO || row->ino == CFS_TRASH_INO)
		return 0;
	r = charge(arg, CFS_QUOTA_USER, attr->uid, space);
	return r < 0 ? r : charge(arg, CFS_QUOTA_GROUP, attr->gid, space);
}

/* ---- checking ---- */

struct quotas {
	struct cfs_quota *v;
	size_t n;
};

static int keep(void *arg, const struct cfs_quota *q)
{
	struct quotas *l = arg;
	struct cfs_quota *v = reallocarray(l->v, l->n + 1, sizeof(*v));

	if (!v)
		return -ENOMEM;
	l->v = v;
	v[l->n++] = *q;
	return 0;
}

static int read_quotas(struct admin *a, struct quotas *ret)
{
	struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);
	struct quotas l = {0};
	int r = cfs_meta_each_quota(a->meta, &ctx, keep, &l);

	if (r < 0)
		free(l.v);
	else
		*ret = l;
	return r;
}

static const struct cfs_quota *find(const struct quotas *l, enum cfs_quota_kind kind, uint64_t key)
{
	size_t i;

	for (i = 0; i < l->n; i++) {
		if (l->v[i].kind == kind && l->v[i].key == key)
			return &l->v[i];
	}
	return NULL;
}

struct checking {
	struct admin *a;
	bool repair;
	quota_finding_fn fn;
	void *arg;
};

static int settle(struct checking *c, const struct cfs_quota *have, int64_t space, int64_t inodes)
{
	struct quota_finding f = {.have = *have, .space = space, .inodes = inodes};
	struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);
	struct cfs_quota now = *have;
	int r = 0;

	if (have->used_space == space && have->used_inodes == inodes)
		return 0;
	if (c->repair) {
		now.used_space = space;
		now.used_inodes = inodes;
		r = cfs_meta_put_quota(c->a->meta, &ctx, &now);
		f.repaired = r == 0;
	}
	return r < 0 ? r : c->fn(c->arg, &f);
}

static int check_dir(struct checking *c, const struct cfs_quota *q)
{
	struct cfs_quota have = *q;
	int64_t space, inodes;
	int i, r = 0;

	for (i = 0; i < TRIES; i++) {
		const struct cfs_quota *now;
		struct quotas l = {0};
		bool same;

		r = quota_measure(c->a, have.key, &space, &inodes);
		if (r == 0)
			r = read_quotas(c->a, &l);
		if (r < 0)
			return r;
		now = find(&l, CFS_QUOTA_DIR, have.key);
		same = now && now->used_space == have.used_space &&
		       now->used_inodes == have.used_inodes;
		if (now)
			have = *now;
		free(l.v);
		if (same)
			return settle(c, &have, space, inodes);
	}
	return 0;
}

static int check_owners(struct checking *c, const struct quotas *l)
{
	struct owners o = {0};
	size_t i;
	int r = grow(&o);

	if (r == 0)
		r = cfs_meta_scan(c->a->meta, CFS_TABLE_NODE, add_node, &o);
	for (i = 0; i < l->n && r == 0; i++) {
		const struct owner *w;

		if (l->v[i].kind == CFS_QUOTA_DIR)
			continue;
		w = slot(&o, l->v[i].kind, (uint32_t)l->v[i].key);
		r = settle(c, &l->v[i], w->space, w->inodes);
	}
	/* Every owner has a row from the moment such quotas are on. */
	for (i = 0; i < o.cap && r == 0; i++) {
		const struct owner *w = &o.v[i];
		struct cfs_quota none = {
			.kind = w->kind, .key = w->id, .max_space = -1, .max_inodes = -1};

		if (w->inodes && !find(l, w->kind, w->id))
			r = settle(c, &none, w->space, w->inodes);
	}
	free(o.v);
	return r;
}

int quota_check(struct admin *a, bool repair, quota_finding_fn fn, void *arg)
{
	struct checking c = {.a = a, .repair = repair, .fn = fn, .arg = arg};
	struct cfs_setting *setting;
	struct quotas l = {0};
	size_t i;
	int r = cfs_meta_setting(a->meta, &setting);

	if (r < 0)
		return r;
	r = read_quotas(a, &l);
	for (i = 0; i < l.n && r == 0; i++) {
		if (l.v[i].kind == CFS_QUOTA_DIR)
			r = check_dir(&c, &l.v[i]);
	}
	if (r == 0 && setting->user_group_quota)
		r = check_owners(&c, &l);
	free(l.v);
	cfs_setting_free(setting);
	return r;
}
