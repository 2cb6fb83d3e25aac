/* SPDX-License-Identifier: Apache-2.0 */
/* Usage of the volume and of directories, inside the transaction that changes it. */
#include <errno.h>
#include <string.h>

#include "meta/sql/sql-internal.h"

/* It takes billions of smaller changes to get from CFS_USAGE_MAX to the end of a counter. */
#define MUCH_SPACE (1LL << 32)

int sql_add_dir_stat(struct sql_conn *c, const struct cfs_usage_dir *d)
{
	bool much = d->space >= MUCH_SPACE || d->space <= -MUCH_SPACE;
	/* -1: an empty range, as such a sum fits to no statistics. */
	int64_t max = d->space > CFS_USAGE_MAX || d->space < -CFS_USAGE_MAX ? -1 : CFS_USAGE_MAX;
	int r = 0;

	if (much)
		r = sql_exec(c, SQL_drop_dir_stat, "iii", (int64_t)d->dir, -max, max);
	if (r < 0)
		return r;
	return sql_exec(c, SQL_add_dir_stat, "iiii", d->length, d->space, d->inodes,
			(int64_t)d->dir);
}

static int put_usage(struct sql_conn *c, const struct cfs_usage *u)
{
	int r = 0;

	if (u->space || u->inodes)
		r = sql_exec(c, SQL_add_usage, "ii", u->space, u->inodes);
	if (!cfs_host_dir_stats(sql_host(c)))
		return r < 0 ? r : 0;
	for (unsigned i = 0; i < u->n_dirs && r >= 0; i++) {
		const struct cfs_usage_dir *d = &u->dirs[i];

		if (d->length || d->space || d->inodes)
			r = sql_add_dir_stat(c, d);
	}
	return r < 0 ? r : 0;
}

int sql_write_usage(struct sql_conn *c, const struct cfs_usage *u)
{
	return c->db->engine.ops->inline_usage ? put_usage(c, u) : 0;
}

int sql_write_lone_usage(struct sql_conn *c, const struct cfs_usage *u)
{
	return c->db->engine.ops->inline_usage ? 0 : put_usage(c, u);
}

/*
 * The update waits for an earlier attempt that the server is still executing. When the record is
 * missing (the session has expired and was cleaned up), a repeated write cannot be recognised.
 */
int sql_mark_write(struct sql_conn *c, const char *mark)
{
	int64_t sid = (int64_t)cfs_host_sid(sql_host(c));
	size_t len = mark ? strlen(mark) : 0;
	int r;

	if (!mark || !sid || !sql_dialect(c)->resolve)
		return 0;
	r = sql_exec(c, SQL_mark_session, "bib", mark, len, sid, mark, len);
	if (r > 0)
		sql_repeatable();
	if (r)
		return r < 0 ? r : 0;
	r = sql_has(c, SQL_find_mark, "ib", sid, mark, len);
	return r > 0 ? -EEXIST : r;
}
