/* SPDX-License-Identifier: Apache-2.0 */
/* Times that are stored on their own. */
#include <errno.h>
#include <inttypes.h>

#include "meta/sql/sql-internal.h"

struct touch {
	cfs_ino_t ino;
	struct timespec atime;
};

static int touch_atime(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct touch *a = arg;
	int r = sql_exec(c, SQL_touch_atime, "iii", sql_us(a->atime), sql_sub_us(a->atime),
			 (int64_t)a->ino);

	if (r <= 0)
		return r ? r : -ENOENT;
	return sql_log(c, ctx, "ACCESS(%" PRIu64 ")", a->ino);
}

int sql_op_touch_atime(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
		       struct timespec atime)
{
	struct touch a = {.ino = ino, .atime = atime};

	return sql_txn(sql_db(e), ctx, CFS_META_OP_setattr, touch_atime, &a);
}

struct touch_dirs {
	const struct cfs_dir_time *v;
	size_t n;
};

static int touch_dir(struct sql_conn *c, const struct cfs_ctx *ctx, const struct cfs_dir_time *d)
{
	int64_t us = sql_us(d->time), sub = sql_sub_us(d->time), until_us = sql_us(d->until);
	struct cfs_attr attr;
	int r = sql_exec(c, SQL_touch_dir, "iiiiiiiiii", us, sub, us, sub, us, us, (int64_t)d->dir,
			 until_us, us, until_us);

	if (r <= 0 || !cfs_core_changelog(sql_core(c)))
		return r < 0 ? r : 0;
	r = sql_get_node(c, d->dir, false, &attr);
	return r < 0 ? r : sql_log_setattr(c, ctx, d->dir, CFS_SET_MTIME | CFS_SET_CTIME, &attr);
}

static int touch_dirs(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct touch_dirs *a = arg;
	int r = 0;

	for (size_t i = 0; i < a->n && !r; i++)
		r = touch_dir(c, ctx, &a->v[i]);
	return r;
}

/* Each is a change of its own, except where there is one writer anyway, or a line of the log to be
 * written with it. */
int sql_op_touch_dirs(struct cfs_engine *e, const struct cfs_ctx *ctx, const struct cfs_dir_time *v,
		      size_t n)
{
	struct touch_dirs all = {v, n};
	int r = 0;

	if (sql_db(e)->dialect->single_writer)
		return sql_txn(sql_db(e), ctx, CFS_META_OP_other, touch_dirs, &all);
	if (!cfs_core_changelog(e->core))
		return sql_read(sql_db(e), ctx, CFS_META_OP_other, touch_dirs, &all);
	for (size_t i = 0; i < n && !r; i++) {
		struct touch_dirs one = {v + i, 1};

		r = sql_txn(sql_db(e), ctx, CFS_META_OP_other, touch_dirs, &one);
	}
	return r;
}
