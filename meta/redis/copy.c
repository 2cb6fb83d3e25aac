/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy_file_range by reference: records of the source's chunk lists become records of the
 * destination. This client reads both files and the lists, and makes the records; a script writes
 * them if nothing has changed (optimistic check).
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "meta/redis/ops.h"

struct copy {
	const struct cfs_copy_range *req;
	/* of one attempt */
	struct cfs_attr src, dst;
	uint64_t len;
	uint32_t indx; /* of the records collected in `chunk` */
	struct rds_bytes chunk, out, refs, lists;
};

static void flush(struct copy *a)
{
	uint8_t head[8];

	if (!a->chunk.len)
		return;
	cfs_put_be32(head, a->indx);
	cfs_put_be32(head + 4, (uint32_t)a->chunk.len);
	rds_bytes_add(&a->out, head, sizeof(head));
	rds_bytes_add(&a->out, a->chunk.p, a->chunk.len);
	a->chunk.len = 0;
}

static void add_ref(struct copy *a, const struct cfs_slice *s)
{
	uint8_t ref[16];

	cfs_put_be64(ref, s->id);
	cfs_put_be32(ref + 8, s->size);
	cfs_put_be32(ref + 12, 1);
	rds_bytes_add(&a->refs, ref, sizeof(ref));
}

static int add_piece(void *arg, uint32_t indx, const struct cfs_slice *s)
{
	struct copy *a = arg;
	uint8_t record[CFS_SLICE_BYTES];

	if (indx != a->indx)
		flush(a);
	a->indx = indx;
	cfs_slice_encode(s, record);
	rds_bytes_add(&a->chunk, record, sizeof(record));
	if (s->id)
		add_ref(a, s);
	return 0;
}

static int read_lists(struct copy *a, struct rds_request *q, const struct cfs_ctx *ctx)
{
	uint64_t off = a->req->src_off, end = off + a->len;
	const uint32_t first = (uint32_t)(off >> CFS_CHUNK_BITS);
	uint32_t last = (uint32_t)((end - 1) >> CFS_CHUNK_BITS), i;
	int r;

	rds_reset(q);
	for (i = first; i <= last; i++)
		rds_command(q, "scss", "LRANGE", a->req->src, i, "0", "-1");
	r = rds_run(q, ctx, CFS_META_OP_copy_range);
	for (i = first; i <= last && !r; i++) {
		const redisReply *list = q->reply[i - first];
		uint64_t base = (uint64_t)i << CFS_CHUNK_BITS, from = CFS_MAX(off, base);
		struct cfs_slice *v = NULL;
		uint8_t head[8];

		r = rds_records_reply(list, a->req->src, i, &v);
		if (r)
			break;
		cfs_put_be32(head, i);
		cfs_put_be32(head + 4, (uint32_t)list->elements);
		rds_bytes_add(&a->lists, head, sizeof(head));
		r = cfs_rules_copy_pieces(v, list->elements, (uint32_t)(from - base),
					  (uint32_t)(CFS_MIN(end, base + CFS_CHUNK_SIZE) - base),
					  a->req->dst_off + (from - off), add_piece, a);
		free(v);
	}
	flush(a);
	if (a->out.failed || a->chunk.failed || a->refs.failed || a->lists.failed)
		return -ENOMEM;
	return r;
}

static int try_copy(struct copy *a, struct cfs_engine *e, const struct cfs_ctx *ctx,
		    struct cfs_usage *ret_usage)
{
	const struct cfs_copy_range *p = a->req;
	RDS_REQUEST(nodes, e);
	RDS_REQUEST(q, e);
	char line[128];
	redisReply *reply;
	int r;

	a->out.len = a->refs.len = a->lists.len = a->chunk.len = 0;
	rds_command(&nodes, "sk", "GET", "i", p->src);
	rds_command(&nodes, "sk", "GET", "i", p->dst);
	r = rds_run(&nodes, ctx, CFS_META_OP_copy_range);
	if (!r)
		r = rds_attr_reply(nodes.reply[0], &a->src);
	if (!r)
		r = rds_attr_reply(nodes.reply[1], &a->dst);
	if (!r)
		r = cfs_rules_change_file(ctx, e->host, p->dst, &a->dst);
	if (!r)
		r = cfs_rules_copy_length(a->req, &a->src, &a->len);
	if (!r && a->len)
		r = read_lists(a, &q, ctx);
	if (!r && a->len) {
		snprintf(line, sizeof(line),
			 "%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64, p->src,
			 p->src_off, p->dst, p->dst_off, a->len);
		r = rds_script(&q, ctx, CFS_META_OP_copy_range, &rds_copy_range_lua, &reply,
			       "ububbbb8tss", p->src, nodes.reply[0]->str,
			       (size_t)nodes.reply[0]->len, p->dst, nodes.reply[1]->str,
			       (size_t)nodes.reply[1]->len, a->lists.p, a->lists.len, a->out.p,
			       a->out.len, a->refs.p, a->refs.len, p->dst_off + a->len, ctx->now,
			       rds_stats(rds_of(e)), line);
		if (!r)
			r = rds_change_reply(e, p->dst, reply, &a->dst, ret_usage);
	}
	return r;
}

int rds_op_copy_range(struct cfs_engine *e, const struct cfs_ctx *ctx,
		      const struct cfs_copy_range *req, uint64_t *ret_copied,
		      struct cfs_attr *ret_dst, struct cfs_usage *ret_usage)
{
	struct copy a = {.req = req};
	struct cfs_usage usage = {0};
	unsigned attempt = 0;
	int r;

	do
		r = try_copy(&a, e, ctx, &usage);
	while (r == -EAGAIN && cfs_backoff(attempt++, 1, 32, ctx->deadline));
	free(a.chunk.p);
	free(a.out.p);
	free(a.refs.p);
	free(a.lists.p);
	if (r)
		return r == -EAGAIN ? -ETIMEDOUT : r;
	*ret_copied = a.len;
	*ret_dst = a.dst;
	*ret_usage = usage;
	return 0;
}
