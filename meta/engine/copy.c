/* SPDX-License-Identifier: Apache-2.0 */
/* copy_file_range by reference: which bytes one call copies, and the records that name them. */
#include <errno.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "meta/engine/rules.h"

/* The most that one call copies: the transaction must stay short, and the kernel asks for 2 GiB. */
enum { COPY_CHUNKS = 64 };

int cfs_rules_copy_length(const struct cfs_copy_range *req, const struct cfs_attr *src,
			  uint64_t *ret)
{
	uint64_t len;

	if (src->type != CFS_TYPE_FILE)
		return -EINVAL;
	if (req->src_off >= src->length) {
		*ret = 0;
		return 0;
	}
	len = CFS_MIN(CFS_MIN(req->len, src->length - req->src_off), COPY_CHUNKS * CFS_CHUNK_SIZE);
	if (req->dst_off >= CFS_FILE_MAX || len >= CFS_FILE_MAX - req->dst_off)
		return -EFBIG;
	if (req->src == req->dst && req->src_off < req->dst_off + len &&
	    req->dst_off < req->src_off + len)
		return -EINVAL;
	*ret = len;
	return 0;
}

/*
 * Emits records for the next len bytes of the destination, which are those from `off` of the slice;
 * one record for each chunk.
 */
static int emit(const struct cfs_slice *from, uint32_t off, uint32_t len, uint64_t *at,
		cfs_piece_fn fn, void *arg)
{
	int r = 0;

	while (len && !r) {
		struct cfs_slice s = {
			.pos = (uint32_t)(*at & (CFS_CHUNK_SIZE - 1)),
			.id = from->id,
			.size = from->size,
			.off = from->id ? off : 0,
		};

		s.len = CFS_MIN(len, (uint32_t)CFS_CHUNK_SIZE - s.pos);
		r = fn(arg, (uint32_t)(*at >> CFS_CHUNK_BITS), &s);
		*at += s.len;
		off += s.len;
		len -= s.len;
	}
	return r;
}

/*
 * The range is cut into spans, at each beginning and end of a record. The records take their spans
 * from the newest to the oldest, each those that are free.
 */
struct span {
	uint32_t pos;		     /* its end is the position of the next span */
	const struct cfs_slice *rec; /* NULL: free */
	size_t next; /* a span that is free or has a smaller `next`; itself if free */
};

static int compare_spans(const void *a, const void *b)
{
	const struct span *x = a, *y = b;

	return CFS_COMPARE(x->pos, y->pos);
}

/* The part of a record in [pos, end). False: it has none. */
static bool clip(const struct cfs_slice *s, uint32_t pos, uint32_t end, uint32_t *ret_from,
		 uint32_t *ret_to)
{
	*ret_from = CFS_MAX(s->pos, pos);
	*ret_to = (uint32_t)CFS_MIN((uint64_t)s->pos + s->len, (uint64_t)end);
	return *ret_from < *ret_to;
}

/* Returns the number of spans, the last one being the end of the range; they have no record. */
static size_t cut(struct span *spans, const struct cfs_slice *v, size_t n, uint32_t pos,
		  uint32_t end)
{
	size_t n_cuts = 0, n_spans = 0, i;
	uint32_t from, to;

	spans[n_cuts++].pos = pos;
	spans[n_cuts++].pos = end;
	for (i = 0; i < n; i++) {
		if (!clip(&v[i], pos, end, &from, &to))
			continue;
		spans[n_cuts++].pos = from;
		spans[n_cuts++].pos = to;
	}
	qsort(spans, n_cuts, sizeof(*spans), compare_spans);
	for (i = 0; i < n_cuts; i++) {
		if (n_spans && spans[n_spans - 1].pos == spans[i].pos)
			continue;
		spans[n_spans] = (struct span){.pos = spans[i].pos, .next = n_spans};
		n_spans++;
	}
	return n_spans;
}

/* The span that begins at pos. */
static size_t span_at(const struct span *spans, size_t n, uint32_t pos)
{
	size_t lo = 0, hi = n, mid;

	while (hi - lo > 1) {
		mid = (lo + hi) / 2;
		if (spans[mid].pos <= pos)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

/* The first free span from i on. Halves the way for the next search. */
static size_t free_span(struct span *spans, size_t i)
{
	while (spans[i].next != i) {
		spans[i].next = spans[spans[i].next].next;
		i = spans[i].next;
	}
	return i;
}

static void take_spans(struct span *spans, size_t n_spans, const struct cfs_slice *v, size_t n,
		       uint32_t end)
{
	uint32_t from, to;
	size_t i, last;

	while (n-- > 0) {
		if (!clip(&v[n], spans[0].pos, end, &from, &to))
			continue;
		last = span_at(spans, n_spans, to);
		i = free_span(spans, span_at(spans, n_spans, from));
		while (i < last) {
			spans[i].rec = &v[n];
			spans[i].next = i + 1;
			i = free_span(spans, i);
		}
	}
}

int cfs_rules_copy_pieces(const struct cfs_slice *v, size_t n, uint32_t pos, uint32_t end,
			  uint64_t at, cfs_piece_fn fn, void *arg)
{
	static const struct cfs_slice hole;
	struct span *spans;
	size_t n_spans, i, j;
	int r = 0;

	if (pos >= end)
		return 0;
	spans = calloc(2 * n + 2, sizeof(*spans));
	if (!spans)
		return -ENOMEM;
	n_spans = cut(spans, v, n, pos, end);
	take_spans(spans, n_spans, v, n, end);
	for (i = 0; i + 1 < n_spans && !r; i = j) {
		const struct cfs_slice *s = spans[i].rec ? spans[i].rec : &hole;

		for (j = i + 1; j + 1 < n_spans && spans[j].rec == spans[i].rec; j++)
			;
		r = emit(s, s == &hole ? 0 : s->off + (spans[i].pos - s->pos),
			 spans[j].pos - spans[i].pos, &at, fn, arg);
	}
	free(spans);
	return r;
}
