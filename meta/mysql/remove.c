/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unlink and rmdir. Finds the victim in the cache or in the database, decides its outcome, and
 * stores it if the attributes are unchanged (optimistic check).
 */
#include <errno.h>

#include "mysql-internal.h"

struct removal {
	const struct cfs_engine_remove *req;
	struct cfs_entry victim;
	struct cfs_attr parent;
	struct cfs_removed ret;
	bool cached; /* the victim comes from the cache and may be outdated */
};

/* 1: the victim can be moved to the trash or deleted by a batch; a->ret.outcome says which. */
static int decide(struct mysql_conn *m, const struct cfs_ctx *ctx, struct removal *a)
{
	const struct cfs_engine_remove *req = a->req;
	struct cfs_engine_host *host = m->sql.db->engine.host;
	struct cfs_attr *v = &a->victim.attr;
	int r = mysql_get_dir(m, req->parent, &a->parent);

	if (r < 0)
		return r == -ENOENT ? 0 : r;
	a->cached = !a->req->dir && cfs_optimistic_file_known(m->sql.db->optimistic, req->parent,
							      req->name, req->name_len, &a->victim);
	if (!a->cached) {
		r = sql_find(&m->sql, req->parent, req->name, req->name_len, &a->victim);
		if (r)
			return r == -ENOENT ? 0 : r;
	}
	if (a->req->dir != (v->type == CFS_TYPE_DIR) || (!a->req->dir && v->nlink != 1) ||
	    cfs_rules_remove_entry(ctx, req->parent, &a->parent, v))
		return 0;
	a->ret.outcome = req->trash && !(v->flags & CFS_FLAG_SKIP_TRASH) ? CFS_REMOVED_TRASHED
									 : CFS_REMOVED_DELETED;
	return a->ret.outcome == CFS_REMOVED_TRASHED || v->type != CFS_TYPE_FILE ||
	       !cfs_host_is_open(host, a->victim.ino);
}

/* In the trash, link counts do not depend on entries. */
static int nlink_change(const struct removal *a)
{
	return a->req->dir && !cfs_ino_is_trash(a->req->parent) ? -1 : 0;
}

static int to_trash(struct mysql_conn *m, const struct cfs_ctx *ctx, struct removal *a, bool ask,
		    int64_t *row)
{
	const struct cfs_engine_remove *req = a->req;
	const struct cfs_attr *v = &a->victim.attr;
	char name[CFS_NAME_MAX + 1];
	size_t len =
		cfs_rules_trash_name(req->parent, a->victim.ino, req->name, req->name_len, name);

	return mysql_batch_run(
		m, MYSQL_BATCH_trash, row, MYSQL_DIR_COLUMNS,
		SQL_PARAMS(SQL_I(req->parent), SQL_I(a->victim.ino), SQL_I(v->type),
			   SQL_I(v->parent ? req->trash : 0), SQL_I(sql_us(ctx->now)),
			   SQL_I(sql_sub_us(ctx->now)), MYSQL_STILL(v), SQL_I(req->trash),
			   SQL_B(name, len), SQL_B(req->name, req->name_len),
			   MYSQL_TOUCH(ctx, nlink_change(a)), MYSQL_DIR(&a->parent), SQL_I(ask)));
}

static int delete_inode(struct mysql_conn *m, const struct cfs_ctx *ctx, struct removal *a,
			bool ask, int64_t *row)
{
	const struct cfs_engine_remove *req = a->req;
	const struct cfs_attr *v = &a->victim.attr;

	return mysql_batch_run(m, MYSQL_BATCH_remove, row, MYSQL_DIR_COLUMNS + 1,
			       SQL_PARAMS(SQL_I(req->parent), SQL_I(a->victim.ino), SQL_I(v->type),
					  MYSQL_STILL(v), SQL_B(req->name, req->name_len),
					  SQL_I(v->length), SQL_I(ctx->now.tv_sec),
					  MYSQL_TOUCH(ctx, nlink_change(a)), MYSQL_DIR(&a->parent),
					  SQL_I(ask)));
}

static int try_to_remove(struct mysql_conn *m, const struct cfs_ctx *ctx, struct removal *a)
{
	struct sql_db *db = m->sql.db;
	int64_t row[MYSQL_DIR_COLUMNS + 1] = {0};
	cfs_ino_t dir = a->req->parent;
	bool ask;
	int r = decide(m, ctx, a);

	if (r > 0) {
		ask = !cfs_ino_is_trash(dir) &&
		      (cfs_optimistic_dir_ask(db->optimistic, dir) || a->req->dir);
		r = a->ret.outcome == CFS_REMOVED_TRASHED ? to_trash(m, ctx, a, ask, row)
							  : delete_inode(m, ctx, a, ask, row);
	}
	if (r > 0) {
		mysql_dir_changed(db, dir, r, row, &a->parent);
		a->ret.has_data = row[MYSQL_DIR_COLUMNS];
		cfs_optimistic_dir_forget(db->optimistic, a->victim.ino);
	} else {
		cfs_optimistic_dir_forget(db->optimistic, dir);
	}
	cfs_optimistic_file_forget(db->optimistic, a->victim.ino);
	/* -EEXIST: the trash has this name already. */
	return r;
}

static int remove_once(struct mysql_conn *m, const struct cfs_ctx *ctx, void *arg)
{
	struct removal *a = arg;
	int r = try_to_remove(m, ctx, a);

	/* The cached attributes were outdated and are dropped: the next try reads the victim. */
	return (r && r != -EEXIST) || !a->cached ? r : try_to_remove(m, ctx, a);
}

/*
 * True when the inode behind the name is older than the call: then the cached victim had already
 * been removed before the call, and this inode is the one to remove. A younger inode was created
 * after the victim's removal.
 */
static int is_older(struct mysql_conn *m, const struct cfs_ctx *ctx, const struct removal *a)
{
	struct sql_edge edge;
	struct cfs_attr there;
	int r = sql_get_edge(&m->sql, a->req->parent, a->req->name, a->req->name_len, &edge);

	if (!r)
		r = sql_get_node(&m->sql, edge.ino, false, &there);
	if (r)
		return r == -ENOENT ? 0 : r;
	return cfs_timespec_cmp(there.ctime, ctx->now) < 0;
}

/*
 * The commit probe reads the victim: it is missing, or has the ctime of this call. The name proves
 * nothing, because it may lead to a file that was created since.
 */
static int remove_applied(struct mysql_conn *m, const struct cfs_ctx *ctx, void *arg)
{
	struct removal *a = arg;
	struct cfs_attr there;
	int r = sql_get_node(&m->sql, a->victim.ino, false, &there);

	if (!r)
		return a->ret.outcome == CFS_REMOVED_TRASHED &&
		       !cfs_timespec_cmp(there.ctime, ctx->now);
	if (r == -ENOENT)
		r = a->cached ? is_older(m, ctx, a) : 0;
	if (r)
		return r < 0 ? r : 0;
	a->ret.has_data = a->ret.outcome == CFS_REMOVED_DELETED;
	return 1;
}

int mysql_op_remove(struct cfs_engine *e, const struct cfs_ctx *ctx,
		    const struct cfs_engine_remove *req, struct cfs_removed *ret,
		    struct cfs_usage *ret_usage)
{
	struct removal a = {.req = req};
	int r = mysql_batch(sql_db(e), ctx, cfs_remove_op(req), remove_once, remove_applied, &a,
			    sizeof(a));

	if (!r)
		return sql_op_remove(e, ctx, req, ret, ret_usage);
	if (r < 0)
		return r;
	*ret = a.ret;
	ret->ino = a.victim.ino;
	ret->attr = a.victim.attr;
	if (ret->outcome == CFS_REMOVED_TRASHED)
		cfs_rules_moved(ctx, req->trash, &ret->attr);
	*ret_usage = (struct cfs_usage){0};
	cfs_usage_removed(ret_usage, req->parent, req->trash, ret);
	if (!cfs_ino_is_trash(req->parent))
		ret->parent = a.parent;
	return 0;
}
