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

	return CFS_COMPARE(x->id, y->id);
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

/* The slices of one statement: a long list would take two round trips for each slice. */
#define REFS_BATCH  28
#define IDS_FORMAT  "iiiiiiiiiiiiiiiiiiiiiiiiiiii"
#define ID(v, i)    (int64_t)(v)[i].id
#define IDS4(v, i)  ID(v, i), ID(v, (i) + 1), ID(v, (i) + 2), ID(v, (i) + 3)
#define IDS12(v, i) IDS4(v, i), IDS4(v, (i) + 4), IDS4(v, (i) + 8)
#define IDS(v)	    IDS12(v, 0), IDS12(v, 12), IDS4(v, 24)

/* How many slices from v on one statement changes by the same number. */
static size_t same_change(const struct sql_ref *v, size_t n)
{
	size_t i = 1;

	if (n < REFS_BATCH)
		return 1;
	while (i < REFS_BATCH && v[i].n == v[0].n)
		i++;
	return i == REFS_BATCH ? i : 1;
}

/* Adds sign * n to the count of each slice. With must_exist, -EIO when a row is missing. */
static int add(struct sql_conn *c, const struct sql_refs *l, int sign, bool must_exist)
{
	size_t i, n;
	int r;

	for (i = 0; i < l->n; i += n) {
		const struct sql_ref *v = l->v + i;
		int64_t by = sign * (int64_t)v->n;

		n = same_change(v, l->n - i);
		r = n > 1 ? sql_exec(c, SQL_add_many_refs, "i" IDS_FORMAT, by, IDS(v))
			  : sql_exec(c, SQL_add_refs, "ii", by, v->id);
		if (r < 0)
			return r;
		if (must_exist && (size_t)r < n) {
			cfs_err("slice without reference row, not copied: slice=%" PRIu64
				" or one of the %zu behind it",
				v->id, n - 1);
			return -EIO;
		}
	}
	return 0;
}

int sql_refs_raise(struct sql_conn *c, struct sql_refs *l)
{
	merge(l);
	return add(c, l, 1, true);
}

/* Appends those of REFS_BATCH slices without references to ret, which has room for them. */
static int find_dead(struct sql_conn *c, const struct sql_ref *v, struct sql_ref *ret,
		     size_t *n_dead)
{
	int r = sql_query(c, SQL_dead_of_many, IDS_FORMAT, IDS(v));

	while (r >= 0 && (r = sql_next(c, SQL_dead_of_many)) > 0)
		ret[(*n_dead)++] = (struct sql_ref){
			.id = (uint64_t)sql_int(c, SQL_dead_of_many, 0),
			.size = (uint32_t)sql_int(c, SQL_dead_of_many, 1),
		};
	return r;
}

static int find_one_dead(struct sql_conn *c, const struct sql_ref *v, struct sql_ref *ret,
			 size_t *n_dead)
{
	uint64_t id = v->id;
	int r = sql_row(c, SQL_get_refs, "i", id);

	if (r > 0 && sql_int(c, SQL_get_refs, 0) <= 0)
		ret[(*n_dead)++] = (struct sql_ref){
			.id = id,
			.size = (uint32_t)sql_int(c, SQL_get_refs, 1),
		};
	sql_done(c, SQL_get_refs);
	return r;
}

int sql_refs_drop(struct sql_conn *c, struct sql_refs *l)
{
	size_t i, n, dead = 0;
	int r;

	merge(l);
	r = add(c, l, -1, false);
	for (i = 0; i < l->n && r >= 0; i += n) {
		n = l->n - i < REFS_BATCH ? 1 : REFS_BATCH;
		/* Of n slices at most n are dead: the results are never ahead of i. */
		r = n > 1 ? find_dead(c, l->v + i, l->v, &dead)
			  : find_one_dead(c, l->v + i, l->v, &dead);
	}
	if (r < 0)
		return r;
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
