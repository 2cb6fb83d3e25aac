/* SPDX-License-Identifier: Apache-2.0 */
/* mknod, link and setattr in one round trip. */
#include <errno.h>

#include "mysql-internal.h"

/* ---- mknod ---- */

struct mknod {
	const struct cfs_mknod *req;
	cfs_ino_t ino;
	struct cfs_attr attr, parent;
};

static int mknod_once(struct mysql_conn *m, const struct cfs_ctx *ctx, void *arg)
{
	struct sql_db *db = m->sql.db;
	struct mknod *a = arg;
	const struct cfs_mknod *req = a->req;
	bool dir = req->type == CFS_TYPE_DIR, symlink = req->type == CFS_TYPE_SYMLINK, ask;
	const struct cfs_attr *t = &a->attr;
	int64_t row[MYSQL_DIR_COLUMNS];
	int r;

	r = mysql_get_dir(m, req->parent, &a->parent);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	if (cfs_rules_add_entry(ctx, req->parent, &a->parent) ||
	    (a->parent.default_acl && req->type != CFS_TYPE_SYMLINK)) {
		cfs_optimistic_dir_forget(db->optimistic, req->parent);
		return 0;
	}
	cfs_rules_new_inode(ctx, req, &a->parent, &a->attr);
	ask = cfs_optimistic_dir_ask(db->optimistic, req->parent) || dir;
	r = mysql_batch_run(m, MYSQL_BATCH_mknod, row, MYSQL_DIR_COLUMNS,
			    SQL_PARAMS(SQL_I(req->parent), SQL_I(a->ino),
				       SQL_B(req->name, req->name_len), SQL_I(req->type),
				       SQL_I(t->type), SQL_I(t->flags), SQL_I(t->mode),
				       SQL_I(t->uid), SQL_I(t->gid), SQL_I(sql_us(t->atime)),
				       SQL_I(sql_us(t->mtime)), SQL_I(sql_us(t->ctime)),
				       SQL_I(sql_sub_us(t->atime)), SQL_I(sql_sub_us(t->mtime)),
				       SQL_I(sql_sub_us(t->ctime)), SQL_I(t->nlink),
				       SQL_I(t->length), SQL_I(t->rdev), SQL_I(t->access_acl),
				       SQL_I(t->default_acl), SQL_I(t->tier), SQL_I(dir || symlink),
				       SQL_I(symlink), SQL_B(req->target, req->target_len),
				       SQL_I(dir && cfs_host_dir_stats(db->engine.host)),
				       MYSQL_TOUCH(ctx, dir), MYSQL_DIR(&a->parent), SQL_I(ask)));
	if (r > 0) {
		mysql_dir_changed(db, req->parent, r, row, &a->parent);
		if (dir)
			cfs_optimistic_dir_remember(db->optimistic, a->ino, t);
		return 1;
	}
	cfs_optimistic_dir_forget(db->optimistic, req->parent);
	return r;
}

/* Inode numbers are unique: if the name leads to this number, this operation has created it. */
static int mknod_applied(struct mysql_conn *m, const struct cfs_ctx *ctx, void *arg)
{
	struct mknod *a = arg;
	struct sql_edge edge;
	int r = sql_get_edge(&m->sql, a->req->parent, a->req->name, a->req->name_len, &edge);

	if (!r && edge.ino != a->ino)
		return 0;
	if (!r)
		r = sql_get_node(&m->sql, a->req->parent, false, &a->parent);
	if (r)
		return r == -ENOENT ? 0 : r;
	return 1;
}

int mysql_op_mknod(struct cfs_engine *e, const struct cfs_ctx *ctx, const struct cfs_mknod *req,
		   cfs_ino_t ino, struct cfs_entry *ret, struct cfs_usage *ret_usage)
{
	struct mknod a = {.req = req, .ino = ino};
	int r = 0;

	if (req->name_len)
		r = mysql_batch(sql_db(e), ctx, CFS_META_OP_mknod, mknod_once, mknod_applied, &a,
				sizeof(a));
	if (!r)
		return sql_op_mknod(e, ctx, req, ino, ret, ret_usage);
	if (r < 0)
		return r;
	*ret = (struct cfs_entry){.ino = ino, .attr = a.attr};
	cfs_optimistic_file_remember(sql_db(e)->optimistic, req->parent, req->name, req->name_len,
				     ret);
	cfs_usage_made(ret_usage, req->parent, &a.attr);
	if (req->ret_parent)
		*req->ret_parent = a.parent;
	return 0;
}

/* ---- link ---- */

struct link {
	const struct cfs_engine_link *req;
	struct cfs_attr attr, dir;
};

static int link_once(struct mysql_conn *m, const struct cfs_ctx *ctx, void *arg)
{
	struct sql_db *db = m->sql.db;
	struct link *a = arg;
	struct cfs_attr *t = &a->attr;
	int64_t none;
	int r = mysql_get_dir(m, a->req->parent, &a->dir);

	if (!r)
		r = sql_get_node(&m->sql, a->req->ino, false, t);
	if (r)
		return r == -ENOENT ? 0 : r;
	if (cfs_rules_add_entry(ctx, a->req->parent, &a->dir) || t->type == CFS_TYPE_DIR ||
	    (t->flags & (CFS_FLAG_IMMUTABLE | CFS_FLAG_APPEND)) || !t->nlink ||
	    cfs_ino_is_trash(t->parent)) {
		cfs_optimistic_dir_forget(db->optimistic, a->req->parent);
		return 0;
	}
	r = mysql_batch_run(m, MYSQL_BATCH_link, &none, 1,
			    SQL_PARAMS(SQL_I(a->req->parent), SQL_I(a->req->ino), SQL_I(t->type),
				       SQL_I(sql_us(ctx->now)), SQL_I(sql_sub_us(ctx->now)),
				       MYSQL_STILL(t), SQL_B(a->req->name, a->req->len),
				       MYSQL_DIR(&a->dir)));
	if (r <= 0)
		cfs_optimistic_dir_forget(db->optimistic, a->req->parent);
	return r;
}

static int link_applied(struct mysql_conn *m, const struct cfs_ctx *ctx, void *arg)
{
	const struct link *a = arg;
	struct sql_edge edge;
	int r = sql_get_edge(&m->sql, a->req->parent, a->req->name, a->req->len, &edge);

	if (r)
		return r == -ENOENT ? 0 : r;
	return edge.ino == a->req->ino;
}

int mysql_op_link(struct cfs_engine *e, const struct cfs_ctx *ctx,
		  const struct cfs_engine_link *req, struct cfs_attr *ret,
		  struct cfs_usage *ret_usage)
{
	struct link a = {.req = req};
	int r = 0;

	if (!req->sid)
		r = mysql_batch(sql_db(e), ctx, CFS_META_OP_link, link_once, link_applied, &a,
				sizeof(a));
	if (!r)
		return sql_op_link(e, ctx, req, ret, ret_usage);
	if (r < 0)
		return r;
	a.attr.nlink++;
	a.attr.parent = 0;
	a.attr.ctime = ctx->now;
	*ret = a.attr;
	cfs_usage_linked(ret_usage, req->parent, &a.attr);
	return 0;
}

/* ---- setattr: applies the rules to cached attributes, and writes if these are unchanged ---- */

struct setattr {
	cfs_ino_t ino;
	uint32_t set;
	const struct cfs_attr *in;
	struct cfs_attr old, attr;
	int result; /* errno of the rules, or 0 */
};

/* Makes the new attributes. 1: write them; 0: nothing changes, or the rules refuse (a->result). */
static int decide(const struct cfs_ctx *ctx, struct setattr *a)
{
	int r;

	a->attr = a->old;
	r = cfs_rules_setattr(ctx, a->set, a->in, &a->attr);
	a->result = r < 0 ? r : 0;
	return r > 0;
}

static int setattr_once(struct mysql_conn *m, const struct cfs_ctx *ctx, void *arg)
{
	struct setattr *a = arg;
	const struct cfs_attr *t = &a->attr, *o = &a->old;
	int64_t row[SQL_NODE_COLUMNS];
	int r;

	if (!cfs_optimistic_attr(m->sql.db->optimistic, a->ino, &a->old) || !decide(ctx, a)) {
		/* Cached attributes must not refuse, or be returned as the result. */
		r = sql_get_node(&m->sql, a->ino, false, &a->old);
		if (r < 0 || !decide(ctx, a))
			return r < 0 ? r : 1;
	}
	if (o->access_acl)
		return 0;
	r = mysql_batch_run(
		m, MYSQL_BATCH_setattr, row, SQL_NODE_COLUMNS,
		SQL_PARAMS(SQL_I(a->ino), SQL_I(!!(a->set & (CFS_SET_ATIME | CFS_SET_ATIME_NOW))),
			   SQL_I(!!(a->set & (CFS_SET_MTIME | CFS_SET_MTIME_NOW))), SQL_I(t->flags),
			   SQL_I(t->mode), SQL_I(t->uid), SQL_I(t->gid), SQL_I(sql_us(t->ctime)),
			   SQL_I(sql_sub_us(t->ctime)), SQL_I(sql_us(t->atime)),
			   SQL_I(sql_sub_us(t->atime)), SQL_I(sql_us(t->mtime)),
			   SQL_I(sql_sub_us(t->mtime)), SQL_I(o->type), SQL_I(o->flags),
			   SQL_I(o->mode), SQL_I(o->uid), SQL_I(o->gid), SQL_I(o->parent)));
	if (r > 0) {
		sql_node_row(row, &a->attr);
		cfs_optimistic_attr_changed(m->sql.db->optimistic, a->ino, t);
	} else {
		cfs_optimistic_dir_forget(m->sql.db->optimistic, a->ino);
		cfs_optimistic_file_forget(m->sql.db->optimistic, a->ino);
	}
	return r;
}

/* Compares all changed attributes, because a change of another client may have the same ctime. */
static int setattr_applied(struct mysql_conn *m, const struct cfs_ctx *ctx, void *arg)
{
	struct setattr *a = arg;
	const struct cfs_attr *t = &a->attr;
	struct cfs_attr there;
	int r = sql_get_node(&m->sql, a->ino, false, &there);

	if (r)
		return r;
	if (cfs_timespec_cmp(there.ctime, t->ctime) || there.flags != t->flags ||
	    there.mode != t->mode || there.uid != t->uid || there.gid != t->gid)
		return 0;
	if ((a->set & (CFS_SET_ATIME | CFS_SET_ATIME_NOW)) &&
	    cfs_timespec_cmp(there.atime, t->atime))
		return 0;
	if ((a->set & (CFS_SET_MTIME | CFS_SET_MTIME_NOW)) &&
	    cfs_timespec_cmp(there.mtime, t->mtime))
		return 0;
	a->attr = there;
	return 1;
}

int mysql_op_setattr(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, uint32_t set,
		     const struct cfs_attr *in, struct cfs_attr *ret, struct cfs_usage *ret_usage)
{
	struct setattr a = {.ino = ino, .set = set, .in = in};
	int r = 0;

	/* The batch has no tier, which is rarely changed. */
	if (!(set & CFS_SET_TIER))
		r = mysql_batch(sql_db(e), ctx, CFS_META_OP_setattr, setattr_once, setattr_applied,
				&a, sizeof(a));
	if (!r)
		return sql_op_setattr(e, ctx, ino, set, in, ret, ret_usage);
	if (r < 0)
		return r;
	if (a.result < 0)
		return a.result;
	*ret = a.attr;
	/* The cached length may be outdated. */
	a.old.length = a.attr.length;
	cfs_usage_owner(ret_usage, &a.old, &a.attr);
	return 0;
}
