/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Computes the right usage of quotas. Directories are walked (8 bytes per directory still to be
 * visited); owners are summed up in one scan of all inodes.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/array.h"
#include "cmd/sets/dirwalk.h"
#include "cmd/usage/owners.h"
#include "cmd/usage/quota-usage.h"

/* ---- directories ---- */

struct usage {
	int64_t space, inodes;
	uint64_t mark;
};

static int measure(struct admin *a, cfs_ino_t dir, struct usage *ret)
{
	struct dirwalk w =
		dirwalk_begin(a->meta, ADMIN_STEP_MS, dir, DIRWALK_ATTRS | DIRWALK_BELOW);
	const struct cfs_dirent *e;
	int r;

	*ret = (struct usage){0};
	while ((r = dirwalk_next(&w, &e)) > 0) {
		ret->inodes++;
		ret->space += cfs_space_of(e->type == CFS_TYPE_FILE ? e->entry.attr.length : 0);
		ret->mark += cfs_mark_of(e->entry.ino, &e->entry.attr);
	}
	dirwalk_end(&w);
	return r;
}

int quota_measure(struct admin *a, cfs_ino_t dir, int64_t *ret_space, int64_t *ret_inodes)
{
	struct usage w;
	int r = measure(a, dir, &w);

	if (r < 0)
		return r;
	*ret_space = w.space;
	*ret_inodes = w.inodes;
	return 0;
}

/* ---- checking ---- */

static int keep(void *arg, const struct cfs_quota *q)
{
	struct quotas *l = arg;

	return CFS_ARRAY_ADD(l->v, l->n, l->cap, *q);
}

int quotas_read(struct admin *a, struct quotas *ret)
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

const struct cfs_quota *quotas_find(const struct quotas *l, enum cfs_quota_kind kind, uint64_t key)
{
	size_t i;

	for (i = 0; i < l->n; i++) {
		if (l->v[i].kind == kind && l->v[i].key == key)
			return &l->v[i];
	}
	return NULL;
}

static int note(struct gaps *l, const struct cfs_quota *have, int64_t space, int64_t inodes,
		uint64_t mark)
{
	const struct gap gap = {
		.kind = GAP_QUOTA,
		.quota = *have,
		.counted = {.space = have->used_space, .inodes = have->used_inodes},
		.there = {.space = space, .inodes = inodes},
		.mark = mark,
	};

	if (have->used_space == space && have->used_inodes == inodes)
		return 0;
	return gaps_add(l, &gap);
}

static int measure_dirs(struct admin *a, const struct quotas *l, const struct gaps *last,
			struct gaps *ret)
{
	struct usage w;
	size_t i;
	int r = 0;

	for (i = 0; i < l->n && r == 0; i++) {
		if (l->v[i].kind != CFS_QUOTA_DIR ||
		    (last && !gaps_find(last, GAP_QUOTA, CFS_QUOTA_DIR, l->v[i].key)))
			continue;
		r = measure(a, l->v[i].key, &w);
		if (r == 0)
			r = note(ret, &l->v[i], w.space, w.inodes, w.mark);
	}
	return r;
}

static bool owners_asked_for(const struct gaps *last)
{
	size_t i;

	for (i = 0; last && i < last->n; i++) {
		if (last->v[i].kind == GAP_QUOTA && last->v[i].quota.kind != CFS_QUOTA_DIR)
			return true;
	}
	return !last;
}

static int measure_owners(struct admin *a, const struct quotas *l, struct gaps *ret)
{
	struct owners o = {0};
	size_t i;
	int r = cfs_meta_scan(a->meta, CFS_TABLE_NODE, owners_add_node, &o);

	for (i = 0; i < l->n && r == 0; i++) {
		struct owner w;

		if (l->v[i].kind == CFS_QUOTA_DIR)
			continue;
		w = owners_get(&o, l->v[i].kind, (uint32_t)l->v[i].key);
		r = note(ret, &l->v[i], w.space, w.inodes, w.mark);
	}
	/* Every owner has a row from the moment such quotas are enabled. */
	for (i = 0; i < o.cap && r == 0; i++) {
		const struct owner *w = &o.v[i];
		struct cfs_quota none = {
			.kind = w->kind, .key = w->id, .max_space = -1, .max_inodes = -1};

		if (w->inodes && !quotas_find(l, w->kind, w->id))
			r = note(ret, &none, w->space, w->inodes, w->mark);
	}
	owners_free(&o);
	return r;
}

int quota_gaps(struct admin *a, bool owners, const struct gaps *last, struct gaps *ret)
{
	struct quotas l = {0};
	int r = quotas_read(a, &l);

	if (r == 0)
		r = measure_dirs(a, &l, last, ret);
	if (r == 0 && owners && owners_asked_for(last))
		r = measure_owners(a, &l, ret);
	free(l.v);
	return r;
}

int quota_count_owners(struct admin *a)
{
	struct gaps found = {0};
	struct quotas l = {0};
	size_t i;
	int r = quotas_read(a, &l);

	if (r == 0)
		r = measure_owners(a, &l, &found);
	for (i = 0; i < found.n && r == 0; i++) {
		struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);
		struct cfs_quota now = found.v[i].quota;

		now.used_space = found.v[i].there.space;
		now.used_inodes = found.v[i].there.inodes;
		r = cfs_meta_put_quota(a->meta, &ctx, &now);
	}
	free(found.v);
	free(l.v);
	return r;
}

struct checking {
	struct admin *a;
	bool owners;
	gaps_damage_fn fn;
	void *arg;
};

static int measure_all(void *arg, const struct gaps *last, struct gaps *ret)
{
	struct checking *c = arg;

	return quota_gaps(c->a, c->owners, last, ret);
}

static int tell(void *arg, const struct gap *gap)
{
	struct checking *c = arg;

	return c->fn(c->arg, gap);
}

int quota_check(struct admin *a, bool repair, gaps_damage_fn fn, void *arg, size_t *ret_open)
{
	struct checking c = {.a = a, .fn = fn, .arg = arg};
	struct cfs_setting *setting;
	int r = cfs_meta_setting(a->meta, &setting);

	if (r < 0)
		return r;
	c.owners = setting->user_group_quota;
	cfs_setting_free(setting);
	return gaps_settle(a, repair, measure_all, tell, &c, ret_open);
}
