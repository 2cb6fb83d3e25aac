/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What quotas should say. Directories are walked (8 bytes per directory still to be visited);
 * owners are summed up in one scan of all inodes (32 bytes per owner).
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#include "cmd/inostack.h"
#include "cmd/quota.h"

#define PAGE	 1000
#define TRIES	 2
#define FLUSH_MS 4000 /* mounts write every 3 s */

/* ---- directories ---- */

struct walk {
	struct inostack todo;
	int64_t space, inodes;
	int err;
};

static int visit(void *arg, const struct cfs_dirent *e)
{
	struct walk *w = arg;

	w->inodes++;
	w->space += cfs_space_of(e->type == CFS_TYPE_FILE ? e->entry.attr.length : 0);
	w->err = e->type == CFS_TYPE_DIR ? inostack_push(&w->todo, e->entry.ino) : 0;
	return w->err;
}

int quota_measure(struct admin *a, cfs_ino_t dir, int64_t *ret_space, int64_t *ret_inodes)
{
	struct walk w = {0};
	int r = inostack_push(&w.todo, dir);

	while (r == 0 && w.todo.n) {
		struct cfs_cursor cursor = {0};

		dir = inostack_pop(&w.todo);
		do {
			struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);

			r = cfs_meta_readdir(a->meta, &ctx, dir, true, PAGE, &cursor, visit, &w);
		} while (r == 0 && w.err == 0);
		r = w.err ? w.err : r < 0 && r != -ENOENT ? r : 0;
	}
	inostack_free(&w.todo);
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

struct findings {
	struct quota_finding *v;
	size_t n;
};

static int note(struct findings *l, const struct cfs_quota *have, int64_t space, int64_t inodes)
{
	struct quota_finding *v;

	if (have->used_space == space && have->used_inodes == inodes)
		return 0;
	v = reallocarray(l->v, l->n + 1, sizeof(*v));
	if (!v)
		return -ENOMEM;
	l->v = v;
	v[l->n++] = (struct quota_finding){.have = *have, .space = space, .inodes = inodes};
	return 0;
}

static int check_dirs(struct admin *a, const struct quotas *l, struct findings *found)
{
	int64_t space, inodes;
	size_t i;
	int r = 0;

	for (i = 0; i < l->n && r == 0; i++) {
		if (l->v[i].kind != CFS_QUOTA_DIR)
			continue;
		r = quota_measure(a, l->v[i].key, &space, &inodes);
		if (r == 0)
			r = note(found, &l->v[i], space, inodes);
	}
	return r;
}

static int check_owners(struct admin *a, const struct quotas *l, struct findings *found)
{
	struct owners o = {0};
	size_t i;
	int r = grow(&o);

	if (r == 0)
		r = cfs_meta_scan(a->meta, CFS_TABLE_NODE, add_node, &o);
	for (i = 0; i < l->n && r == 0; i++) {
		const struct owner *w;

		if (l->v[i].kind == CFS_QUOTA_DIR)
			continue;
		w = slot(&o, l->v[i].kind, (uint32_t)l->v[i].key);
		r = note(found, &l->v[i], w->space, w->inodes);
	}
	/* Every owner has a row from the moment such quotas are on. */
	for (i = 0; i < o.cap && r == 0; i++) {
		const struct owner *w = &o.v[i];
		struct cfs_quota none = {
			.kind = w->kind, .key = w->id, .max_space = -1, .max_inodes = -1};

		if (w->inodes && !find(l, w->kind, w->id))
			r = note(found, &none, w->space, w->inodes);
	}
	free(o.v);
	return r;
}

static int compare_all(struct admin *a, bool owners, struct findings *ret)
{
	struct findings found = {0};
	struct quotas l = {0};
	int r = read_quotas(a, &l);

	if (r == 0)
		r = check_dirs(a, &l, &found);
	if (r == 0 && owners)
		r = check_owners(a, &l, &found);
	free(l.v);
	if (r < 0)
		free(found.v);
	else
		*ret = found;
	return r;
}

static int settle(struct admin *a, struct quota_finding *f)
{
	struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);
	struct cfs_quota now = f->have;
	int r;

	now.used_space = f->space;
	now.used_inodes = f->inodes;
	r = cfs_meta_put_quota(a->meta, &ctx, &now);
	f->repaired = r == 0;
	return r;
}

int quota_count_owners(struct admin *a)
{
	struct findings found = {0};
	size_t i;
	int r = compare_all(a, true, &found);

	for (i = 0; i < found.n && r == 0; i++) {
		if (found.v[i].have.kind != CFS_QUOTA_DIR)
			r = settle(a, &found.v[i]);
	}
	free(found.v);
	return r;
}

int quota_check(struct admin *a, bool repair, quota_finding_fn fn, void *arg)
{
	struct findings found = {0};
	struct cfs_setting *setting;
	size_t i;
	int tries, r = cfs_meta_setting(a->meta, &setting);
	bool mounted;

	if (r < 0)
		return r;
	for (tries = 0; r == 0; tries++) {
		r = compare_all(a, setting->user_group_quota, &found);
		if (r == 0 && found.n && tries < TRIES)
			r = admin_is_mounted(a, &mounted);
		if (r < 0 || !found.n || tries == TRIES || !mounted)
			break;
		/* Perhaps a mount has not written yet what it counted. */
		free(found.v);
		found = (struct findings){0};
		poll(NULL, 0, FLUSH_MS);
	}
	for (i = 0; i < found.n && r == 0; i++) {
		if (repair)
			r = settle(a, &found.v[i]);
		if (r == 0)
			r = fn(arg, &found.v[i]);
	}
	free(found.v);
	cfs_setting_free(setting);
	return r;
}
