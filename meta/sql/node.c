/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the node and edge tables. */
#include <errno.h>

#include "meta/sql/sql-internal.h"

struct timespec sql_time(int64_t us, int64_t sub_us)
{
	int64_t s = us / 1000000, rest = us % 1000000;

	if (rest < 0) {
		s--;
		rest += 1000000;
	}
	return (struct timespec){.tv_sec = s, .tv_nsec = rest * 1000 + sub_us};
}

void sql_node_row(const int64_t row[SQL_NODE_COLUMNS], struct cfs_attr *ret)
{
	*ret = (struct cfs_attr){
		.type = (uint8_t)row[0],
		.flags = (uint8_t)row[1],
		.mode = (uint16_t)row[2],
		.uid = (uint32_t)row[3],
		.gid = (uint32_t)row[4],
		.atime = sql_time(row[5], row[8]),
		.mtime = sql_time(row[6], row[9]),
		.ctime = sql_time(row[7], row[10]),
		.nlink = (uint32_t)row[11],
		.length = (uint64_t)row[12],
		.rdev = (uint32_t)row[13],
		.parent = (cfs_ino_t)row[14],
		.access_acl = (uint32_t)row[15],
		.default_acl = (uint32_t)row[16],
		.tier = (uint8_t)row[17],
	};
}

void sql_node_columns(struct sql_conn *c, enum sql_stmt_id id, int col, struct cfs_attr *ret)
{
	int64_t row[SQL_NODE_COLUMNS];

	for (int i = 0; i < SQL_NODE_COLUMNS; i++)
		row[i] = sql_int(c, id, col + i);
	sql_node_row(row, ret);
}

static int read_node(struct sql_conn *c, enum sql_stmt_id id, cfs_ino_t ino, struct cfs_attr *ret)
{
	int r = sql_row(c, id, "i", (int64_t)ino);

	if (r <= 0)
		return r ? r : -ENOENT;
	sql_node_columns(c, id, 0, ret);
	sql_done(c, id);
	return 0;
}

int sql_get_node(struct sql_conn *c, cfs_ino_t ino, bool for_update, struct cfs_attr *ret)
{
	return read_node(c, for_update ? SQL_lock_node : SQL_get_node, ino, ret);
}

int sql_keep_node(struct sql_conn *c, cfs_ino_t ino, struct cfs_attr *ret)
{
	return read_node(c, SQL_keep_node, ino, ret);
}

int sql_keep_late(struct sql_conn *c, cfs_ino_t dir, const struct cfs_attr *attr)
{
	bool trashed;
	int r;

	if (!sql_dialect(c)->keep_late)
		return 0;
	r = sql_row(c, SQL_keep_late, "i", (int64_t)dir);
	if (r <= 0)
		return r ? r : -ENOENT;
	trashed = cfs_ino_is_trash((cfs_ino_t)sql_int(c, SQL_keep_late, 0));
	sql_done(c, SQL_keep_late);
	if (trashed && !cfs_ino_is_trash(attr->parent))
		return -ENOENT;
	return sql_certify_dir(c, dir);
}

int sql_put_node(struct sql_conn *c, cfs_ino_t ino, const struct cfs_attr *a)
{
	return sql_post(c, SQL_put_node, "iiiiiiiiiiiiiiiiiii", (int64_t)ino, SQL_NODE_VALUES(a));
}

int sql_update_node(struct sql_conn *c, cfs_ino_t ino, const struct cfs_attr *a)
{
	return sql_post(c, SQL_update_node, "iiiiiiiiiiiiiiiiiii", SQL_NODE_VALUES(a),
			(int64_t)ino);
}

int sql_get_edge(struct sql_conn *c, cfs_ino_t parent, const char *name, size_t len,
		 struct sql_edge *ret)
{
	int r = sql_row(c, SQL_get_edge, "ib", (int64_t)parent, name, len);

	if (r <= 0)
		return r ? r : -ENOENT;
	ret->ino = (cfs_ino_t)sql_int(c, SQL_get_edge, 0);
	ret->type = (uint8_t)sql_int(c, SQL_get_edge, 1);
	sql_done(c, SQL_get_edge);
	return 0;
}

int sql_touch_parent(struct sql_conn *c, const struct cfs_ctx *ctx, cfs_ino_t parent, int nlink_d)
{
	int64_t us = sql_us(ctx->now), sub = sql_sub_us(ctx->now);
	int r;

	/* With FOR SHARE, the parent is locked against deletion: it exists. */
	if (sql_dialect(c)->for_share)
		return sql_post(c, SQL_touch_parent, "iiiiii", (int64_t)nlink_d, us, us, sub, sub,
				(int64_t)parent);
	r = sql_exec(c, SQL_touch_parent, "iiiiii", (int64_t)nlink_d, us, us, sub, sub,
		     (int64_t)parent);
	if (r < 0)
		return r;
	return r ? 0 : -ENOENT;
}

struct cfs_attr sql_touched(const struct cfs_ctx *ctx, const struct cfs_attr *dir, int nlink_d)
{
	struct cfs_attr attr = *dir;

	if (nlink_d) {
		attr.nlink += (uint32_t)nlink_d;
		attr.mtime = attr.ctime = ctx->now;
	}
	return attr;
}
