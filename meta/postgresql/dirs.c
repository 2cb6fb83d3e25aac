/* SPDX-License-Identifier: Apache-2.0 */
/* When the times of a directory move with the names in it. */
#include "meta/postgresql/pg-internal.h"

static struct pg_dir *slot(struct pg_db *db, cfs_ino_t ino)
{
	return &db->dirs.v[((ino * 0x9E3779B97F4A7C15ULL) >> 32) % PG_DIRS];
}

int64_t pg_touch_due(struct sql_conn *c, const struct cfs_ctx *ctx, bool nlink_changes)
{
	uint64_t skip_ms = cfs_core_skip_dir_mtime_ms(sql_core(c));

	if (nlink_changes || !skip_ms)
		return INT64_MAX;
	return sql_us(ctx->now) - (int64_t)skip_ms * 1000;
}

bool pg_dir_may_be_due(struct sql_conn *c, const struct cfs_ctx *ctx, cfs_ino_t dir)
{
	struct pg_db *db = pg_db(c->db);
	const struct pg_dir *d = slot(db, dir);
	int64_t due_us = pg_touch_due(c, ctx, false);
	bool is_known_late;

	pthread_mutex_lock(&db->dirs.lock);
	is_known_late = d->ino == dir && d->mtime_us > due_us;
	pthread_mutex_unlock(&db->dirs.lock);
	return !is_known_late;
}

static void remember(struct pg_db *db, cfs_ino_t dir, int64_t mtime_us)
{
	pthread_mutex_lock(&db->dirs.lock);
	*slot(db, dir) = (struct pg_dir){.ino = dir, .mtime_us = mtime_us};
	pthread_mutex_unlock(&db->dirs.lock);
}

bool pg_dir_answered(struct sql_conn *c, const struct cfs_ctx *ctx, cfs_ino_t dir,
		     const struct cfs_attr *before, bool could_touch, bool touched)
{
	/* Somebody has set its times back since they were seen. */
	if (!could_touch && sql_us(before->mtime) <= pg_touch_due(c, ctx, false))
		touched = sql_touch_parent(c, ctx, dir, 0) == 0;
	remember(pg_db(c->db), dir, sql_us(touched ? ctx->now : before->mtime));
	return touched;
}
