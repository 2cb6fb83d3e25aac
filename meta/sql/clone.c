/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clones a tree inode by inode (volume-format section 11). The top directory is created without a
 * name, and is attached when everything below it is complete. Entries below it are created with
 * their names.
 */
#include <errno.h>
#include <inttypes.h>

#include "meta/sql/sql.h"

struct clone {
	cfs_ino_t src, ino, parent;
	const char *name; /* NULL: detached */
	size_t len;
	bool preserve;
	/* results of one attempt */
	struct cfs_attr attr;
	struct cfs_usage *usage;
	struct sql_refs refs;
};

static int clone_data(struct sql_conn *c, struct clone *a)
{
	const void *records;
	size_t len;
	int r;

	r = sql_query(c, SQL_each_chunk, "i", a->src);
	while (r >= 0 && (r = sql_next(c, SQL_each_chunk)) > 0) {
		records = sql_blob(c, SQL_each_chunk, 0, &len);
		r = sql_refs_add_records(&a->refs, records, len);
	}
	if (r < 0)
		return r;
	r = sql_exec(c, SQL_clone_chunks, "ii", a->ino, a->src);
	return r < 0 ? r : sql_refs_raise(c, &a->refs);
}

static int clone_rows(struct sql_conn *c, struct clone *a)
{
	int r = sql_exec(c, SQL_clone_xattrs, "ii", a->ino, a->src);

	if (r < 0)
		return r;
	switch (a->attr.type) {
	case CFS_TYPE_FILE:
		r = clone_data(c, a);
		break;
	case CFS_TYPE_DIR:
		r = sql_exec(c, SQL_clone_dir_stat, "ii", a->ino, a->src);
		break;
	case CFS_TYPE_SYMLINK:
		r = sql_exec(c, SQL_clone_symlink, "ii", a->ino, a->src);
		break;
	}
	return r < 0 ? r : 0;
}

static int clone_ino(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct clone *a = arg;
	int r;

	*a->usage = (struct cfs_usage){0};
	sql_refs_clear(&a->refs);
	r = sql_get_node(c, a->src, true, &a->attr);
	if (r < 0)
		return r;
	if (a->attr.type != CFS_TYPE_DIR)
		a->attr.nlink = 1;
	a->attr.parent = a->parent;
	if (!a->preserve) {
		a->attr.uid = ctx->uid;
		a->attr.gid = ctx->gid;
		a->attr.atime = a->attr.mtime = ctx->now;
		a->attr.ctime = ctx->now;
	}
	r = a->name ? sql_exec(c, SQL_put_edge, "ibii", a->parent, a->name, a->len, a->ino,
			       (int64_t)a->attr.type)
		    : sql_exec(c, SQL_put_detached, "ii", a->ino, (int64_t)ctx->now.tv_sec);
	if (r >= 0)
		r = sql_put_node(c, a->ino, &a->attr);
	if (r >= 0)
		r = clone_rows(c, a);
	if (r < 0)
		return r;
	/* The clone of the parent has a copy of the parent's dir_stats row already. */
	cfs_usage_inode(a->usage, &a->attr, 1);
	r = sql_write_usage(c, a->usage);
	if (r < 0)
		return r;
	return sql_log(c, ctx, "CLONE(%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%d)", a->src, a->parent,
		       a->ino, a->preserve);
}

int sql_op_clone_ino(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t src, cfs_ino_t ino,
		     cfs_ino_t parent, const char *name, size_t len, bool preserve,
		     struct cfs_entry *ret, struct cfs_usage *ret_usage)
{
	struct clone a = {
		.src = src,
		.ino = ino,
		.parent = parent,
		.name = name,
		.len = len,
		.preserve = preserve,
		.usage = ret_usage,
	};
	int r = sql_txn(sql_db(e), ctx, CFS_META_OP_other, clone_ino, &a);

	sql_refs_free(&a.refs);
	if (r < 0)
		return r;
	*ret = (struct cfs_entry){.ino = ino, .attr = a.attr};
	return 0;
}

static int attach(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct clone *a = arg;
	struct cfs_attr parent;
	char buf[3 * CFS_NAME_MAX + 1];
	int r;

	*a->usage = (struct cfs_usage){0};
	r = sql_keep_node(c, a->parent, &parent);
	if (r >= 0)
		r = cfs_rules_add_entry(ctx, a->parent, &parent);
	if (r >= 0)
		r = sql_get_node(c, a->ino, true, &a->attr);
	if (r < 0)
		return r;
	r = sql_exec(c, SQL_del_detached, "i", a->ino);
	if (r <= 0)
		return r < 0 ? r : -ENOENT;
	r = sql_exec(c, SQL_put_edge, "ibii", a->parent, a->name, a->len, a->ino,
		     (int64_t)a->attr.type);
	if (r < 0)
		return r;
	if (a->attr.parent != a->parent) {
		a->attr.parent = a->parent;
		r = sql_move_node(c, a->ino, &a->attr);
	}
	if (r >= 0)
		r = sql_touch_dir(c, ctx, a->parent, a->attr.type == CFS_TYPE_DIR);
	if (r >= 0)
		r = sql_keep_late(c, a->parent, &parent);
	if (r < 0)
		return r;
	cfs_usage_entry(a->usage, a->parent, &a->attr, 1);
	r = sql_write_usage(c, a->usage);
	if (r < 0)
		return r;
	return sql_log(c, ctx, "ATTACH(%" PRIu64 ",%" PRIu64 ",%s)", a->ino, a->parent,
		       cfs_changelog_name(a->name, a->len, buf));
}

int sql_op_attach(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, cfs_ino_t parent,
		  const char *name, size_t len, struct cfs_usage *ret_usage)
{
	struct clone a = {
		.ino = ino, .parent = parent, .name = name, .len = len, .usage = ret_usage};

	return sql_txn(sql_db(e), ctx, CFS_META_OP_other, attach, &a);
}

/* 1: an earlier attempt was committed, and its results are in *arg. */
static int drop_detached(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct clone *a = arg;
	struct cfs_removed gone = {.ino = a->ino};
	const struct cfs_engine_remove req = {.parent = 0};
	int r;

	sql_repeatable();
	r = sql_exec(c, SQL_del_detached, "i", a->ino);
	if (r == 0 && sql_is_repeated(c))
		return 1;
	if (r <= 0)
		return r < 0 ? r : -ENOENT;
	*a->usage = (struct cfs_usage){0};
	r = sql_get_node(c, a->ino, true, &gone.attr);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	r = sql_has(c, SQL_has_entry, "i", a->ino);
	if (r)
		return r < 0 ? r : -ENOTEMPTY;
	r = sql_dispose(c, ctx, &req, -1, &gone);
	if (gone.outcome == CFS_REMOVED_DELETED)
		cfs_usage_inode(a->usage, &gone.attr, -1);
	if (r < 0)
		return r;
	r = sql_write_usage(c, a->usage);
	if (r < 0)
		return r;
	return sql_log(c, ctx, "CLEANUP(%" PRIu64 ")", a->ino);
}

int sql_op_drop_detached(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			 struct cfs_usage *ret_usage)
{
	struct clone a = {.ino = ino, .usage = ret_usage};
	int r = sql_txn(sql_db(e), ctx, CFS_META_OP_other, drop_detached, &a);

	return r < 0 ? r : 0;
}
