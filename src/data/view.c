/* SPDX-License-Identifier: Apache-2.0 */
/* The records of a chunk, applied in order: its visible pieces. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "data-internal.h"

/* A record that points outside its chunk or its slice comes from a damaged volume. */
static bool record_valid(const struct cfs_slice *r)
{
	if ((uint64_t)r->pos + r->len > CFS_CHUNK_SIZE)
		return false;
	return !r->id || (uint64_t)r->off + r->len <= r->size;
}

size_t cfs_view_find(const struct cfs_view *v, uint32_t pos)
{
	size_t lo = 0, hi = v->n, mid;

	while (lo < hi) {
		mid = (lo + hi) / 2;
		if (v->v[mid].pos + v->v[mid].len > pos)
			hi = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

/* v has room for two more pieces. */
static void apply(struct cfs_view *v, const struct cfs_slice *r)
{
	uint32_t pos = r->pos, end = r->pos + r->len;
	struct cfs_piece mid[3];
	size_t lo, hi, m = 0;

	if (!r->len)
		return;
	lo = cfs_view_find(v, pos);
	for (hi = lo; hi < v->n && v->v[hi].pos < end; hi++)
		;
	if (lo < hi && v->v[lo].pos < pos) {
		mid[m] = v->v[lo];
		mid[m++].len = pos - v->v[lo].pos;
	}
	if (r->id)
		mid[m++] = (struct cfs_piece){.pos = pos,
					      .len = r->len,
					      .slice = r->id,
					      .slice_size = r->size,
					      .slice_off = r->off};
	if (lo < hi && v->v[hi - 1].pos + v->v[hi - 1].len > end) {
		uint32_t cut = end - v->v[hi - 1].pos;

		mid[m] = v->v[hi - 1];
		mid[m].pos = end;
		mid[m].slice_off += cut;
		mid[m++].len -= cut;
	}
	memmove(v->v + lo + m, v->v + hi, (v->n - hi) * sizeof(*v->v));
	memcpy(v->v + lo, mid, m * sizeof(*mid));
	v->n += m;
	v->n -= hi - lo;
}

int cfs_view_append(struct cfs_view *v, const struct cfs_slice *r)
{
	struct cfs_piece *bigger;

	if (!record_valid(r))
		return -EIO;
	bigger = realloc(v->v, (v->n + 2) * sizeof(*bigger));
	if (!bigger)
		return -ENOMEM;
	v->v = bigger;
	apply(v, r);
	return 0;
}

void cfs_view_free(struct cfs_view *v)
{
	free(v->v);
	v->v = NULL;
	v->n = 0;
}

/*
 * The records that cover the place of the sweep in build_pieces(), the last of the list first: a
 * heap of pointers into that list.
 */
struct covering {
	const struct cfs_slice **v;
	size_t n;
};

static void cover(struct covering *c, const struct cfs_slice *r)
{
	size_t i = c->n++;

	for (; i && c->v[(i - 1) / 2] < r; i = (i - 1) / 2)
		c->v[i] = c->v[(i - 1) / 2];
	c->v[i] = r;
}

static void uncover_last(struct covering *c)
{
	const struct cfs_slice *r = c->v[--c->n];
	size_t i = 0, k;

	for (; (k = 2 * i + 1) < c->n; i = k) {
		if (k + 1 < c->n && c->v[k + 1] > c->v[k])
			k++;
		if (c->v[k] < r)
			break;
		c->v[i] = c->v[k];
	}
	c->v[i] = r;
}

static int compare_pos(const void *a, const void *b)
{
	const struct cfs_slice *x = *(const struct cfs_slice *const *)a;
	const struct cfs_slice *y = *(const struct cfs_slice *const *)b;

	return (x->pos > y->pos) - (x->pos < y->pos);
}

/* A sweep over n records that are sorted by position. c has room for all, v for 2 n pieces. */
static void build_pieces(const struct cfs_slice **sorted, size_t n, struct covering *c,
			 struct cfs_view *v)
{
	const struct cfs_slice *shown = NULL, *top;
	uint32_t at = 0, end;
	size_t i = 0;

	while (i < n || c->n) {
		if (!c->n)
			at = sorted[i]->pos;
		while (i < n && sorted[i]->pos == at)
			cover(c, sorted[i++]);
		top = c->v[0];
		end = top->pos + top->len;
		if (i < n && sorted[i]->pos < end)
			end = sorted[i]->pos;
		if (top->id && top == shown)
			v->v[v->n - 1].len += end - at;
		else if (top->id)
			v->v[v->n++] = (struct cfs_piece){.pos = at,
							  .len = end - at,
							  .slice = top->id,
							  .slice_size = top->size,
							  .slice_off = top->off + (at - top->pos)};
		shown = top;
		at = end;
		while (c->n && c->v[0]->pos + c->v[0]->len <= at)
			uncover_last(c);
	}
}

int cfs_view_build(const struct cfs_slice *records, size_t n, struct cfs_view *ret)
{
	/* One byte more: malloc(0) may return NULL. */
	const struct cfs_slice **order = malloc(2 * n * sizeof(*order) + 1);
	struct covering covering = {0};
	/* Each record begins a piece and, where it ends inside another, a second one. */
	struct cfs_view v = {.v = malloc(2 * n * sizeof(*v.v) + 1)};
	size_t i, m = 0;
	int r = order && v.v ? 0 : -ENOMEM;

	for (i = 0; i < n && r == 0; i++) {
		if (!record_valid(&records[i]))
			r = -EIO;
		else if (records[i].len)
			order[m++] = &records[i];
	}
	if (r == 0) {
		qsort(order, m, sizeof(*order), compare_pos);
		covering.v = order + m;
		build_pieces(order, m, &covering, &v);
		*ret = v;
	} else {
		cfs_view_free(&v);
	}
	free(order);
	return r;
}
