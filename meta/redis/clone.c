/* SPDX-License-Identifier: Apache-2.0 */
/* Cloning, inode by inode (volume-format section 11). */
#include <stdlib.h>

#include "base/bytes.h"
#include "meta/redis/ops.h"

int rds_op_clone_ino(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t src, cfs_ino_t ino,
		     cfs_ino_t parent, const char *name, size_t len, bool preserve,
		     struct cfs_entry *ret, struct cfs_usage *ret_usage)
{
	struct rds_chunks k = {0};
	RDS_REQUEST(q, e);
	uint8_t owner[8];
	redisReply *a;
	int r;

	cfs_put_be32(owner, ctx->uid);
	cfs_put_be32(owner + 4, ctx->gid);
	do
		r = rds_script(&q, ctx, CFS_META_OP_other, &rds_clone_ino_lua, &a, "uu8u8bsbtsbb",
			       src, ino, ino, parent, parent, name ? name : "",
			       name ? len : (size_t)0, preserve ? "1" : "0", owner, sizeof(owner),
			       ctx->now, rds_stats(rds_of(e)), k.expected.p, k.expected.len,
			       k.found.p, k.found.len);
	while (rds_wants_chunks(e, ctx, src, &r, a, &k));
	if (!r)
		r = rds_attr_reply(a->element[1], &ret->attr);
	if (!r) {
		ret->ino = ino;
		/* The clone of the parent has the parent's statistics already. */
		cfs_usage_made(ret_usage, 0, &ret->attr);
	}
	return r;
}

int rds_op_attach(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, cfs_ino_t parent,
		  const char *name, size_t len, struct cfs_usage *ret_usage)
{
	RDS_REQUEST(q, e);
	struct cfs_attr attr;
	redisReply *a;
	int r = rds_script(&q, ctx, CFS_META_OP_other, &rds_attach_lua, &a, "uu88bwts", parent, ino,
			   parent, ino, name, len, ctx, ctx->now, rds_stats(rds_of(e)));

	if (!r)
		r = rds_attr_reply(a->element[1], &attr);
	if (!r) {
		*ret_usage = (struct cfs_usage){0};
		cfs_usage_entry(ret_usage, parent, &attr, 1);
	}
	return r;
}

int rds_op_drop_detached(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			 struct cfs_usage *ret_usage)
{
	RDS_REQUEST(q, e);
	uint64_t length;
	redisReply *a;
	int r = rds_script(&q, ctx, CFS_META_OP_other, &rds_drop_detached_lua, &a, "u8t", ino, ino,
			   ctx->now);

	if (!r && a->elements == 1)
		*ret_usage = (struct cfs_usage){0};
	else if (!r)
		r = rds_deleted_reply(rds_of(e), ino, a, &length, ret_usage);
	return r;
}
