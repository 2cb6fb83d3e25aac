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

int cfs_view_build(const struct cfs_slice *records, size_t n, struct cfs_view *ret)
{
	struct cfs_view v = {0};
	size_t i;

	for (i = 0; i < n; i++) {
		if (!record_valid(&records[i]))
			return -EIO;
	}
	/* A record adds itself and, when it splits a piece, that piece's second half. */
	v.v = malloc((2 * n + 1) * sizeof(*v.v));
	if (!v.v)
		return -ENOMEM;
	for (i = 0; i < n; i++)
		apply(&v, &records[i]);
	*ret = v;
	return 0;
}

void cfs_view_free(struct cfs_view *v)
{
	free(v->v);
	v->v = NULL;
	v->n = 0;
}
