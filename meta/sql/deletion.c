/* SPDX-License-Identifier: Apache-2.0 */
/* The stages of a removed file's data: sustained, delfile, chunks, slices without references. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/log.h"
#include "meta/sql/sql-internal.h"

/* ---- sustained inodes ---- */

struct sustained {
	uint64_t sid;
	cfs_ino_t ino;
	/* results of the last attempt that has made changes */
	bool deleted;
	uint64_t length;
	struct cfs_usage usage;
};

/* 1: an earlier attempt was committed, and its results are in *arg. */
static int end_sustained(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct sustained *a = arg;
	struct cfs_attr attr = {0};
	bool gone;
	int r;

	sql_repeatable();
	r = sql_get_node(c, a->ino, true, &attr);
	if (r < 0 && r != -ENOENT)
		return r;
	gone = r == -ENOENT;
	r = sql_exec(c, SQL_del_sustained, "ii", a->sid, a->ino);
	if (r == 0 && sql_is_repeated(c))
		return 1;
	if (r <= 0)
		return r < 0 ? r : -ENOENT;
	a->deleted = !gone && attr.nlink == 0;
	a->usage = (struct cfs_usage){0};
	if (!a->deleted)
		return 0;
	a->length = attr.length;
	cfs_usage_inode(&a->usage, &attr, -1);
	r = sql_put_delfile(c, ctx, a->ino, attr.length);
	if (r == 0)
		a->length = UINT64_MAX;
	if (r >= 0)
		r = sql_exec(c, SQL_del_node, "i", a->ino);
	/* Extended attributes may have been set after the last name was removed. */
	if (r >= 0)
		r = sql_post(c, SQL_del_xattrs, "i", a->ino);
	if (r >= 0)
		r = sql_write_usage(c, &a->usage);
	if (r < 0)
		return r;
	return sql_log(c, ctx, "DELSUSTAINED(%" PRIu64 ",%" PRIu64 ")", a->sid, a->ino);
}

/* -ENOENT: nothing to delete. The inode is not sustained, has a name, or is missing. */
int sql_op_end_sustained(struct cfs_engine *e, const struct cfs_ctx *ctx, uint64_t sid,
			 cfs_ino_t ino, uint64_t *ret_length, struct cfs_usage *ret_usage)
{
	struct sustained a = {.sid = sid, .ino = ino};
	int r = sql_txn(sql_db(e), ctx, CFS_META_OP_delete, end_sustained, &a);

	if (r < 0 || !a.deleted)
		return r < 0 ? r : -ENOENT;
	*ret_length = a.length;
	*ret_usage = a.usage;
	return 0;
}

/*
 * Ends a sustained inode of a dead session. The client of that session cannot record the freed
 * usage of the volume and of the owner, so this transaction does.
 */
static int end_stale(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct sustained *a = arg;
	const struct cfs_usage *u = &a->usage;
	int r = end_sustained(c, ctx, arg);

	if (r || !a->deleted)
		return r;
	r = sql_write_lone_usage(c, u);
	if (r >= 0)
		r = sql_exec(c, SQL_move_owner_usage, "iiii", u->owner_space, u->owner_inodes,
			     (int64_t)CFS_QUOTA_USER, (int64_t)u->uid);
	if (r >= 0)
		r = sql_exec(c, SQL_move_owner_usage, "iiii", u->owner_space, u->owner_inodes,
			     (int64_t)CFS_QUOTA_GROUP, (int64_t)u->gid);
	return r < 0 ? r : 0;
}

static int any_sustained(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct sustained *a = arg;
	int r = sql_row(c, SQL_any_sustained, "i", a->sid);

	if (r > 0)
		a->ino = (cfs_ino_t)sql_int(c, SQL_any_sustained, 0);
	else
		a->ino = 0;
	sql_done(c, SQL_any_sustained);
	return r < 0 ? r : 0;
}

int sql_end_sustained_all(struct sql_db *db, const struct cfs_ctx *ctx, uint64_t sid)
{
	struct sustained a = {.sid = sid};
	int r;

	do {
		r = sql_read(db, ctx, CFS_META_OP_delete, any_sustained, &a);
		if (r >= 0 && a.ino)
			r = sql_txn(db, ctx, CFS_META_OP_delete, end_stale, &a);
	} while ((r >= 0 || r == -ENOENT) && a.ino);
	return r;
}

/* ---- delfiles ---- */

struct delfile {
	cfs_ino_t ino;
	uint64_t length;
	int64_t when_s;
};

struct delfiles {
	int64_t before_s;
	size_t limit, n;
	struct delfile *v;
};

static int list_delfiles(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct delfiles *a = arg;
	int r = sql_query(c, SQL_each_delfile, "ii", a->before_s, (int64_t)a->limit);

	a->n = 0;
	while (r >= 0 && a->n < a->limit && (r = sql_next(c, SQL_each_delfile)) > 0)
		a->v[a->n++] = (struct delfile){
			.ino = (cfs_ino_t)sql_int(c, SQL_each_delfile, 0),
			.length = (uint64_t)sql_int(c, SQL_each_delfile, 1),
			.when_s = sql_int(c, SQL_each_delfile, 2),
		};
	return r < 0 ? r : 0;
}

int sql_op_each_delfile(struct cfs_engine *e, const struct cfs_ctx *ctx, int64_t before_s,
			size_t limit, cfs_engine_delfile_fn fn, void *arg)
{
	struct delfiles a = {.before_s = before_s, .limit = limit};
	size_t i;
	int r;

	a.v = calloc(limit ? limit : 1, sizeof(*a.v));
	if (!a.v)
		return -ENOMEM;
	r = sql_read(sql_db(e), ctx, CFS_META_OP_delete, list_delfiles, &a);
	for (i = 0; r >= 0 && i < a.n; i++) {
		r = fn(arg, a.v[i].ino, a.v[i].length, a.v[i].when_s);
		if (r)
			break;
	}
	free(a.v);
	return r;
}

struct chunk {
	cfs_ino_t ino;
	uint64_t length; /* drop_delfile */
	/* results of one attempt */
	bool none_left;
	struct sql_refs dead;
};

static int delete_chunk(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct chunk *a = arg;
	struct cfs_attr attr;
	const void *records;
	int64_t indx;
	size_t len;
	int r;

	/* When an earlier attempt was committed, the hourly job finds the slices of its chunk. */
	sql_repeatable();
	sql_refs_clear(&a->dead);
	r = sql_get_node(c, a->ino, true, &attr);
	if (r != -ENOENT) {
		if (r < 0)
			return r;
		cfs_err("inode exists, its data is not deleted: inode=%" PRIu64, a->ino);
		return -EBUSY;
	}
	r = sql_row(c, SQL_any_chunk, "i", a->ino);
	a->none_left = r == 0;
	if (r <= 0)
		return r;
	indx = sql_int(c, SQL_any_chunk, 0);
	records = sql_blob(c, SQL_any_chunk, 1, &len);
	r = sql_refs_add_records(&a->dead, records, len);
	sql_done(c, SQL_any_chunk);
	if (r == -EIO)
		cfs_err("chunk list is damaged, not deleted: inode=%" PRIu64 " chunk=%" PRId64,
			a->ino, indx);
	if (r < 0)
		return r;
	r = sql_exec(c, SQL_del_chunk, "ii", a->ino, indx);
	if (r >= 0)
		r = sql_refs_drop(c, &a->dead);
	return r < 0 ? r : sql_log(c, ctx, "DELCHUNK(%" PRIu64 ",%" PRId64 ")", a->ino, indx);
}

int sql_op_delete_chunk(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			cfs_engine_slice_fn dead, void *arg)
{
	struct chunk a = {.ino = ino};
	int r = sql_txn(sql_db(e), ctx, CFS_META_OP_delete, delete_chunk, &a);

	if (r >= 0)
		sql_refs_each(&a.dead, dead, arg);
	sql_refs_free(&a.dead);
	return r < 0 ? r : a.none_left;
}

static int drop_delfile(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct chunk *a = arg;
	int r;

	sql_repeatable();
	r = sql_exec(c, SQL_del_delfile, "ii", a->ino, a->length);
	return r < 0 ? r : 0;
}

int sql_op_drop_delfile(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			uint64_t length)
{
	struct chunk a = {.ino = ino, .length = length};

	return sql_txn(sql_db(e), ctx, CFS_META_OP_delete, drop_delfile, &a);
}

/* ---- slices ---- */

struct page {
	int64_t limit;
	struct sql_refs slices;
};

static int list_dead(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct page *a = arg;
	int r = sql_query(c, SQL_each_dead, "i", a->limit);

	sql_refs_clear(&a->slices);
	while (r >= 0 && (r = sql_next(c, SQL_each_dead)) > 0)
		r = sql_refs_add(&a->slices, (uint64_t)sql_int(c, SQL_each_dead, 0),
				 (uint32_t)sql_int(c, SQL_each_dead, 1));
	return r < 0 ? r : 0;
}

int sql_op_each_dead_slice(struct cfs_engine *e, const struct cfs_ctx *ctx, size_t limit,
			   cfs_engine_slice_fn fn, void *arg)
{
	struct page a = {.limit = (int64_t)limit};
	int r = sql_read(sql_db(e), ctx, CFS_META_OP_delete, list_dead, &a);

	if (r >= 0)
		r = sql_refs_each(&a.slices, fn, arg);
	sql_refs_free(&a.slices);
	return r;
}

static int orphan_slice(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct cfs_dead_slice *a = arg;
	int64_t refs;
	int r;

	sql_repeatable();
	r = sql_row(c, SQL_get_refs, "i", a->id);
	if (r < 0)
		return r;
	if (r > 0) {
		refs = sql_int(c, SQL_get_refs, 0);
		sql_done(c, SQL_get_refs);
		return refs > 0 ? -EBUSY : 0;
	}
	r = sql_exec(c, SQL_put_ref, "iii", a->id, (int64_t)a->size, (int64_t)0);
	return r < 0 ? r : 0;
}

int sql_op_orphan_slice(struct cfs_engine *e, const struct cfs_ctx *ctx, uint64_t id, uint32_t size)
{
	struct cfs_dead_slice a = {.id = id, .size = size};

	return sql_txn(sql_db(e), ctx, CFS_META_OP_delete, orphan_slice, &a);
}

static int drop_slice(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct cfs_dead_slice *a = arg;
	int r;

	sql_repeatable();
	r = sql_exec(c, SQL_del_ref, "i", a->id);
	if (r <= 0)
		return r;
	return sql_log(c, ctx, "DELETESLICE(%" PRIu64 ",%u)", a->id, a->size);
}

int sql_op_drop_slice(struct cfs_engine *e, const struct cfs_ctx *ctx, uint64_t id, uint32_t size)
{
	struct cfs_dead_slice a = {.id = id, .size = size};

	return sql_txn(sql_db(e), ctx, CFS_META_OP_delete, drop_slice, &a);
}
