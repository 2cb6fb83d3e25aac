/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rename in two round trips: a query of both names, and a batch that makes all changes if the
 * inodes are unchanged (optimistic check).
 */
#include <errno.h>

#include "mysql-internal.h"

struct rename {
	const struct cfs_engine_rename *req;
	struct cfs_attr src_dir, dst_dir;
	struct cfs_entry src, dst; /* dst.ino 0: the name is free */
	struct cfs_removed victim;
};

static int look_up(struct mysql_conn *m, struct rename *a)
{
	const struct cfs_rename *q = &a->req->r;
	struct sql_conn *c = &m->sql;
	int r = sql_query(c, SQL_lookup_two, "ibibib", (int64_t)q->src_parent, q->src_name,
			  q->src_len, (int64_t)q->src_parent, q->src_name, q->src_len,
			  (int64_t)q->dst_parent, q->dst_name, q->dst_len);

	a->src.ino = a->dst.ino = 0;
	while (!r && (r = sql_next(c, SQL_lookup_two)) > 0) {
		struct cfs_entry *e =
			sql_int(c, SQL_lookup_two, SQL_NODE_COLUMNS + 1) ? &a->src : &a->dst;

		sql_node_columns(c, SQL_lookup_two, 0, &e->attr);
		e->ino = (cfs_ino_t)sql_int(c, SQL_lookup_two, SQL_NODE_COLUMNS);
		r = 0;
	}
	return r;
}

/* 1: a usual rename. Special cases and refusals take the generic transaction. */
static int decide(struct mysql_conn *m, const struct cfs_ctx *ctx, struct rename *a)
{
	const struct cfs_rename *q = &a->req->r;
	const struct cfs_attr *src = &a->src.attr, *dst = &a->dst.attr;
	bool trash = a->req->trash && !(dst->flags & CFS_FLAG_SKIP_TRASH);

	if (!a->src.ino || a->src.ino == a->dst.ino || a->src.ino == q->dst_parent ||
	    cfs_ino_is_trash(q->src_parent) || cfs_ino_is_trash(q->dst_parent) ||
	    (src->type == CFS_TYPE_DIR && q->src_parent != q->dst_parent) ||
	    cfs_rules_remove_entry(ctx, q->src_parent, &a->src_dir, src))
		return 0;
	a->victim = (struct cfs_removed){.outcome = CFS_REMOVED_NONE};
	if (!a->dst.ino)
		return !cfs_rules_add_entry(ctx, q->dst_parent, &a->dst_dir);
	if ((q->flags & CFS_RENAME_NOREPLACE) || src->type == CFS_TYPE_DIR ||
	    dst->type == CFS_TYPE_DIR || dst->nlink != 1 ||
	    cfs_rules_remove_entry(ctx, q->dst_parent, &a->dst_dir, dst))
		return 0;
	a->victim.outcome = trash ? CFS_REMOVED_TRASHED : CFS_REMOVED_DELETED;
	return trash || dst->type != CFS_TYPE_FILE ||
	       !cfs_host_is_open(m->sql.db->engine.host, a->dst.ino);
}

static int run(struct mysql_conn *m, const struct cfs_ctx *ctx, struct rename *a)
{
	const struct cfs_rename *q = &a->req->r;
	const struct cfs_attr *src = &a->src.attr, *dst = &a->dst.attr;
	cfs_ino_t trash = a->victim.outcome == CFS_REMOVED_TRASHED ? a->req->trash : 0;
	char name[CFS_NAME_MAX + 1];
	size_t len = 0;
	int64_t left = 0;
	int r;

	if (trash)
		len = cfs_rules_trash_name(q->dst_parent, a->dst.ino, q->dst_name, q->dst_len,
					   name);
	r = mysql_batch_run(
		m, MYSQL_BATCH_rename, &left, 1,
		SQL_PARAMS(SQL_I(q->src_parent), SQL_I(q->dst_parent), SQL_I(a->src.ino),
			   SQL_I(a->dst.ino), SQL_I(a->dst.ino && a->dst.ino < a->src.ino),
			   SQL_I(dst->type), SQL_I(trash), SQL_B(q->src_name, q->src_len),
			   SQL_B(q->dst_name, q->dst_len), SQL_I(sql_us(ctx->now)),
			   SQL_I(sql_sub_us(ctx->now)), SQL_I(src->parent ? q->dst_parent : 0),
			   SQL_I(src->type), MYSQL_STILL(src), SQL_I(src->type),
			   SQL_I(dst->parent ? trash : 0), MYSQL_STILL(dst), SQL_B(name, len),
			   MYSQL_STILL(dst), SQL_I(dst->length), SQL_I(ctx->now.tv_sec),
			   MYSQL_DIR(&a->src_dir), MYSQL_DIR(&a->dst_dir)));
	a->victim.has_data = left;
	return r;
}

static int rename_once(struct mysql_conn *m, const struct cfs_ctx *ctx, void *arg)
{
	struct sql_db *db = m->sql.db;
	struct rename *a = arg;
	const struct cfs_rename *q = &a->req->r;
	int r;

	r = mysql_get_dir(m, q->src_parent, &a->src_dir);
	if (!r)
		r = mysql_get_dir(m, q->dst_parent, &a->dst_dir);
	if (r)
		return r == -ENOENT ? 0 : r;
	r = look_up(m, a);
	if (!r)
		r = decide(m, ctx, a);
	if (r > 0)
		r = run(m, ctx, a);
	if (r > 0) {
		cfs_optimistic_dir_forget(db->optimistic, a->src.ino);
		return 1;
	}
	cfs_optimistic_dir_forget(db->optimistic, q->src_parent);
	cfs_optimistic_dir_forget(db->optimistic, q->dst_parent);
	return r;
}

/* The commit probe: 1 when the target name leads to the moved inode. */
static int rename_applied(struct mysql_conn *m, const struct cfs_ctx *ctx, void *arg)
{
	struct rename *a = arg;
	const struct cfs_rename *q = &a->req->r;
	struct sql_edge edge;
	int r = sql_get_edge(&m->sql, q->dst_parent, q->dst_name, q->dst_len, &edge);

	if (r)
		return r == -ENOENT ? 0 : r;
	a->victim.has_data = a->victim.outcome == CFS_REMOVED_DELETED;
	return edge.ino == a->src.ino;
}

int mysql_op_rename(struct cfs_engine *e, const struct cfs_ctx *ctx,
		    const struct cfs_engine_rename *req, struct cfs_renamed *ret,
		    struct cfs_usage *ret_usage)
{
	struct rename a = {.req = req};
	int r = 0;

	if (!(req->r.flags & ~CFS_RENAME_NOREPLACE))
		r = mysql_batch(sql_db(e), ctx, CFS_META_OP_rename, rename_once, rename_applied, &a,
				sizeof(a));
	if (!r)
		return sql_op_rename(e, ctx, req, ret, ret_usage);
	if (r < 0)
		return r;
	cfs_rules_moved(ctx, req->r.dst_parent, &a.src.attr);
	a.victim.ino = a.dst.ino;
	a.victim.attr = a.dst.attr;
	if (a.victim.outcome == CFS_REMOVED_TRASHED)
		cfs_rules_moved(ctx, req->trash, &a.victim.attr);
	*ret = (struct cfs_renamed){.moved = a.src, .victim = a.victim};
	cfs_usage_renamed(ret_usage, req, ret);
	return 0;
}
