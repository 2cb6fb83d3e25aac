/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>

#include "meta/sql/sql.h"

struct dir_stat {
	cfs_ino_t dir;
	struct cfs_dir_stat *ret;
};

static int get(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct dir_stat *a = arg;
	int r = sql_row(c, SQL_get_dir_stat, "i", a->dir);

	if (r <= 0)
		return r < 0 ? r : -ENODATA;
	*a->ret = (struct cfs_dir_stat){
		.length = sql_int(c, SQL_get_dir_stat, 0),
		.space = sql_int(c, SQL_get_dir_stat, 1),
		.inodes = sql_int(c, SQL_get_dir_stat, 2),
	};
	sql_done(c, SQL_get_dir_stat);
	return 0;
}

int sql_op_get_dir_stat(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t dir,
			struct cfs_dir_stat *ret)
{
	struct dir_stat a = {dir, ret};

	return sql_read(sql_db(e), ctx, CFS_META_OP_other, get, &a);
}

struct add_usage {
	const char *mark;
	int64_t space, inodes;
	const struct cfs_usage_dir *dirs;
	size_t n;
};

static int add(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct add_usage *a = arg;
	size_t i;
	int r = sql_mark_write(c, a->mark);

	if (r >= 0 && (a->space || a->inodes))
		r = sql_exec(c, SQL_add_usage, "ii", a->space, a->inodes);
	for (i = 0; i < a->n && r >= 0; i++) {
		const struct cfs_usage_dir *d = &a->dirs[i];

		if (!d->length && !d->space && !d->inodes)
			continue;
		r = sql_add_dir_stat(c, d);
		if (r > 0)
			r = sql_log(c, ctx,
				    "DIRSTAT(%" PRIu64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ")",
				    d->dir, d->length, d->space, d->inodes);
	}
	return r < 0 ? r : 0;
}

int sql_op_add_usage(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *mark,
		     int64_t space, int64_t inodes, const struct cfs_usage_dir *dirs, size_t n)
{
	struct add_usage a = {mark, space, inodes, dirs, n};
	int r = sql_txn(sql_db(e), ctx, CFS_META_OP_other, add, &a);

	return r == -EEXIST ? 0 : r;
}
