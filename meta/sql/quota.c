/* SPDX-License-Identifier: Apache-2.0 */
/* Quotas: dir_quota by inode, user_group_quota by uid and gid (volume-format section 10). */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/array.h"
#include "meta/sql/sql-internal.h"

struct quotas {
	const char *mark;
	const struct cfs_quota *v;
	size_t n;
};

struct quota_list {
	struct cfs_quota *v;
	size_t n, cap;
};

static int append(struct quota_list *l, const struct cfs_quota *q)
{
	if (CFS_ARRAY_ROOM(l->v, l->n, l->cap) < 0)
		return -ENOMEM;
	l->v[l->n++] = *q;
	return 0;
}

/* Columns from col on: key, max_space, max_inodes, used_space, used_inodes. */
static int append_row(struct sql_conn *c, enum sql_stmt_id id, int col, enum cfs_quota_kind kind,
		      struct quota_list *l)
{
	const struct cfs_quota q = {
		.kind = kind,
		.key = (uint64_t)sql_int(c, id, col),
		.max_space = sql_int(c, id, col + 1),
		.max_inodes = sql_int(c, id, col + 2),
		.used_space = sql_int(c, id, col + 3),
		.used_inodes = sql_int(c, id, col + 4),
	};

	return append(l, &q);
}

static int list(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct quota_list *l = arg;
	int r;

	l->n = 0;
	r = sql_query(c, SQL_each_dir_quota, "");
	while (r >= 0 && (r = sql_next(c, SQL_each_dir_quota)) > 0)
		r = append_row(c, SQL_each_dir_quota, 0, CFS_QUOTA_DIR, l);
	/* A volume of an older client may lack the table, while it is mounted read-only. */
	if (r >= 0)
		r = sql_has_column(c, "user_group_quota", "qtype");
	if (r <= 0)
		return r;
	r = sql_query(c, SQL_each_owner_quota, "");
	while (r >= 0 && (r = sql_next(c, SQL_each_owner_quota)) > 0) {
		int64_t kind = sql_int(c, SQL_each_owner_quota, 0);

		if (kind == CFS_QUOTA_USER || kind == CFS_QUOTA_GROUP)
			r = append_row(c, SQL_each_owner_quota, 1, (enum cfs_quota_kind)kind, l);
	}
	return r;
}

int sql_op_each_quota(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_engine_quota_fn fn,
		      void *arg)
{
	struct quota_list l = {0};
	size_t i;
	int r = sql_read(sql_db(e), ctx, CFS_META_OP_other, list, &l);

	for (i = 0; r >= 0 && i < l.n; i++) {
		r = fn(arg, &l.v[i]);
		if (r)
			break;
	}
	free(l.v);
	return r;
}

static int put(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct cfs_quota *q = arg;
	int r;

	sql_repeatable();
	if (q->kind == CFS_QUOTA_DIR)
		r = sql_exec(c, SQL_put_dir_quota, "iiiii", q->key, q->max_space, q->max_inodes,
			     q->used_space, q->used_inodes);
	else
		r = sql_exec(c, SQL_put_owner_quota, "iiiiii", (int64_t)q->kind, q->key,
			     q->max_space, q->max_inodes, q->used_space, q->used_inodes);
	if (r < 0)
		return r;
	return sql_log(c, ctx, "SETQUOTA(%d,%" PRIu64 ",%" PRId64 ",%" PRId64 ")", (int)q->kind,
		       q->key, q->max_space, q->max_inodes);
}

int sql_op_put_quota(struct cfs_engine *e, const struct cfs_ctx *ctx, const struct cfs_quota *q)
{
	struct cfs_quota copy = *q;

	return sql_txn(sql_db(e), ctx, CFS_META_OP_other, put, &copy);
}

/* The row of an owner stays, without limits: its usage is still counted. */
static int del(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct cfs_quota *q = arg;
	int r;

	sql_repeatable();
	if (q->kind == CFS_QUOTA_DIR)
		r = sql_exec(c, SQL_del_dir_quota, "i", q->key);
	else
		r = sql_exec(c, SQL_lift_owner_quota, "ii", (int64_t)q->kind, q->key);
	if (r <= 0)
		return r;
	return sql_log(c, ctx, "DELQUOTA(%d,%" PRIu64 ")", (int)q->kind, q->key);
}

int sql_op_del_quota(struct cfs_engine *e, const struct cfs_ctx *ctx, enum cfs_quota_kind kind,
		     uint64_t key)
{
	struct cfs_quota q = {.kind = kind, .key = key};

	return sql_txn(sql_db(e), ctx, CFS_META_OP_other, del, &q);
}

static int add(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct quotas *a = arg;
	size_t i;
	int r = sql_mark_write(c, a->mark);

	for (i = 0; i < a->n && r >= 0; i++) {
		const struct cfs_quota *q = &a->v[i];

		if (q->kind == CFS_QUOTA_DIR)
			r = sql_exec(c, SQL_add_dir_quota, "iii", q->used_space, q->used_inodes,
				     q->key);
		else
			r = sql_exec(c, SQL_add_owner_quota, "iiii", (int64_t)q->kind, q->key,
				     q->used_space, q->used_inodes);
	}
	return r < 0 ? r : 0;
}

int sql_op_add_quota_usage(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *mark,
			   const struct cfs_quota *deltas, size_t n)
{
	struct quotas a = {.mark = mark, .v = deltas, .n = n};
	int r = sql_txn(sql_db(e), ctx, CFS_META_OP_other, add, &a);

	return r == -EEXIST ? 0 : r;
}
