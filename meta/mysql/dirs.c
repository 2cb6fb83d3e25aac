/* SPDX-License-Identifier: Apache-2.0 */
/* The directories that operations went to last. */
#include "mysql-internal.h"

static struct cfs_entry *slot_of(struct mysql_db *db, cfs_ino_t ino)
{
	return &db->dirs.slot[((ino * 0x9E3779B97F4A7C15ULL) >> 32) % MYSQL_DIRS];
}

bool mysql_dir_known(struct mysql_db *db, cfs_ino_t ino, struct cfs_attr *ret)
{
	const struct cfs_entry *e = slot_of(db, ino);
	bool known;

	pthread_mutex_lock(&db->dirs.lock);
	known = e->ino == ino;
	if (known)
		*ret = e->attr;
	pthread_mutex_unlock(&db->dirs.lock);
	return known;
}

void mysql_dir_remember(struct mysql_db *db, cfs_ino_t ino, const struct cfs_attr *attr)
{
	struct cfs_entry *e = slot_of(db, ino);

	pthread_mutex_lock(&db->dirs.lock);
	*e = (struct cfs_entry){.ino = ino, .attr = *attr};
	pthread_mutex_unlock(&db->dirs.lock);
}

void mysql_dir_forget(struct mysql_db *db, cfs_ino_t ino)
{
	struct cfs_entry *e = slot_of(db, ino);

	pthread_mutex_lock(&db->dirs.lock);
	if (e->ino == ino)
		e->ino = 0;
	pthread_mutex_unlock(&db->dirs.lock);
}

/* Of many threads that come when the times are due, one moves them. */
bool mysql_dir_claim_touch(struct mysql_db *db, const struct cfs_ctx *ctx, cfs_ino_t ino,
			   const struct cfs_attr *attr, bool nlink_changes)
{
	uint64_t skip_ms = cfs_core_skip_dir_mtime_ms(db->sql.engine.core);
	struct cfs_entry *e = slot_of(db, ino);
	bool due;

	pthread_mutex_lock(&db->dirs.lock);
	due = cfs_rules_touch_parent(ctx, e->ino == ino ? &e->attr : attr, skip_ms, nlink_changes);
	if (due && e->ino == ino)
		e->attr.mtime = e->attr.ctime = ctx->now;
	pthread_mutex_unlock(&db->dirs.lock);
	return due;
}
