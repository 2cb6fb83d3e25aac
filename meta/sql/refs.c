/* SPDX-License-Identifier: Apache-2.0 */
/* Reference counts of slices: chunk_ref.refs is the number of records that name the slice. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/bytes.h"
#include "base/log.h"
#include "meta/sql/sql.h"

int sql_refs_add(struct sql_refs *l, uint64_t id, uint32_t size)
{
	if (!id)
		return 0;
	if (CFS_ARRAY_ROOM(l->v, l->n, l->cap) < 0)
		return -ENOMEM;
	l->v[l->n++] = (struct sql_ref){.id = id, .size = size, .n = 1};
	return 0;
}

int sql_refs_add_records(struct sql_refs *l, const void *records, size_t bytes)
{
	const uint8_t *p = records;
	struct cfs_slice s;
	int r = 0;

	if (bytes % CFS_SLICE_BYTES)
		return -EIO;
	for (; bytes && !r; p += CFS_SLICE_BYTES, bytes -= CFS_SLICE_BYTES) {
		cfs_slice_decode(p, &s);
		r = sql_refs_add(l, s.id, s.size);
	}
	return r;
}

int sql_refs_add_pairs(struct sql_refs *l, const void *pairs, size_t bytes)
{
	const uint8_t *p = pairs;
	int r = 0;

	if (bytes % SQL_PAIR_BYTES)
		return -EIO;
	for (; bytes && !r; p += SQL_PAIR_BYTES, bytes -= SQL_PAIR_BYTES)
		r = sql_refs_add(l, cfs_get_be64(p), cfs_get_be32(p + 8));
	return r;
}

static int compare(const void *a, const void *b)
{
	const struct sql_ref *x = a, *y = b;

	return (x->id > y->id) - (x->id < y->id);
}

/* Merges entries of one slice, and sorts by id: all transactions lock rows in the same order. */
static void merge(struct sql_refs *l)
{
	size_t i, n = 0;

	if (l->n)
		qsort(l->v, l->n, sizeof(*l->v), compare);
	for (i = 0; i < l->n; i++) {
		if (n && l->v[n - 1].id == l->v[i].id)
			l->v[n - 1].n += l->v[i].n;
		else
			l->v[n++] = l->v[i];
	}
	l->n = n;
}

int sql_refs_raise(struct sql_conn *c, struct sql_refs *l)
{
	size_t i;
	int r;

	merge(l);
	for (i = 0; i < l->n; i++) {
		r = sql_exec(c, SQL_add_refs, "ii", (int64_t)l->v[i].n, l->v[i].id);
		if (r < 0)
			return r;
		if (r == 0) {
			cfs_err("slice without reference row, not copied: slice=%" PRIu64,
				l->v[i].id);
			return -EIO;
		}
	}
	return 0;
}

int sql_refs_drop(struct sql_conn *c, struct sql_refs *l)
{
	size_t i, dead = 0;
	int r;

	merge(l);
	for (i = 0; i < l->n; i++) {
		struct sql_ref ref = l->v[i];
		bool gone;

		r = sql_exec(c, SQL_add_refs, "ii", -(int64_t)ref.n, ref.id);
		if (r < 0)
			return r;
		r = sql_row(c, SQL_get_refs, "i", ref.id);
		if (r < 0)
			return r;
		gone = r == 1 && sql_int(c, SQL_get_refs, 0) <= 0;
		if (gone)
			ref.size = (uint32_t)sql_int(c, SQL_get_refs, 1);
		sql_done(c, SQL_get_refs);
		if (gone)
			l->v[dead++] = ref;
	}
	l->n = dead;
	return 0;
}

int sql_refs_each(const struct sql_refs *l, cfs_engine_slice_fn fn, void *arg)
{
	size_t i;
	int r = 0;

	for (i = 0; i < l->n && !r; i++)
		r = fn(arg, l->v[i].id, l->v[i].size);
	return r;
}

void sql_refs_clear(struct sql_refs *l)
{
	l->n = 0;
}

void sql_refs_free(struct sql_refs *l)
{
	free(l->v);
	*l = (struct sql_refs){0};
}
