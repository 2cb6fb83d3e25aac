/* SPDX-License-Identifier: Apache-2.0 */
/* Removing names in one statement; looking them up, which removal profits from. */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "meta/postgresql/pg-internal.h"

/* ---- hints ---- */

void pg_hint(struct pg_db *db, cfs_ino_t parent, const char *name, size_t len, cfs_ino_t ino)
{
	uint64_t h = cfs_core_hash_name(parent, name, len);

	atomic_store_explicit(&db->hints.v[h % PG_HINTS].ino, ino, memory_order_relaxed);
	atomic_store_explicit(&db->hints.v[h % PG_HINTS].name, h, memory_order_relaxed);
}

cfs_ino_t pg_hinted(struct pg_db *db, cfs_ino_t parent, const char *name, size_t len)
{
	uint64_t h = cfs_core_hash_name(parent, name, len);

	if (atomic_load_explicit(&db->hints.v[h % PG_HINTS].name, memory_order_relaxed) != h)
		return 0;
	return atomic_load_explicit(&db->hints.v[h % PG_HINTS].ino, memory_order_relaxed);
}

int pg_op_lookup(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t parent,
		 const char *name, size_t len, struct cfs_entry *ret)
{
	int r = sql_op_lookup(e, ctx, parent, name, len, ret);

	if (!r)
		pg_hint(pg_db(sql_db(e)), parent, name, len, ret->ino);
	return r;
}

struct listing {
	struct pg_db *db;
	cfs_ino_t dir;
	cfs_dirent_fn fn;
	void *arg;
};

static int hint_entry(void *arg, const struct cfs_dirent *d)
{
	const struct listing *a = arg;

	pg_hint(a->db, a->dir, d->name, d->name_len, d->entry.ino);
	return a->fn(a->arg, d);
}

int pg_op_readdir(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t dir, bool attrs,
		  size_t limit, struct cfs_cursor *cursor, cfs_dirent_fn fn, void *arg)
{
	struct listing a = {.db = pg_db(sql_db(e)), .dir = dir, .fn = fn, .arg = arg};

	return sql_op_readdir(e, ctx, dir, attrs, limit, cursor, hint_entry, &a);
}

/* ---- statements ---- */

/*
 * $1 parent, $2 name, $3 uid of the caller, $4 us, $5 ns below, $6 the inode expected or 0
 *
 * p: the directory; v: the victim, locked, in its latest version; d: the edge that is gone.
 */
#define REMOVE(victim)                                                                             \
	"WITH p AS (SELECT n.* FROM {node} n WHERE n.inode=$1),"                                   \
	"v AS (SELECT n.* FROM {edge} e JOIN {node} n ON n.inode=e.inode,p "                       \
	"WHERE e.parent=$1 AND e.name=$2 AND ($6=0 OR e.inode=$6) AND " PG_DIR_OPEN(               \
		"3") " AND n.flags&3=0 AND (p.mode&512=0 OR $3=0 OR p.uid=$3 OR n.uid=$3) "        \
		     "AND " victim " FOR UPDATE OF n),"

#define FEWER_DIRS                                                                                 \
	",t AS (UPDATE {node} u SET nlink=u.nlink-1,mtime=$4,ctime=$4,mtimensec=$5,ctimensec=$5 "  \
	"FROM d WHERE u.inode=$1)"

#define DELETE_EDGE                                                                                \
	"d AS (DELETE FROM {edge} e USING v WHERE e.parent=$1 AND e.name=$2 AND "                  \
	"e.inode=v.inode RETURNING e.inode),"

/* $7 trash. The name there is cut to 255 bytes. */
#define MOVE_EDGE                                                                                  \
	"d AS (UPDATE {edge} e SET parent=$7,name=substring(convert_to($1::text||'-'||v.inode::"   \
	"text||'-','UTF8')||$2 from 1 for 255) FROM v WHERE e.parent=$1 AND e.name=$2 AND "        \
	"e.inode=v.inode RETURNING e.inode),"                                                      \
	"u AS (UPDATE {node} n SET parent=CASE WHEN n.parent=0 THEN 0 ELSE $7 END,"                \
	"ctime=$4,ctimensec=$5 FROM d WHERE n.inode=d.inode)"

#define DELETE_OF(table) "(DELETE FROM {" table "} k USING d WHERE k.inode=d.inode)"

#define ONE_NAME     "e.type<>2 AND n.type<>2 AND n.nlink=1"
#define EMPTY	     "e.type=2 AND n.type=2 AND NOT EXISTS (SELECT 1 FROM {edge} c WHERE c.parent=n.inode)"
#define RESULT(data) " SELECT {NODE},n.inode,(SELECT count(*) FROM d)," data ",{PARENT} FROM p,v n"

/*
 * A file without length may have chunks all the same; one whose length or times have changed since
 * the statement began may have chunks that it does not see.
 */
static const char unlink_text[] = REMOVE(ONE_NAME) DELETE_EDGE
	"dn AS " DELETE_OF("node") ",dx AS " DELETE_OF("xattr") ",ds AS " DELETE_OF(
		"symlink") ",f AS (INSERT INTO {delfile}(inode,length,expire) "
			   "SELECT v.inode,v.length,$4/1000000 FROM v,d WHERE v.type=1 "
			   "AND (v.length>0 "
			   "OR EXISTS (SELECT 1 FROM {chunk} c WHERE c.inode=v.inode) "
			   "OR NOT EXISTS (SELECT 1 FROM {node} o WHERE o.inode=v.inode "
			   "AND o.mtime=v.mtime AND o.ctime=v.ctime)) "
			   "ON CONFLICT DO NOTHING RETURNING 1)" RESULT("(SELECT count(*) FROM f)");
static const char unlink_trash_text[] = REMOVE(ONE_NAME " AND n.flags&32=0") MOVE_EDGE RESULT("0");
static const char rmdir_text[] = REMOVE(EMPTY) DELETE_EDGE
	"dn AS " DELETE_OF("node") ",dx AS " DELETE_OF("xattr") ",ds AS " DELETE_OF(
		"dir_stats") ",dq AS " DELETE_OF("dir_quota") FEWER_DIRS RESULT("0");
static const char rmdir_trash_text[] = REMOVE(EMPTY " AND n.flags&32=0") MOVE_EDGE
	",ds AS " DELETE_OF("dir_stats") ",dq AS " DELETE_OF("dir_quota") FEWER_DIRS RESULT("0");

/* What was made in the directory before it was locked is seen by the statement after this one. */
static const char lock_dir_text[] = "SELECT 1 FROM {edge} e JOIN {node} n ON n.inode=e.inode "
				    "WHERE e.parent=$1 AND e.name=$2 AND e.type=2 FOR UPDATE OF n";

enum { INO = SQL_NODE_COLUMNS, GONE, HAS_DATA, PARENT };

struct remove {
	const struct cfs_engine_remove *req;
	bool dir;
	cfs_ino_t expected; /* 0: any */
	struct cfs_removed ret;
};

static int open_remove(struct sql_conn *c, const struct remove *a, int *ret_id,
		       struct pg_stmt **ret)
{
	bool trash = a->req->trash;

	if (a->dir) {
		*ret_id = trash ? PG_RMDIR_TRASH : PG_RMDIR;
		return pg_open_stmt(c, *ret_id, trash ? rmdir_trash_text : rmdir_text, ret);
	}
	*ret_id = trash ? PG_UNLINK_TRASH : PG_UNLINK;
	return pg_open_stmt(c, *ret_id, trash ? unlink_trash_text : unlink_text, ret);
}

static int queue_lock(struct sql_conn *c, const struct cfs_engine_remove *req)
{
	struct pg_stmt *st = NULL;
	int r = pg_open_stmt(c, PG_LOCK_DIR, lock_dir_text, &st);

	if (r < 0)
		return r;
	pg_bind_int(st, 1, (int64_t)req->parent);
	pg_bind_bytes(st, 2, req->name, req->name_len, false);
	return pg_queue(pg_conn(c), PG_LOCK_DIR, false);
}

static void bind_remove(struct sql_conn *c, const struct cfs_ctx *ctx, const struct remove *a,
			struct pg_stmt *st)
{
	const struct cfs_engine_remove *req = a->req;

	pg_bind_int(st, 1, (int64_t)req->parent);
	pg_bind_bytes(st, 2, req->name, req->name_len, false);
	pg_bind_int(st, 3, ctx->uid);
	pg_bind_int(st, 4, sql_us(ctx->now));
	pg_bind_int(st, 5, sql_sub_us(ctx->now));
	pg_bind_int(st, 6, (int64_t)a->expected);
	if (req->trash)
		pg_bind_int(st, 7, (int64_t)req->trash);
}

static void read_removed(struct sql_conn *c, const struct cfs_ctx *ctx, struct remove *a, int id)
{
	const struct pg_stmt *st = pg_conn(c)->stmt[id];
	struct cfs_removed *v = &a->ret;

	sql_node_columns(c, (enum sql_stmt_id)id, 0, &v->attr);
	sql_node_columns(c, (enum sql_stmt_id)id, PARENT, &v->parent);
	v->ino = (cfs_ino_t)pg_int(st->result, 0, INO);
	v->has_data = pg_int(st->result, 0, HAS_DATA) > 0;
	v->fate = a->req->trash ? CFS_FATE_TRASHED : CFS_FATE_DELETED;
	if (a->req->trash) {
		v->attr.ctime = ctx->now;
		if (v->attr.parent)
			v->attr.parent = a->req->trash;
	}
	v->parent = sql_touched(ctx, &v->parent, a->dir ? -1 : 0);
}

static int remove_name(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct remove *a = arg;
	struct pg_stmt *st = NULL;
	int id, r = open_remove(c, a, &id, &st);

	if (!r && a->dir)
		r = queue_lock(c, a->req);
	if (r < 0)
		return r;
	bind_remove(c, ctx, a, st);
	r = pg_execute(c, id);
	/* The name in the trash is taken. */
	if (r == -EEXIST)
		return PG_UNUSUAL;
	if (r < 0)
		return r;
	if (PQntuples(st->result) && pg_int(st->result, 0, GONE))
		read_removed(c, ctx, a, id);
	else
		r = PG_UNUSUAL;
	pg_close_stmt(c, id);
	return r;
}

/* The inode that will be found; PG_UNUSUAL: it is open here and stays. */
static int expect(struct cfs_engine *e, const struct cfs_ctx *ctx, struct remove *a)
{
	const struct cfs_engine_remove *req = a->req;
	struct pg_db *db = pg_db(sql_db(e));
	struct cfs_entry there;
	int r;

	a->expected = pg_hinted(db, req->parent, req->name, req->name_len);
	if (a->dir || req->trash || !cfs_core_has_open(e->core))
		return 0;
	if (!a->expected) {
		r = pg_op_lookup(e, ctx, req->parent, req->name, req->name_len, &there);
		if (r < 0)
			return r == -ENOENT ? PG_UNUSUAL : r;
		a->expected = there.ino;
	}
	return cfs_core_is_open(e->core, a->expected) ? PG_UNUSUAL : 0;
}

/*
 * A name that is not there after a lost answer, or stands for another inode, was removed by the
 * statement that got none.
 */
static int remove_again(struct cfs_engine *e, const struct cfs_ctx *ctx, const struct remove *a,
			struct cfs_removed *ret, struct cfs_usage *ret_usage)
{
	const struct cfs_engine_remove *req = a->req;
	struct cfs_entry there;
	int r = sql_op_lookup(e, ctx, req->parent, req->name, req->name_len, &there);

	if (!r && a->expected && there.ino != a->expected)
		r = -ENOENT;
	else if (!r)
		r = a->dir ? sql_op_rmdir(e, ctx, req, ret, ret_usage)
			   : sql_op_unlink(e, ctx, req, ret, ret_usage);
	if (r != -ENOENT)
		return r;
	cfs_warn("the connection was lost during a removal that was carried out, usage counters "
		 "miss it: database=%s",
		 sql_db(e)->where);
	*ret = (struct cfs_removed){.fate = CFS_FATE_NONE};
	*ret_usage = (struct cfs_usage){0};
	return 0;
}

static int run(struct cfs_engine *e, const struct cfs_ctx *ctx, enum cfs_meta_op op,
	       struct remove *a, struct cfs_removed *ret, struct cfs_usage *ret_usage)
{
	const struct cfs_engine_remove *req = a->req;
	int r = PG_UNUSUAL;

	if (pg_is_judged(ctx) && !cfs_ino_is_trash(req->parent) && !cfs_core_changelog(e->core))
		r = expect(e, ctx, a);
	if (!r)
		r = sql_read(sql_db(e), ctx, op, remove_name, a);
	if (r == PG_UNUSUAL)
		return a->dir ? sql_op_rmdir(e, ctx, req, ret, ret_usage)
			      : sql_op_unlink(e, ctx, req, ret, ret_usage);
	if (r == PG_UNKNOWN)
		return remove_again(e, ctx, a, ret, ret_usage);
	if (r < 0)
		return r;
	*ret = a->ret;
	*ret_usage = (struct cfs_usage){0};
	sql_usage_entry(ret_usage, req->parent, &ret->attr, -1);
	if (ret->fate == CFS_FATE_TRASHED)
		sql_usage_entry(ret_usage, req->trash, &ret->attr, 1);
	else
		sql_usage_inode(ret_usage, &ret->attr, -1);
	return 0;
}

int pg_op_unlink(struct cfs_engine *e, const struct cfs_ctx *ctx,
		 const struct cfs_engine_remove *req, struct cfs_removed *ret,
		 struct cfs_usage *ret_usage)
{
	struct remove a = {.req = req};

	return run(e, ctx, CFS_META_OP_unlink, &a, ret, ret_usage);
}

int pg_op_rmdir(struct cfs_engine *e, const struct cfs_ctx *ctx,
		const struct cfs_engine_remove *req, struct cfs_removed *ret,
		struct cfs_usage *ret_usage)
{
	struct remove a = {.req = req, .dir = true};

	return run(e, ctx, CFS_META_OP_rmdir, &a, ret, ret_usage);
}
