/* SPDX-License-Identifier: Apache-2.0 */
/* Fills the optimistic cache of names and directories, which creation and removal use. */
#include "meta/postgresql/pg-internal.h"

struct cfs_optimistic *pg_optimistic(struct cfs_engine *e)
{
	return &pg_db(sql_db(e))->optimistic;
}

int pg_op_lookup(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t parent,
		 const char *name, size_t len, struct cfs_entry *ret)
{
	int r = sql_op_lookup(e, ctx, parent, name, len, ret);

	if (!r)
		cfs_optimistic_file_remember(pg_optimistic(e), parent, name, len, ret);
	return r;
}

struct listing {
	struct cfs_optimistic *cache;
	cfs_ino_t dir;
	bool attrs;
	cfs_dirent_fn fn;
	void *arg;
};

static int see_entry(void *arg, const struct cfs_dirent *d)
{
	const struct listing *a = arg;

	if (a->attrs)
		cfs_optimistic_file_remember(a->cache, a->dir, d->name, d->name_len, &d->entry);
	else
		cfs_optimistic_name_remember(a->cache, a->dir, d->name, d->name_len, d->entry.ino);
	return a->fn(a->arg, d);
}

int pg_op_readdir(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t dir, bool attrs,
		  size_t limit, struct cfs_cursor *cursor, cfs_dirent_fn fn, void *arg)
{
	struct listing a = {pg_optimistic(e), dir, attrs, fn, arg};

	return sql_op_readdir(e, ctx, dir, attrs, limit, cursor, see_entry, &a);
}

/* The link counts of the directories may have changed. */
int pg_op_rename(struct cfs_engine *e, const struct cfs_ctx *ctx,
		 const struct cfs_engine_rename *req, struct cfs_renamed *ret,
		 struct cfs_usage *ret_usage)
{
	int r = sql_op_rename(e, ctx, req, ret, ret_usage);

	cfs_optimistic_dir_forget(pg_optimistic(e), req->r.src_parent);
	cfs_optimistic_dir_forget(pg_optimistic(e), req->r.dst_parent);
	return r;
}
