/* SPDX-License-Identifier: Apache-2.0 */
/* Fills the optimistic cache of names and directories, which creation and removal use. */
#include "meta/postgresql/pg-internal.h"

struct cfs_seen *pg_seen(struct cfs_engine *e)
{
	return &pg_db(sql_db(e))->seen;
}

int pg_op_lookup(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t parent,
		 const char *name, size_t len, struct cfs_entry *ret)
{
	int r = sql_op_lookup(e, ctx, parent, name, len, ret);

	if (!r)
		cfs_seen_file_remember(pg_seen(e), parent, name, len, ret);
	return r;
}

struct listing {
	struct cfs_seen *seen;
	cfs_ino_t dir;
	bool attrs;
	cfs_dirent_fn fn;
	void *arg;
};

static int see_entry(void *arg, const struct cfs_dirent *d)
{
	const struct listing *a = arg;

	if (a->attrs)
		cfs_seen_file_remember(a->seen, a->dir, d->name, d->name_len, &d->entry);
	else
		cfs_seen_name_remember(a->seen, a->dir, d->name, d->name_len, d->entry.ino);
	return a->fn(a->arg, d);
}

int pg_op_readdir(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t dir, bool attrs,
		  size_t limit, struct cfs_cursor *cursor, cfs_dirent_fn fn, void *arg)
{
	struct listing a = {pg_seen(e), dir, attrs, fn, arg};

	return sql_op_readdir(e, ctx, dir, attrs, limit, cursor, see_entry, &a);
}

/* The link counts of the directories may have changed. */
int pg_op_rename(struct cfs_engine *e, const struct cfs_ctx *ctx,
		 const struct cfs_engine_rename *req, struct cfs_renamed *ret,
		 struct cfs_usage *ret_usage)
{
	int r = sql_op_rename(e, ctx, req, ret, ret_usage);

	cfs_seen_dir_forget(pg_seen(e), req->r.src_parent);
	cfs_seen_dir_forget(pg_seen(e), req->r.dst_parent);
	return r;
}
