/* SPDX-License-Identifier: Apache-2.0 */
/* Names and attributes: lookup, mknod, link, setattr. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "meta/sql/sql-internal.h"

/* ---- reads: one statement each ---- */

struct lookup {
	cfs_ino_t parent;
	const char *name;
	size_t len;
	struct cfs_entry *ret;
};

int sql_find(struct sql_conn *c, cfs_ino_t parent, const char *name, size_t len,
	     struct cfs_entry *ret)
{
	int r = sql_row(c, SQL_lookup, "ib", (int64_t)parent, name, len);

	if (r <= 0)
		return r ? r : -ENOENT;
	sql_node_columns(c, SQL_lookup, 0, &ret->attr);
	ret->ino = (cfs_ino_t)sql_int(c, SQL_lookup, SQL_NODE_COLUMNS);
	sql_done(c, SQL_lookup);
	return 0;
}

static int lookup(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct lookup *a = arg;

	return sql_find(c, a->parent, a->name, a->len, a->ret);
}

int sql_op_lookup(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t parent,
		  const char *name, size_t len, struct cfs_entry *ret)
{
	struct lookup a = {.parent = parent, .name = name, .len = len, .ret = ret};
	struct sql_db *db = sql_db(e);
	int r = sql_read(db, ctx, CFS_META_OP_lookup, lookup, &a);

	if (!r && db->optimistic)
		cfs_optimistic_file_remember(db->optimistic, parent, name, len, ret);
	return r;
}

struct getattr {
	cfs_ino_t ino;
	struct cfs_attr *ret;
};

static int getattr(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct getattr *a = arg;

	return sql_get_node(c, a->ino, false, a->ret);
}

int sql_op_getattr(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
		   struct cfs_attr *ret)
{
	struct getattr a = {.ino = ino, .ret = ret};

	return sql_read(sql_db(e), ctx, CFS_META_OP_getattr, getattr, &a);
}

struct readlink {
	cfs_ino_t ino;
	char *buf;
};

static int read_target(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct readlink *a = arg;
	struct cfs_attr attr;
	const void *target;
	size_t len;
	int r = sql_row(c, SQL_get_symlink, "i", (int64_t)a->ino);

	if (r < 0)
		return r;
	if (!r) {
		r = sql_get_node(c, a->ino, false, &attr);
		if (r)
			return r;
		return attr.type == CFS_TYPE_SYMLINK ? -EIO : -EINVAL;
	}
	target = sql_blob(c, SQL_get_symlink, 0, &len);
	if (len > CFS_SYMLINK_MAX)
		return -EIO;
	memcpy(a->buf, target, len);
	a->buf[len] = '\0';
	return 0;
}

int sql_op_readlink(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
		    char buf[CFS_SYMLINK_MAX + 1])
{
	struct readlink a = {.ino = ino, .buf = buf};

	return sql_read(sql_db(e), ctx, CFS_META_OP_readlink, read_target, &a);
}

struct parents {
	cfs_ino_t ino;
	cfs_engine_parent_fn fn;
	void *arg;
};

static int each_parent(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct parents *a = arg;
	int r = sql_query(c, SQL_each_parent, "i", (int64_t)a->ino);

	while (!r && (r = sql_next(c, SQL_each_parent)) > 0) {
		size_t len;
		const char *name = sql_blob(c, SQL_each_parent, 1, &len);

		r = a->fn(a->arg, (cfs_ino_t)sql_int(c, SQL_each_parent, 0), name, len);
	}
	return r;
}

int sql_op_each_parent(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
		       cfs_engine_parent_fn fn, void *arg)
{
	struct parents a = {.ino = ino, .fn = fn, .arg = arg};

	return sql_read(sql_db(e), ctx, CFS_META_OP_other, each_parent, &a);
}

/* ---- mknod ---- */

struct mknod {
	const struct cfs_mknod *req;
	cfs_ino_t ino;
	struct cfs_entry *ret;
	struct cfs_attr attr;
	struct cfs_usage usage;
};

/* Applies the directory's default ACL to a new inode (volume-format section 10). */
static int inherit_acl(struct sql_conn *c, const struct mknod *a, const struct cfs_attr *parent,
		       struct cfs_attr *attr)
{
	uint16_t mode = (attr->mode & 07000) | (a->req->mode & 0777);
	struct cfs_acl def, rule;
	int r = sql_get_acl(c, parent->default_acl, &def);

	if (r)
		return r;
	r = cfs_acl_inherit(&def, mode, &attr->mode, &rule);
	cfs_acl_release(&def);
	if (r > 0) {
		r = sql_put_acl(c, &rule, &attr->access_acl);
		cfs_acl_release(&rule);
	}
	if (attr->type == CFS_TYPE_DIR)
		attr->default_acl = parent->default_acl;
	return r;
}

static int log_create(struct sql_conn *c, const struct cfs_ctx *ctx, const struct mknod *a)
{
	const struct cfs_mknod *req = a->req;
	char name[3 * CFS_NAME_MAX + 1];
	cfs_auto_free char *target = NULL;

	if (!cfs_host_changelog(sql_host(c)))
		return 0;
	target = malloc(3 * req->target_len + 1);
	if (!target)
		return -ENOMEM;
	cfs_changelog_name(req->target, req->target_len, target);
	return sql_log(c, ctx, "CREATE(%" PRIu64 ",%s,%u,%u,%u,%u,%u,%s,linux,%s):%" PRIu64,
		       req->parent, cfs_changelog_name(req->name, req->name_len, name), ctx->uid,
		       ctx->gid, (unsigned)req->type, (unsigned)req->mode, (unsigned)req->umask,
		       target, req->type == CFS_TYPE_DIR ? "true" : "false", a->ino);
}

/* The unique key on (parent, name) decides races. -EEXIST: *a->ret is the existing entry. */
static int put_entry(struct sql_conn *c, const struct cfs_ctx *ctx, const struct mknod *a)
{
	const struct cfs_mknod *req = a->req;
	struct lookup there = {req->parent, req->name, req->name_len, a->ret};
	int r = sql_exec(c, SQL_put_edge, "ibii", (int64_t)req->parent, req->name, req->name_len,
			 (int64_t)a->ino, (int64_t)req->type);

	if (r >= 0)
		return 0;
	if (r == -EEXIST) {
		int found = lookup(c, ctx, &there);

		/* A name whose inode is missing exists too. */
		if (found && found != -ENOENT)
			return found;
	}
	return r;
}

static int mknod_txn(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct mknod *a = arg;
	const struct cfs_mknod *req = a->req;
	struct cfs_engine_host *host = sql_host(c);
	bool dir = req->type == CFS_TYPE_DIR;
	struct cfs_attr parent;
	int r = sql_keep_node(c, req->parent, &parent);

	if (!r)
		r = cfs_rules_add_entry(ctx, req->parent, &parent);
	if (r)
		return r;
	cfs_rules_new_inode(ctx, req, &parent, &a->attr);
	if (parent.default_acl && req->type != CFS_TYPE_SYMLINK)
		r = inherit_acl(c, a, &parent, &a->attr);
	if (!r && req->name_len)
		r = put_entry(c, ctx, a);
	else if (!r)
		r = sql_post(c, SQL_put_sustained, "ii", cfs_host_sid(host), (int64_t)a->ino);
	if (r >= 0)
		r = sql_put_node(c, a->ino, &a->attr);
	if (!r && req->type == CFS_TYPE_SYMLINK)
		r = sql_post(c, SQL_put_symlink, "ib", (int64_t)a->ino, req->target,
			     req->target_len);
	if (r >= 0 && dir && cfs_host_dir_stats(host))
		r = sql_post(c, SQL_new_dir_stat, "i", (int64_t)a->ino);
	if (r < 0)
		return r;
	r = dir ? sql_touch_parent(c, ctx, req->parent, 1) : 0;
	if (!r)
		r = sql_keep_late(c, req->parent, &parent);
	cfs_usage_made(&a->usage, req->name_len ? req->parent : 0, &a->attr);
	if (!r)
		r = sql_write_usage(c, &a->usage);
	if (!r)
		r = log_create(c, ctx, a);
	if (!r && req->ret_parent)
		*req->ret_parent = sql_touched(ctx, &parent, dir);
	return r;
}

int sql_op_mknod(struct cfs_engine *e, const struct cfs_ctx *ctx, const struct cfs_mknod *req,
		 cfs_ino_t ino, struct cfs_entry *ret, struct cfs_usage *ret_usage)
{
	struct mknod a = {.req = req, .ino = ino, .ret = ret};
	int r = sql_txn(sql_db(e), ctx, CFS_META_OP_mknod, mknod_txn, &a);

	if (r)
		return r;
	ret->ino = ino;
	ret->attr = a.attr;
	*ret_usage = a.usage;
	return 0;
}

/* ---- link ---- */

struct link {
	const struct cfs_engine_link *req;
	struct cfs_attr *attr;
	struct cfs_usage *usage;
};

static int check_link(const struct link *a)
{
	const struct cfs_attr *t = a->attr;

	if (t->type == CFS_TYPE_DIR || (t->flags & (CFS_FLAG_IMMUTABLE | CFS_FLAG_APPEND)))
		return -EPERM;
	/* An unlinked inode that is only kept open, or an inode in the trash, cannot be linked. */
	if (!t->nlink != !!a->req->sid)
		return -ENOENT;
	return cfs_ino_is_trash(t->parent) ? -EPERM : 0;
}

/* Updates the inode after the name was added, and *a->attr. */
static int count_link(struct sql_conn *c, const struct cfs_ctx *ctx, struct link *a)
{
	int r;

	a->attr->nlink++;
	a->attr->parent = a->req->sid ? a->req->parent : 0;
	a->attr->ctime = ctx->now;
	if (!a->req->sid)
		return sql_post(c, SQL_add_link, "iii", sql_us(ctx->now), sql_sub_us(ctx->now),
				(int64_t)a->req->ino);
	r = sql_exec(c, SQL_del_sustained, "ii", a->req->sid, (int64_t)a->req->ino);
	if (r <= 0)
		return r < 0 ? r : -ENOENT;
	return sql_move_node(c, a->req->ino, a->attr);
}

static int link_txn(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct link *a = arg;
	char name[3 * CFS_NAME_MAX + 1];
	struct cfs_attr parent;
	int r = sql_keep_node(c, a->req->parent, &parent);

	if (!r)
		r = cfs_rules_add_entry(ctx, a->req->parent, &parent);
	if (!r)
		r = sql_get_node(c, a->req->ino, true, a->attr);
	if (!r)
		r = check_link(a);
	if (r)
		return r;
	r = sql_exec(c, SQL_put_edge, "ibii", (int64_t)a->req->parent, a->req->name, a->req->len,
		     (int64_t)a->req->ino, (int64_t)a->attr->type);
	if (r >= 0)
		r = count_link(c, ctx, a);
	if (r < 0)
		return r;
	r = sql_keep_late(c, a->req->parent, &parent);
	cfs_usage_linked(a->usage, a->req->parent, a->attr);
	if (!r)
		r = sql_write_usage(c, a->usage);
	if (r || !cfs_host_changelog(sql_host(c)))
		return r;
	return sql_log(c, ctx, "LINK(%" PRIu64 ",%" PRIu64 ",%s,false):%u", a->req->ino,
		       a->req->parent, cfs_changelog_name(a->req->name, a->req->len, name),
		       a->attr->nlink);
}

int sql_op_link(struct cfs_engine *e, const struct cfs_ctx *ctx, const struct cfs_engine_link *req,
		struct cfs_attr *ret, struct cfs_usage *ret_usage)
{
	struct link a = {.req = req, .attr = ret, .usage = ret_usage};

	return sql_txn(sql_db(e), ctx, CFS_META_OP_link, link_txn, &a);
}

/* ---- setattr ---- */

struct setattr {
	cfs_ino_t ino;
	uint32_t set;
	const struct cfs_attr *in;
	struct cfs_attr attr;
	struct cfs_usage usage;
};

int sql_chmod_acl(struct sql_conn *c, struct cfs_attr *attr)
{
	struct cfs_acl rule;
	int r = sql_get_acl(c, attr->access_acl, &rule);

	if (r)
		return r;
	cfs_acl_chmod(&rule, attr->mode);
	r = sql_put_acl(c, &rule, &attr->access_acl);
	cfs_acl_release(&rule);
	return r;
}

int sql_log_setattr(struct sql_conn *c, const struct cfs_ctx *ctx, cfs_ino_t ino, uint32_t set,
		    const struct cfs_attr *t)
{
	return sql_log(
		c, ctx, "SETATTR(%" PRIu64 ",%u,0,%u,%u,%u,%u,%lld,%lld,%ld,%ld,%lld,%ld,%u)", ino,
		cfs_changelog_set_bits(set), t->uid, t->gid, (unsigned)t->mode, (unsigned)t->flags,
		(long long)t->atime.tv_sec, (long long)t->mtime.tv_sec, t->atime.tv_nsec,
		t->mtime.tv_nsec, (long long)t->ctime.tv_sec, t->ctime.tv_nsec, (unsigned)t->tier);
}

static int setattr(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct setattr *a = arg;
	struct cfs_attr old;
	int r = sql_get_node(c, a->ino, true, &old);

	if (r)
		return r;
	a->attr = old;
	r = cfs_rules_setattr(ctx, a->set, a->in, &a->attr);
	cfs_usage_owner(&a->usage, &old, &a->attr);
	if (r <= 0)
		return r;
	r = 0;
	if (a->attr.access_acl && a->attr.mode != old.mode)
		r = sql_chmod_acl(c, &a->attr);
	if (!r)
		r = sql_update_node(c, a->ino, &a->attr);
	if (r)
		return r;
	return sql_log_setattr(c, ctx, a->ino, a->set, &a->attr);
}

int sql_op_setattr(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, uint32_t set,
		   const struct cfs_attr *in, struct cfs_attr *ret, struct cfs_usage *ret_usage)
{
	struct setattr a = {.ino = ino, .set = set, .in = in};
	int r = sql_txn(sql_db(e), ctx, CFS_META_OP_setattr, setattr, &a);

	if (r)
		return r;
	*ret = a.attr;
	*ret_usage = a.usage;
	return 0;
}
