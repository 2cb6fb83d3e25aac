/* SPDX-License-Identifier: Apache-2.0 */
/* Copying file data by reference: records of one chunk list translated into another. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/log.h"
#include "meta/sql/sql.h"

/* The visible pieces of a chunk: in order of pos, not overlapping, without holes. */
struct view {
	struct cfs_slice *v;
	size_t n;
};

struct copy {
	const struct cfs_copy_range *req;
	/* of one attempt */
	struct sql_conn *c;
	struct cfs_attr src, dst;
	uint64_t len;
	uint64_t at;	   /* next byte of the destination */
	uint8_t *records;  /* for chunk `indx`, not appended yet */
	size_t used, size; /* bytes */
	uint32_t indx;
	struct sql_refs refs;
	struct cfs_usage usage;
};

/* The view `old` with the record s laid over it; out has room for n + 2. */
static size_t overlay(const struct cfs_slice *old, size_t n, const struct cfs_slice *s,
		      struct cfs_slice *out)
{
	uint64_t end = (uint64_t)s->pos + s->len;
	bool placed = false;
	size_t i, count = 0;

	for (i = 0; i < n; i++) {
		struct cfs_slice p = old[i];
		uint64_t p_end = (uint64_t)p.pos + p.len;

		if (p.pos < s->pos) {
			out[count] = p;
			out[count++].len = CFS_MIN(p.len, s->pos - p.pos);
		}
		if (!placed && p_end > s->pos) {
			out[count++] = *s;
			placed = true;
		}
		if (p_end > end) {
			uint32_t cut = p.pos < end ? (uint32_t)(end - p.pos) : 0;

			p.pos += cut;
			p.off += cut;
			p.len -= cut;
			out[count++] = p;
		}
	}
	if (!placed)
		out[count++] = *s;
	return count;
}

static int build_view(const uint8_t *records, size_t n, struct view *ret)
{
	struct cfs_slice *a = calloc(2 * n + 1, sizeof(*a)), *b = calloc(2 * n + 1, sizeof(*b));
	size_t i, count = 0;

	if (!a || !b) {
		free(a);
		free(b);
		return -ENOMEM;
	}
	for (i = 0; i < n; i++) {
		struct cfs_slice s, *swap = a;

		cfs_slice_decode(records + i * CFS_SLICE_BYTES, &s);
		if (!s.len)
			continue;
		count = overlay(a, count, &s, b);
		a = b;
		b = swap;
	}
	free(b);
	*ret = (struct view){.v = a, .n = count};
	return 0;
}

static int load_view(struct sql_conn *c, cfs_ino_t ino, uint32_t indx, struct view *ret)
{
	const void *p;
	size_t len;
	int r = sql_row(c, SQL_lock_chunk, "ii", ino, (int64_t)indx);

	if (r <= 0) {
		*ret = (struct view){0};
		return r;
	}
	p = sql_blob(c, SQL_lock_chunk, 0, &len);
	if (len % CFS_SLICE_BYTES) {
		cfs_err("chunk list is damaged: inode=%" PRIu64 " chunk=%u bytes=%zu", ino, indx,
			len);
		r = -EIO;
	} else {
		r = build_view(p, len / CFS_SLICE_BYTES, ret);
	}
	sql_done(c, SQL_lock_chunk);
	return r;
}

static int flush(struct copy *a)
{
	int r = 0;

	if (a->used)
		r = sql_append_records(a->c, a->req->dst, a->indx, a->records, a->used);
	a->used = 0;
	return r;
}

static int put_record(struct copy *a, const struct cfs_slice *s)
{
	size_t size = a->size ? 2 * a->size : 64 * CFS_SLICE_BYTES;
	uint8_t *p;

	if (a->used == a->size) {
		p = realloc(a->records, size);
		if (!p)
			return -ENOMEM;
		a->records = p;
		a->size = size;
	}
	cfs_slice_encode(s, a->records + a->used);
	a->used += CFS_SLICE_BYTES;
	return sql_refs_add(&a->refs, s->id, s->size);
}

/* Emits the next len bytes of the destination, from `off` of the slice; cut at chunk borders. */
static int emit(struct copy *a, const struct cfs_slice *from, uint32_t off, uint32_t len)
{
	int r = 0;

	while (len && !r) {
		uint32_t indx = (uint32_t)(a->at >> CFS_CHUNK_BITS);
		struct cfs_slice s = {
			.pos = (uint32_t)(a->at & (CFS_CHUNK_SIZE - 1)),
			.id = from->id,
			.size = from->size,
			.off = from->id ? off : 0,
		};

		s.len = CFS_MIN(len, (uint32_t)CFS_CHUNK_SIZE - s.pos);
		if (indx != a->indx)
			r = flush(a);
		a->indx = indx;
		if (!r)
			r = put_record(a, &s);
		a->at += s.len;
		off += s.len;
		len -= s.len;
	}
	return r;
}

static int copy_window(struct copy *a, const struct view *view, uint32_t pos, uint32_t end)
{
	const struct cfs_slice hole = {0};
	size_t i;
	int r = 0;

	for (i = 0; i < view->n && pos < end && !r; i++) {
		const struct cfs_slice *p = &view->v[i];
		uint32_t skip, len;

		if (p->pos + p->len <= pos)
			continue;
		if (p->pos > pos) {
			len = CFS_MIN(p->pos, end) - pos;
			r = emit(a, &hole, 0, len);
			pos += len;
		}
		if (pos >= end || r)
			break;
		skip = pos - p->pos;
		len = CFS_MIN(p->len - skip, end - pos);
		r = emit(a, p, p->off + skip, len);
		pos += len;
	}
	return r || pos >= end ? r : emit(a, &hole, 0, end - pos);
}

static int copy_records(struct copy *a)
{
	uint64_t off = a->req->src_off, end = off + a->len;
	int r = 0;

	while (off < end && !r) {
		uint32_t indx = (uint32_t)(off >> CFS_CHUNK_BITS);
		uint64_t base = off & ~(CFS_CHUNK_SIZE - 1);
		uint64_t stop = CFS_MIN(end, base + CFS_CHUNK_SIZE);
		struct view view;

		r = load_view(a->c, a->req->src, indx, &view);
		if (r < 0)
			break;
		r = copy_window(a, &view, (uint32_t)(off - base), (uint32_t)(stop - base));
		free(view.v);
		off = stop;
	}
	if (r >= 0)
		r = flush(a);
	return r < 0 ? r : sql_refs_raise(a->c, &a->refs);
}

static int lock_nodes(const struct cfs_ctx *ctx, struct copy *a)
{
	const struct cfs_copy_range *q = a->req;
	int r = 0;

	if (q->src < q->dst)
		r = sql_get_node(a->c, q->src, true, &a->src);
	if (r >= 0)
		r = sql_lock_file(a->c, ctx, q->dst, &a->dst);
	if (r >= 0 && q->src > q->dst)
		r = sql_get_node(a->c, q->src, true, &a->src);
	if (q->src == q->dst)
		a->src = a->dst;
	return r;
}

static int copy_range(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct copy *a = arg;
	const struct cfs_copy_range *q = a->req;
	uint64_t old_length;
	int r;

	a->c = c;
	a->usage = (struct cfs_usage){0};
	a->used = 0;
	a->at = q->dst_off;
	sql_refs_clear(&a->refs);
	r = lock_nodes(ctx, a);
	if (r >= 0)
		r = cfs_rules_copy_length(a->req, &a->src, &a->len);
	if (r < 0 || !a->len)
		return r;
	r = copy_records(a);
	if (r < 0)
		return r;
	old_length = a->dst.length;
	a->dst.length = CFS_MAX(old_length, q->dst_off + a->len);
	a->dst.mtime = a->dst.ctime = ctx->now;
	r = sql_set_written(c, q->dst, &a->dst);
	if (r >= 0)
		r = sql_usage_length(c, q->dst, &a->dst, old_length, &a->usage);
	if (r >= 0)
		r = sql_write_usage(c, &a->usage);
	if (r < 0)
		return r;
	return sql_log(c, ctx,
		       "COPYFILERANGE(%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64
		       "):%" PRIu64,
		       q->src, q->src_off, q->dst, q->dst_off, a->len, a->dst.length);
}

int sql_op_copy_range(struct cfs_engine *e, const struct cfs_ctx *ctx,
		      const struct cfs_copy_range *req, uint64_t *ret_copied,
		      struct cfs_attr *ret_dst, struct cfs_usage *ret_usage)
{
	struct copy a = {.req = req};
	int r = sql_txn(sql_db(e), ctx, CFS_META_OP_copy_range, copy_range, &a);

	sql_refs_free(&a.refs);
	free(a.records);
	if (r < 0)
		return r;
	*ret_copied = a.len;
	*ret_dst = a.dst;
	*ret_usage = a.usage;
	return 0;
}
