/* SPDX-License-Identifier: Apache-2.0 */
/* Changes of times alone. */
#include <errno.h>
#include <inttypes.h>

#include "base/bytes.h"
#include "meta/sql/sql-internal.h"

enum { DIRS_PER_BATCH = 64 };

/*
 * A single statement needs no explicit transaction, unless the database has a single writer, a
 * changelog line accompanies it, or the server requires transactions.
 */
static int change(struct cfs_engine *e, const struct cfs_ctx *ctx, enum cfs_meta_op op, sql_fn fn,
		  void *arg)
{
	struct sql_db *db = sql_db(e);
	bool alone = !db->dialect->single_writer && !cfs_host_changelog(e->host) &&
		     !atomic_load(&db->in_txn_only);

	return alone && !sql_refuses_changes(db) ? sql_read(db, ctx, op, fn, arg)
						 : sql_txn(db, ctx, op, fn, arg);
}

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

	return change(e, ctx, CFS_META_OP_setattr, touch_atime, &a);
}

struct touch_dirs {
	const struct cfs_dir_time *v;
	size_t n;
};

static int touch_dir(struct sql_conn *c, const struct cfs_ctx *ctx, const struct cfs_dir_time *d,
		     bool last)
{
	int64_t us = sql_us(d->time), sub = sql_sub_us(d->time), until_us = sql_us(d->until);
	bool logged = cfs_host_changelog(sql_host(c));
	struct cfs_attr attr;
	int r = (last || logged ? sql_exec : sql_post)(c, SQL_touch_dir, "iiiiiiiiii", us, sub, us,
						       sub, us, us, (int64_t)d->dir, until_us, us,
						       until_us);

	if (r <= 0 || !logged)
		return r < 0 ? r : 0;
	r = sql_get_node(c, d->dir, false, &attr);
	return r < 0 ? r : sql_log_setattr(c, ctx, d->dir, CFS_SET_MTIME | CFS_SET_CTIME, &attr);
}

static int touch_dirs(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct touch_dirs *a = arg;
	int r = 0;

	for (size_t i = 0; i < a->n && !r; i++)
		r = touch_dir(c, ctx, &a->v[i], i + 1 == a->n);
	return r;
}

int sql_op_touch_dirs(struct cfs_engine *e, const struct cfs_ctx *ctx, const struct cfs_dir_time *v,
		      size_t n)
{
	/* A database with a single writer takes all in one transaction: no other one waits. */
	size_t i, step = sql_db(e)->dialect->single_writer ? n
			 : cfs_host_changelog(e->host)	   ? 1
							   : DIRS_PER_BATCH;
	int r = 0;

	for (i = 0; i < n && !r; i += step) {
		struct touch_dirs a = {v + i, CFS_MIN(n - i, step)};

		r = change(e, ctx, CFS_META_OP_other, touch_dirs, &a);
	}
	return r;
}
