/* SPDX-License-Identifier: Apache-2.0 */
/* copy_file_range by reference: the source's records become records of the destination. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "meta/sql/sql-internal.h"

struct copy {
	const struct cfs_copy_range *req;
	/* state of one attempt */
	struct sql_conn *c;
	struct cfs_attr src, dst;
	uint64_t len;
	uint8_t *records;  /* for chunk `indx`, not appended yet */
	size_t used, size; /* bytes */
	uint32_t indx;
	struct sql_refs refs;
	struct cfs_usage *usage;
};

static int load_records(struct sql_conn *c, cfs_ino_t ino, uint32_t indx, struct cfs_slice **ret,
			size_t *ret_n)
{
	const uint8_t *p;
	size_t len;
	int r = sql_row(c, SQL_lock_chunk, "ii", ino, (int64_t)indx);

	*ret = NULL;
	*ret_n = 0;
	if (r <= 0)
		return r;
	p = sql_blob(c, SQL_lock_chunk, 0, &len);
	r = sql_decode_records(p, len, ino, indx, ret, ret_n);
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

static int add_piece(void *arg, uint32_t indx, const struct cfs_slice *s)
{
	struct copy *a = arg;
	int r = indx != a->indx ? flush(a) : 0;

	a->indx = indx;
	return r < 0 ? r : put_record(a, s);
}

static int copy_records(struct copy *a)
{
	uint64_t off = a->req->src_off, end = off + a->len;
	int r = 0;

	while (off < end && !r) {
		uint32_t indx = (uint32_t)(off >> CFS_CHUNK_BITS);
		uint64_t base = off & ~(CFS_CHUNK_SIZE - 1);
		uint64_t stop = CFS_MIN(end, base + CFS_CHUNK_SIZE);
		struct cfs_slice *v;
		size_t n;

		r = load_records(a->c, a->req->src, indx, &v, &n);
		if (r < 0)
			break;
		r = cfs_rules_copy_pieces(v, n, (uint32_t)(off - base), (uint32_t)(stop - base),
					  a->req->dst_off + (off - a->req->src_off), add_piece, a);
		free(v);
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
	*a->usage = (struct cfs_usage){0};
	a->used = 0;
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
	r = sql_finish_change(c, q->dst, &a->dst, old_length, a->usage);
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
	struct cfs_optimistic *cache = sql_db(e)->optimistic;
	struct copy a = {.req = req, .usage = ret_usage};
	int r = sql_txn(sql_db(e), ctx, CFS_META_OP_copy_range, copy_range, &a);

	sql_refs_free(&a.refs);
	free(a.records);
	if (r < 0)
		return r;
	if (cache)
		cfs_optimistic_file_changed(cache, req->dst, &a.dst);
	*ret_copied = a.len;
	*ret_dst = a.dst;
	return 0;
}
