/* SPDX-License-Identifier: Apache-2.0 */
/* Removal of names in one statement. */
#include <errno.h>

#include "meta/postgresql/pg-internal.h"

/* ---- statements ---- */

/*
 * The optimistic path, for a file and a directory with cached attributes: the server only checks
 * that they are unchanged. Answers with the number of rows.
 *
 * $1 parent, $2 name, $3 inode; of the inode: $4 flags, $5 uid, $6 gid, $7 length, $8 mtime, $9
 * ctime, $10 parent; of the parent: $11 flags, $12 mode, $13 uid, $14 parent
 *
 * v: the locked file, in its latest version; d: the removed edge.
 */
#define REMOVE_KNOWN(more)                                                                         \
	"WITH v AS (SELECT n.inode FROM {node} n WHERE n.inode=$3 AND n.flags=$4 AND n.uid=$5 "    \
	"AND n.gid=$6 AND n.nlink=1 AND n.length=$7 AND n.mtime=$8 AND n.ctime=$9 AND "            \
	"COALESCE(n.parent,0)=$10 AND EXISTS (SELECT 1 FROM {node} p WHERE p.inode=$1 AND "        \
	"p.flags=$11 AND p.mode=$12 AND p.uid=$13 AND COALESCE(p.parent,0)=$14)" more              \
	" FOR UPDATE),"

/*
 * $1 parent, $2 name, $3 uid of the caller, $4 us, $5 ns below, $6 the expected inode
 *
 * p: the directory; v: the locked victim, in its latest version; d: the removed edge.
 */
#define REMOVE(victim)                                                                             \
	"WITH p AS (SELECT n.* FROM {node} n WHERE n.inode=$1),"                                   \
	"v AS (SELECT n.* FROM {edge} e JOIN {node} n ON n.inode=e.inode,p "                       \
	"WHERE e.parent=$1 AND e.name=$2 AND e.inode=$6 AND " PG_DIR_OPEN(                         \
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

#define ONE_NAME "e.type<>2 AND n.type<>2 AND n.nlink=1"
/* A stricter default isolation has one snapshot for both statements: PG_UNUSUAL. */
#define EMPTY                                                                                      \
	"e.type=2 AND n.type=2 AND NOT EXISTS (SELECT 1 FROM {edge} c WHERE c.parent=n.inode) "    \
	"AND current_setting('transaction_isolation')='read committed'"
#define RESULT(data) " SELECT {NODE},n.inode,(SELECT count(*) FROM d)," data ",{PARENT} FROM p,v n"

/*
 * A file of length 0 may have chunks. A file whose length or times have changed since the statement
 * began may have chunks that the snapshot of the statement lacks.
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

/* Runs before rmdir, whose snapshot then contains every name that was created before the lock. */
static const char lock_dir_text[] = "SELECT 1 FROM {edge} e JOIN {node} n ON n.inode=e.inode "
				    "WHERE e.parent=$1 AND e.name=$2 AND e.type=2 FOR UPDATE OF n";

/* $15 seconds. A file of length 0 with chunks takes the other statement. */
static const char unlink_known_text[] =
	REMOVE_KNOWN(" AND ($7>0 OR NOT EXISTS (SELECT 1 FROM {chunk} c WHERE c.inode=$3))")
		DELETE_EDGE
	"dx AS " DELETE_OF("xattr") ",f AS (INSERT INTO {delfile}(inode,length,expire) SELECT "
				    "$3,$7,$15 FROM d WHERE $7>0 ON CONFLICT DO NOTHING) "
				    "DELETE FROM {node} n USING d WHERE n.inode=d.inode";
/* $15 trash, $16 name there, $17 parent after, $18 us, $19 ns below */
static const char unlink_trash_known_text[] = REMOVE_KNOWN(
	"") "d AS (UPDATE {edge} e SET parent=$15,name=$16 FROM v WHERE e.parent=$1 AND "
	    "e.name=$2 AND e.inode=v.inode RETURNING e.inode) "
	    "UPDATE {node} n SET parent=$17,ctime=$18,ctimensec=$19 FROM d WHERE n.inode=d.inode";

enum { INO = SQL_NODE_COLUMNS, GONE, HAS_DATA, PARENT };

struct remove {
	const struct cfs_engine_remove *req;
	struct cfs_entry victim; /* from the cache or a lookup; may be outdated */
	struct cfs_removed ret;
};

/* Sends the statement; for a directory, its lock goes before. */
static int send_remove(struct sql_conn *c, const struct cfs_ctx *ctx, const struct remove *a,
		       int *ret_id)
{
	static const struct {
		int id;
		const char *text;
	} statements[2][2] = {
		{{PG_UNLINK, unlink_text}, {PG_UNLINK_TRASH, unlink_trash_text}},
		{{PG_RMDIR, rmdir_text}, {PG_RMDIR_TRASH, rmdir_trash_text}},
	};
	const struct cfs_engine_remove *req = a->req;
	const struct sql_param params[] = {
		SQL_I(req->parent),	 SQL_B(req->name, req->name_len), SQL_I(ctx->uid),
		SQL_I(sql_us(ctx->now)), SQL_I(sql_sub_us(ctx->now)),	  SQL_I(a->victim.ino),
		SQL_I(req->trash)};
	bool trash = req->trash;
	int r = a->req->dir ? pg_open_stmt(c, PG_LOCK_DIR, lock_dir_text, params, 2) : 0;

	if (!r && a->req->dir)
		r = pg_queue(pg_conn(c), PG_LOCK_DIR, false);
	if (r < 0)
		return r;
	*ret_id = statements[a->req->dir][trash].id;
	return pg_execute(c, *ret_id, statements[a->req->dir][trash].text, params, trash ? 7 : 6);
}

static void take_victim(struct remove *a, bool has_data)
{
	a->ret.ino = a->victim.ino;
	a->ret.attr = a->victim.attr;
	a->ret.has_data = has_data && !a->req->trash;
}

/* Fills a->ret from the attributes before the removal. */
static void become_removed(const struct cfs_ctx *ctx, struct remove *a)
{
	struct cfs_removed *v = &a->ret;

	v->outcome = a->req->trash ? CFS_REMOVED_TRASHED : CFS_REMOVED_DELETED;
	if (a->req->trash)
		cfs_rules_moved(ctx, a->req->trash, &v->attr);
	v->parent = sql_touched(ctx, &v->parent, a->req->dir ? -1 : 0);
}

static void read_removed(struct sql_conn *c, const struct cfs_ctx *ctx, struct remove *a, int id)
{
	const PGresult *result = pg_result(c, id);
	struct cfs_removed *v = &a->ret;

	sql_node_columns(c, (enum sql_stmt_id)id, 0, &v->attr);
	sql_node_columns(c, (enum sql_stmt_id)id, PARENT, &v->parent);
	v->ino = (cfs_ino_t)pg_int(result, 0, INO);
	v->has_data = pg_int(result, 0, HAS_DATA) > 0;
	become_removed(ctx, a);
	cfs_optimistic_dir_remember(c->db->optimistic, a->req->parent, &v->parent);
}

/* ---- the optimistic path ---- */

/* True when the directory is cached, and the optimistic path is possible. */
static bool is_simple(struct sql_db *db, const struct cfs_ctx *ctx, struct remove *a)
{
	const struct cfs_engine_remove *req = a->req;
	const struct cfs_attr *v = &a->victim.attr;
	struct cfs_attr *dir = &a->ret.parent;

	if (a->req->dir || v->nlink != 1 ||
	    !cfs_optimistic_dir_known(db->optimistic, req->parent, dir) ||
	    cfs_ino_is_trash(dir->parent) || cfs_rules_remove_entry(ctx, req->parent, dir, v))
		return false;
	if (req->trash ? v->flags & CFS_FLAG_SKIP_TRASH : v->type != CFS_TYPE_FILE)
		return false;
	return !cfs_optimistic_dir_ask(db->optimistic, req->parent);
}

/* 1: done; 0: the file or the directory has changed. */
static int remove_known(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct remove *a = arg;
	const struct cfs_engine_remove *req = a->req;
	const struct cfs_attr *v = &a->victim.attr, *dir = &a->ret.parent;
	int id = req->trash ? PG_UNLINK_TRASH_KNOWN : PG_UNLINK_KNOWN, r;
	char name[CFS_NAME_MAX + 1];
	size_t len =
		cfs_rules_trash_name(req->parent, a->victim.ino, req->name, req->name_len, name);
	struct sql_param params[] = {SQL_I(req->parent),
				     SQL_B(req->name, req->name_len),
				     SQL_I(a->victim.ino),
				     SQL_I(v->flags),
				     SQL_I(v->uid),
				     SQL_I(v->gid),
				     SQL_I(v->length),
				     SQL_I(sql_us(v->mtime)),
				     SQL_I(sql_us(v->ctime)),
				     SQL_I(v->parent),
				     SQL_I(dir->flags),
				     SQL_I(dir->mode),
				     SQL_I(dir->uid),
				     SQL_I(dir->parent),
				     SQL_I(req->trash),
				     SQL_B(name, len),
				     SQL_I(v->parent ? req->trash : 0),
				     SQL_I(sql_us(ctx->now)),
				     SQL_I(sql_sub_us(ctx->now))};
	enum { COMMON = 14 };

	if (!req->trash)
		params[COMMON] = (struct sql_param)SQL_I(ctx->now.tv_sec);
	r = req->trash ? pg_execute(c, id, unlink_trash_known_text, params, CFS_ARRAY_SIZE(params))
		       : pg_execute(c, id, unlink_known_text, params, COMMON + 1);
	/* The trash has this name already. */
	if (r == -EEXIST)
		return PG_UNUSUAL;
	if (r < 0)
		return r;
	r = pg_has_changed(c, id);
	pg_close_stmt(c, id);
	if (r > 0) {
		take_victim(a, v->length);
		become_removed(ctx, a);
	}
	return r;
}

/* ---- the general path ---- */

static int remove_name(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct remove *a = arg;
	int id = -1, r = send_remove(c, ctx, a, &id);

	/* The trash has this name already. */
	if (r == -EEXIST)
		return PG_UNUSUAL;
	if (r < 0)
		return r;
	if (PQntuples(pg_result(c, id)) && pg_int(pg_result(c, id), 0, GONE))
		read_removed(c, ctx, a, id);
	else
		r = PG_UNUSUAL;
	pg_close_stmt(c, id);
	return r;
}

/*
 * Finds the victim, in the cache if possible. After a lost answer, only the victim tells which
 * inode was removed. PG_UNUSUAL: there is none, or this client has it open, so that it stays.
 */
static int find_victim(struct cfs_engine *e, const struct cfs_ctx *ctx, struct remove *a)
{
	const struct cfs_engine_remove *req = a->req;
	struct cfs_optimistic *cache = sql_db(e)->optimistic;
	struct cfs_entry *v = &a->victim;
	bool known;
	int r;

	if (a->req->dir) {
		v->ino = cfs_optimistic_name(cache, req->parent, req->name, req->name_len);
		known = v->ino && cfs_optimistic_dir_known(cache, v->ino, &v->attr);
	} else {
		known = cfs_optimistic_file_known(cache, req->parent, req->name, req->name_len, v);
	}
	r = known ? 0 : sql_op_lookup(e, ctx, req->parent, req->name, req->name_len, v);
	if (r < 0)
		return r == -ENOENT ? PG_UNUSUAL : r;
	if (a->req->dir != (v->attr.type == CFS_TYPE_DIR))
		return PG_UNUSUAL;
	return !a->req->dir && !req->trash && cfs_host_is_open(e->host, v->ino) ? PG_UNUSUAL : 0;
}

/* After a lost answer. 1: the statement has removed the victim, or it is missing; 0: it has not. */
static int was_removed(struct cfs_engine *e, const struct cfs_ctx *ctx, struct remove *a)
{
	struct cfs_attr there;
	int r = sql_op_getattr(e, ctx, a->victim.ino, &there);

	if (r < 0)
		return r == -ENOENT ? 1 : r;
	if (!a->req->trash || cfs_timespec_cmp(there.ctime, ctx->now) != 0)
		return 0;
	a->victim.attr = there;
	return 1;
}

/* Fills the results from a->ret. */
static void finish(struct cfs_engine *e, const struct remove *a, struct cfs_removed *ret,
		   struct cfs_usage *ret_usage)
{
	const struct cfs_engine_remove *req = a->req;

	*ret = a->ret;
	*ret_usage = (struct cfs_usage){0};
	cfs_usage_removed(ret_usage, req->parent, req->trash, ret);
	cfs_optimistic_file_forget(sql_db(e)->optimistic, ret->ino);
	cfs_optimistic_dir_forget(sql_db(e)->optimistic, ret->ino);
}

static int remove_again(struct cfs_engine *e, const struct cfs_ctx *ctx, struct remove *a,
			struct cfs_removed *ret, struct cfs_usage *ret_usage)
{
	const struct cfs_engine_remove *req = a->req;
	int r = was_removed(e, ctx, a);

	if (!r) {
		r = sql_op_remove(e, ctx, req, ret, ret_usage);
		if (r != -ENOENT)
			return r;
		/* The statement with the lost answer may have been executed meanwhile. */
		r = was_removed(e, ctx, a);
		if (!r)
			return -ENOENT;
	}
	if (r < 0)
		return r;
	take_victim(a, a->victim.attr.type == CFS_TYPE_FILE);
	become_removed(ctx, a);
	r = sql_op_getattr(e, ctx, req->parent, &a->ret.parent);
	if (r < 0)
		a->ret.parent = (struct cfs_attr){0};
	finish(e, a, ret, ret_usage);
	return 0;
}

static int in_one_statement(struct cfs_engine *e, const struct cfs_ctx *ctx, struct remove *a,
			    struct cfs_removed *ret, struct cfs_usage *ret_usage)
{
	enum cfs_meta_op op = cfs_remove_op(a->req);
	struct sql_db *db = sql_db(e);
	int r = find_victim(e, ctx, a);

	if (!r && is_simple(db, ctx, a)) {
		r = sql_read(db, ctx, op, remove_known, a);
		if (!r) {
			cfs_optimistic_dir_forget(db->optimistic, a->req->parent);
			cfs_optimistic_file_forget(db->optimistic, a->victim.ino);
			r = find_victim(e, ctx, a);
		}
	}
	if (!r)
		r = sql_read(db, ctx, op, remove_name, a);
	if (r == PG_UNKNOWN)
		return remove_again(e, ctx, a, ret, ret_usage);
	if (r < 0)
		return r;
	finish(e, a, ret, ret_usage);
	return 0;
}

int pg_op_remove(struct cfs_engine *e, const struct cfs_ctx *ctx,
		 const struct cfs_engine_remove *req, struct cfs_removed *ret,
		 struct cfs_usage *ret_usage)
{
	struct remove a = {.req = req};
	int r = PG_UNUSUAL;

	if (pg_is_authorized(ctx) && !cfs_ino_is_trash(req->parent) && !cfs_host_changelog(e->host))
		r = in_one_statement(e, ctx, &a, ret, ret_usage);
	if (r != PG_UNUSUAL)
		return r;
	cfs_optimistic_dir_forget(sql_db(e)->optimistic, req->parent);
	return sql_op_remove(e, ctx, req, ret, ret_usage);
}
