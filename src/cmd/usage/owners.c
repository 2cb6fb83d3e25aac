/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/usage/owners.h"

#include <errno.h>
#include <stdlib.h>

/* At most half of the slots are in use. */
static struct owner *slot(const struct owners *o, enum cfs_quota_kind kind, uint32_t id)
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

static int charge(struct owners *o, enum cfs_quota_kind kind, uint32_t id, int64_t space,
		  uint64_t mark)
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
	w->mark += mark;
	return 0;
}

int owners_add_node(void *arg, const struct cfs_row *row)
{
	const struct cfs_attr *attr = &row->attr;
	int64_t space = cfs_space_of(attr->type == CFS_TYPE_FILE ? attr->length : 0);
	uint64_t mark = cfs_mark_of(row->ino, attr);
	int r;

	if (row->ino == CFS_ROOT_INO || row->ino == CFS_TRASH_INO)
		return 0;
	r = charge(arg, CFS_QUOTA_USER, attr->uid, space, mark);
	return r < 0 ? r : charge(arg, CFS_QUOTA_GROUP, attr->gid, space, mark);
}

struct owner owners_get(const struct owners *o, enum cfs_quota_kind kind, uint32_t id)
{
	return o->cap ? *slot(o, kind, id) : (struct owner){0};
}

void owners_free(struct owners *o)
{
	free(o->v);
	*o = (struct owners){0};
}
