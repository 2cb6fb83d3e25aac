/* SPDX-License-Identifier: Apache-2.0 */
/* Removal of names: unlink, rmdir, rename. */
#include <errno.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "meta/redis/ops.h"

enum { MAX_ASKED = 100 };

static int victim_reply(struct rds *rds, const redisReply *outcome, const redisReply *ino,
			const redisReply *attr, const redisReply *data, const redisReply *length,
			struct cfs_removed *ret)
{
	int r = rds_attr_reply(attr, &ret->attr);
	int64_t n = rds_int(outcome);

	if (r || ino->len != 8 || n <= CFS_REMOVED_NONE || n > CFS_REMOVED_DELETED)
		return r ? r : -EIO;
	ret->outcome = (enum cfs_removal_outcome)n;
	ret->ino = cfs_get_be64(ino->str);
	ret->has_data = rds_int(data) != 0;
	rds_cache_attr(rds, ret->ino, attr, &ret->attr);
	if (ret->has_data)
		rds_deletions_add(rds, ret->ino, strtoull(length->str, NULL, 10));
	return 0;
}

/* Tells a script whether this client has an inode open: the expected inode of the name. */
struct open_state {
	cfs_ino_t ino; /* 0: none */
	const char *open;
	unsigned tries;
};

static struct open_state open_state(struct rds *rds, cfs_ino_t ino)
{
	bool open = ino && cfs_host_is_open(rds->engine.host, ino);

	return (struct open_state){.ino = ino, .open = open ? "1" : "0"};
}

static struct open_state expected_state(struct rds *rds, cfs_ino_t parent, const char *name,
					size_t len)
{
	return open_state(rds, cfs_optimistic_name(&rds->optimistic, parent, name, len));
}

/* True: the script asks for the state of another inode; run it again. */
static bool asks_again(struct rds *rds, int r, const redisReply *a, struct open_state *k)
{
	unsigned tries = k->tries + 1;

	if (r != -EBUSY || a->elements != 2 || !rds_is_bytes(a->element[1]) || tries == MAX_ASKED)
		return false;
	*k = open_state(rds, strtoull(a->element[1]->str, NULL, 10));
	k->tries = tries;
	return true;
}

/* The script that applies the rules itself. */
static int remove_by_rules(struct cfs_engine *e, const struct cfs_ctx *ctx,
			   const struct cfs_engine_remove *req, struct cfs_removed *ret)
{
	struct rds *rds = rds_of(e);
	struct open_state k = expected_state(rds, req->parent, req->name, req->name_len);
	RDS_REQUEST(q, e);
	redisReply *a;
	int r;

	do
		r = rds_script(&q, ctx, cfs_remove_op(req), &rds_remove_lua, &a, "uu8bsu8wtsus",
			       req->parent, k.ino, req->parent, req->name, req->name_len,
			       req->dir ? "1" : "0", req->trash, req->trash, ctx, ctx->now,
			       rds_stats(rds), cfs_host_sid(e->host), k.open);
	while (asks_again(rds, r, a, &k));
	if (!r && a->elements != 7)
		r = -EIO;
	if (!r) {
		*ret = (struct cfs_removed){0};
		r = victim_reply(rds, a->element[1], a->element[2], a->element[3], a->element[4],
				 a->element[6], ret);
		if (!r && !cfs_ino_is_trash(req->parent))
			r = rds_attr_reply(a->element[5], &ret->parent);
		if (!r && !cfs_ino_is_trash(req->parent))
			rds_cache_attr(rds, req->parent, a->element[5], &ret->parent);
	}
	return r;
}

int rds_op_remove(struct cfs_engine *e, const struct cfs_ctx *ctx,
		  const struct cfs_engine_remove *req, struct cfs_removed *ret,
		  struct cfs_usage *ret_usage)
{
	int r = req->dir ? 0 : rds_unlink_optimistic(e, ctx, req, ret);

	if (!r)
		r = remove_by_rules(e, ctx, req, ret);
	if (r < 0)
		return r;
	if (ret->outcome == CFS_REMOVED_DELETED) {
		cfs_optimistic_file_forget(&rds_of(e)->optimistic, ret->ino);
		cfs_optimistic_dir_forget(&rds_of(e)->optimistic, ret->ino);
	}
	*ret_usage = (struct cfs_usage){0};
	cfs_usage_removed(ret_usage, req->parent, req->trash, ret);
	return 0;
}

static int rename_reply(struct rds *rds, const struct cfs_engine_rename *req, const redisReply *a,
			struct cfs_renamed *ret, struct cfs_usage *ret_usage)
{
	int r;

	*ret = (struct cfs_renamed){0};
	*ret_usage = (struct cfs_usage){0};
	if (a->elements < 4 || a->element[1]->len != 8)
		return -EIO;
	ret->moved.ino = cfs_get_be64(a->element[1]->str);
	r = rds_attr_reply(a->element[2], &ret->moved.attr);
	/* Both names lead to one inode: nothing has changed. */
	if (r || a->elements < 8)
		return r;
	if (rds_int(a->element[3]) != CFS_REMOVED_NONE)
		r = victim_reply(rds, a->element[3], a->element[4], a->element[5], a->element[6],
				 a->element[7], &ret->victim);
	if (!r)
		cfs_usage_renamed(ret_usage, req, ret);
	return r;
}

int rds_op_rename(struct cfs_engine *e, const struct cfs_ctx *ctx,
		  const struct cfs_engine_rename *req, struct cfs_renamed *ret,
		  struct cfs_usage *ret_usage)
{
	const struct cfs_rename *n = &req->r;
	struct rds *rds = rds_of(e);
	struct open_state k = expected_state(rds, n->dst_parent, n->dst_name, n->dst_len);
	RDS_REQUEST(q, e);
	redisReply *a;
	int r;

	do
		r = rds_script(&q, ctx, CFS_META_OP_rename, &rds_rename_lua, &a, "uu8b8buu8wtsuus",
			       n->src_parent, n->dst_parent, n->src_parent, n->src_name, n->src_len,
			       n->dst_parent, n->dst_name, n->dst_len, (uint64_t)n->flags,
			       req->trash, req->trash, ctx, ctx->now, rds_stats(rds),
			       cfs_host_sid(e->host), k.ino, k.open);
	while (asks_again(rds, r, a, &k));
	if (!r)
		r = rename_reply(rds, req, a, ret, ret_usage);
	if (!r)
		rds_cache_name(rds, n->dst_parent, n->dst_name, n->dst_len, &ret->moved,
			       a->element[2]);
	return r;
}
