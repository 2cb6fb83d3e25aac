/* SPDX-License-Identifier: Apache-2.0 */
/* Removal of names (volume-format section 9): unlink, rmdir, and the victim of a rename. */
#include <errno.h>
#include <inttypes.h>

#include "meta/sql/sql.h"

int sql_move_node(struct sql_conn *c, cfs_ino_t ino, const struct cfs_attr *attr)
{
	return sql_post(c, SQL_move_node, "iiiii", (int64_t)attr->nlink, attr->parent,
			sql_us(attr->ctime), sql_sub_us(attr->ctime), ino);
}

int sql_touch_dir(struct sql_conn *c, const struct cfs_ctx *ctx, cfs_ino_t dir, int nlink_d)
{
	/* In the trash, link counts do not depend on entries. */
	if (cfs_ino_is_trash(dir) || !nlink_d)
		return 0;
	return sql_touch_parent(c, ctx, dir, nlink_d);
}

struct cfs_attr sql_missing_node(const struct sql_edge *edge)
{
	return (struct cfs_attr){
		.type = edge->type,
		.flags = CFS_FLAG_SKIP_TRASH,
		.nlink = 1,
	};
}

/* A missing node is replaced by sql_missing_node(). */
static int lock_victim(struct sql_conn *c, const struct sql_edge *edge, struct cfs_attr *ret)
{
	int r = sql_get_node(c, edge->ino, true, ret);

	if (r != -ENOENT)
		return r;
	*ret = sql_missing_node(edge);
	return 0;
}

/* 1: the file has chunks, which are recorded for deletion; 0: it has none. */
static int put_delfile(struct sql_conn *c, const struct cfs_ctx *ctx, cfs_ino_t ino,
		       uint64_t length, int has_data)
{
	int r = has_data;

	if (r < 0) {
		r = sql_has(c, SQL_any_chunk, "i", ino);
	}
	if (r <= 0)
		return r;
	r = sql_post(c, SQL_put_delfile, "iii", ino, length, (int64_t)ctx->now.tv_sec);
	return r < 0 ? r : 1;
}

int sql_put_delfile(struct sql_conn *c, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t length)
{
	return put_delfile(c, ctx, ino, length, -1);
}

/* Deletes the rows of the inode. */
static int delete_rows(struct sql_conn *c, const struct cfs_ctx *ctx, int has_data,
		       struct cfs_removed *v)
{
	int r = sql_post(c, SQL_del_node, "i", v->ino);

	if (r >= 0)
		r = sql_post(c, SQL_del_xattrs, "i", v->ino);
	if (r >= 0 && v->attr.type == CFS_TYPE_SYMLINK)
		r = sql_post(c, SQL_del_symlink, "i", v->ino);
	if (r >= 0 && v->attr.type == CFS_TYPE_FILE) {
		r = put_delfile(c, ctx, v->ino, v->attr.length, has_data);
		v->has_data = r > 0;
	}
	return r < 0 ? r : 0;
}

static int to_trash(struct sql_conn *c, const struct cfs_ctx *ctx,
		    const struct cfs_engine_remove *req, const char *name, size_t len,
		    struct cfs_removed *v)
{
	int r = sql_post(c, SQL_put_trash, "ibii", req->trash, name, len, v->ino,
			 (int64_t)v->attr.type);

	if (r < 0)
		return r;
	v->outcome = CFS_REMOVED_TRASHED;
	cfs_rules_moved(ctx, req->trash, &v->attr);
	return sql_move_node(c, v->ino, &v->attr);
}

static int drop_link(struct sql_conn *c, const struct cfs_ctx *ctx, int has_data,
		     struct cfs_removed *v)
{
	struct cfs_engine_host *host = sql_host(c);
	bool dir = v->attr.type == CFS_TYPE_DIR;
	int r;

	if (!dir && v->attr.nlink > 1) {
		v->outcome = CFS_REMOVED_LINKED;
		v->attr.nlink--;
		v->attr.ctime = ctx->now;
		return sql_move_node(c, v->ino, &v->attr);
	}
	if (v->attr.type == CFS_TYPE_FILE && cfs_host_sid(host) && cfs_host_is_open(host, v->ino)) {
		v->outcome = CFS_REMOVED_SUSTAINED;
		v->attr.nlink = 0;
		v->attr.ctime = ctx->now;
		r = sql_post(c, SQL_put_sustained, "ii", cfs_host_sid(host), v->ino);
		if (r >= 0)
			r = sql_post(c, SQL_del_xattrs, "i", v->ino);
		return r < 0 ? r : sql_move_node(c, v->ino, &v->attr);
	}
	v->outcome = CFS_REMOVED_DELETED;
	return delete_rows(c, ctx, has_data, v);
}

int sql_dispose(struct sql_conn *c, const struct cfs_ctx *ctx, const struct cfs_engine_remove *req,
		int has_data, struct cfs_removed *v)
{
	bool trash = req->trash && !(v->attr.flags & CFS_FLAG_SKIP_TRASH);
	char name[CFS_NAME_MAX + 1];
	struct sql_edge there;
	size_t len = 0;
	int r;

	if (v->attr.type == CFS_TYPE_DIR) {
		r = sql_post(c, SQL_del_dir_stat, "i", v->ino);
		if (r >= 0)
			r = sql_post(c, SQL_del_dir_quota, "i", v->ino);
		if (r < 0)
			return r;
	}
	if (trash)
		len = cfs_rules_trash_name(req->parent, v->ino, req->name, req->name_len, name);
	if (trash && v->attr.nlink > 1 && v->attr.type != CFS_TYPE_DIR) {
		r = sql_get_edge(c, req->trash, name, len, &there);
		if (r < 0 && r != -ENOENT)
			return r;
		trash = r == -ENOENT;
	}
	return trash ? to_trash(c, ctx, req, name, len, v) : drop_link(c, ctx, has_data, v);
}

struct remove {
	const struct cfs_engine_remove *req;
	/* results of one attempt */
	bool raced; /* the name leads to another inode than at the lookup: look it up again */
	struct cfs_removed *ret;
	struct cfs_usage *usage;
};

static int log_removal(struct sql_conn *c, const struct cfs_ctx *ctx, const struct remove *a)
{
	const struct cfs_engine_remove *req = a->req;
	uint64_t trash = a->ret->outcome == CFS_REMOVED_TRASHED ? req->trash : 0;
	char name[3 * CFS_NAME_MAX + 1];

	if (!cfs_host_changelog(sql_host(c)))
		return 0;
	cfs_changelog_name(req->name, req->name_len, name);
	if (req->dir)
		return sql_log(c, ctx, "RMDIR(%" PRIu64 ",%s,%" PRIu64 "):%" PRIu64, req->parent,
			       name, trash, a->ret->ino);
	return sql_log(c, ctx, "UNLINK(%" PRIu64 ",%s,%" PRIu64 ",%s,false):%" PRIu64, req->parent,
		       name, trash, a->ret->outcome == CFS_REMOVED_SUSTAINED ? "true" : "false",
		       a->ret->ino);
}

static int remove_entry(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct remove *a = arg;
	const struct cfs_engine_remove *req = a->req;
	struct cfs_attr parent;
	struct sql_edge edge;
	int r;

	*a->usage = (struct cfs_usage){0};
	*a->ret = (struct cfs_removed){0};
	a->raced = false;
	r = sql_get_node(c, req->parent, false, &parent);
	if (r < 0)
		return r;
	r = sql_get_edge(c, req->parent, req->name, req->name_len, &edge);
	if (r < 0)
		return r;
	if (req->dir != (edge.type == CFS_TYPE_DIR))
		return req->dir ? -ENOTDIR : -EISDIR;
	a->ret->ino = edge.ino;
	r = lock_victim(c, &edge, &a->ret->attr);
	if (r < 0)
		return r;
	r = cfs_rules_remove_entry(ctx, req->parent, &parent, &a->ret->attr);
	if (r < 0)
		return r;
	if (req->dir) {
		r = sql_close_dir(c, edge.ino);
		if (r < 0)
			return r;
		r = sql_has(c, SQL_has_entry, "i", edge.ino);
		if (r != 0)
			return r < 0 ? r : -ENOTEMPTY;
	}
	r = sql_exec(c, SQL_del_edge, "ibi", req->parent, req->name, req->name_len, edge.ino);
	a->raced = r == 0;
	if (r <= 0)
		return r < 0 ? r : -ENOENT;
	r = sql_dispose(c, ctx, req, -1, a->ret);
	if (r < 0)
		return r;
	cfs_usage_removed(a->usage, req->parent, req->trash, a->ret);
	r = sql_touch_dir(c, ctx, req->parent, req->dir ? -1 : 0);
	if (r < 0)
		return r;
	if (!cfs_ino_is_trash(req->parent))
		a->ret->parent = sql_touched(ctx, &parent, req->dir ? -1 : 0);
	r = sql_write_usage(c, a->usage);
	return r < 0 ? r : log_removal(c, ctx, a);
}

int sql_op_remove(struct cfs_engine *e, const struct cfs_ctx *ctx,
		  const struct cfs_engine_remove *req, struct cfs_removed *ret,
		  struct cfs_usage *ret_usage)
{
	struct remove a = {.req = req, .ret = ret, .usage = ret_usage};
	int r;

	do
		r = sql_txn(sql_db(e), ctx, cfs_remove_op(req), remove_entry, &a);
	while (r == -ENOENT && a.raced && !cfs_deadline_passed(ctx->deadline));
	return r;
}
