/* SPDX-License-Identifier: Apache-2.0 */
/* Creation of names in one statement. */
#include <errno.h>
#include <stdlib.h>

#include "meta/postgresql/pg-internal.h"

/* ---- common parts ---- */

int pg_open_stmt(struct sql_conn *c, int id, const char *text, const struct sql_param *params,
		 size_t n)
{
	struct pg_conn *s = pg_conn(c);
	char *full;
	int r = 0;

	if (!s->stmt[id]) {
		full = sql_expand(c, text);
		r = full ? pg_prepare(s, id, full) : -ENOMEM;
		free(full);
	}
	for (size_t i = 0; i < n && !r; i++)
		pg_bind(s->stmt[id], (int)i + 1, &params[i]);
	return r;
}

int pg_execute(struct sql_conn *c, int id, const char *text, const struct sql_param *params,
	       size_t n)
{
	struct pg_conn *s = pg_conn(c);
	int r = pg_open_stmt(c, id, text, params, n);

	if (!r)
		r = pg_queue(s, id, true);
	if (r < 0)
		return r;
	r = pg_exchange(s);
	if (r == -ENOTCONN) {
		c->unknown = true;
		return PG_UNKNOWN;
	}
	if (!r)
		s->stmt[id]->row = 0;
	if (r == -EAGAIN)
		c->conflict = true;
	return r;
}

void pg_close_stmt(struct sql_conn *c, int id)
{
	struct pg_stmt *st = pg_conn(c)->stmt[id];

	if (!st)
		return;
	PQclear(st->result);
	st->result = NULL;
}

bool pg_has_changed(struct sql_conn *c, int id)
{
	return *PQcmdTuples(pg_conn(c)->stmt[id]->result) > '0';
}

/* Short texts: each part of a statement and each column costs more than finding the row. */
#define INSERT_NODE                                                                                \
	"INSERT INTO {node}(inode,type,flags,mode,uid,gid,atime,mtime,ctime,atimensec,mtimensec,"  \
	"ctimensec,nlink,length,rdev,parent,access_acl_id,default_acl_id,tier_id) "

/*
 * The optimistic path, for a directory with cached attributes: the server only checks that they are
 * unchanged. Answers with the number of rows.
 *
 * $1 parent, $2 name, $3 inode, $4 type, $5 mode, $6 uid, $7 gid, $8 us, $9 ns below, $10 flags,
 * $11 rdev, $12 tier; of the parent: $13 flags, $14 mode, $15 gid, $16 parent
 */
static const char create_known_text[] =
	"WITH e AS (INSERT INTO {edge}(parent,name,inode,type) SELECT $1,$2,$3,$4 FROM {node} p "
	"WHERE p.inode=$1 AND p.flags=$13 AND p.mode=$14 AND p.gid=$15 AND "
	"COALESCE(p.parent,0)=$16 AND COALESCE(p.default_acl_id,0)=0 AND "
	"COALESCE(p.tier_id,0)=$12 FOR KEY SHARE ON CONFLICT(parent,name) DO NOTHING RETURNING "
	"1) " INSERT_NODE "SELECT $3,$4,$10,$5,$6,$7,$8,$8,$8,$9,$9,$9,1,0,$11,$1,0,0,$12 FROM e";

/*
 * $1 parent, $2 name, $3 inode, $4 type, $5 mode, $6 uid, $7 gid, $8 us, $9 ns below, $10 nlink,
 * $11 length, $12 rdev, $13 set-group-id of directories
 *
 * The parent's row is locked against deletion only, so other creations and changes of its times do
 * not wait. The unique key of edge decides races.
 */
#define CREATE(more)                                                                               \
	"WITH p AS (SELECT n.* FROM {node} n WHERE n.inode=$1 FOR KEY SHARE),"                     \
	"e AS (INSERT INTO {edge}(parent,name,inode,type) SELECT $1,$2,$3,$4 FROM p "              \
	"WHERE " PG_DIR_OPEN(                                                                      \
		"1") " AND ($4=3 OR COALESCE(p.default_acl_id,0)=0) "                              \
		     "ON CONFLICT(parent,name) DO NOTHING RETURNING inode),"                       \
		     "n AS (" INSERT_NODE "SELECT $3,$4,p.flags&32,"                               \
		     "CASE WHEN p.mode&1024<>0 THEN $5|$13 ELSE $5 END,$6,"                        \
		     "CASE WHEN p.mode&1024<>0 THEN p.gid ELSE $7 END,"                            \
		     "$8,$8,$8,$9,$9,$9,$10,$11,$12,$1,0,0,COALESCE(p.tier_id,0) FROM p,e)" more   \
		     " SELECT {NODE},(SELECT count(*) FROM e) FROM p n"

static const char create_text[] = CREATE("");
static const char create_dir_text[] =
	CREATE(",d AS (INSERT INTO {dir_stats}(inode,data_length,used_space,used_inodes) "
	       "SELECT $3,0,0,0 FROM e WHERE $14<>0),"
	       "t AS (UPDATE {node} u SET nlink=u.nlink+1,mtime=$8,ctime=$8,mtimensec=$9,"
	       "ctimensec=$9 FROM e WHERE u.inode=$1)");
static const char create_symlink_text[] =
	CREATE(",s AS (INSERT INTO {symlink}(inode,target) SELECT $3,$14 FROM e)");

enum { INSERTED = SQL_NODE_COLUMNS };

struct make {
	const struct cfs_mknod *req;
	cfs_ino_t ino;
	struct cfs_entry *ret;
	struct cfs_attr attr, parent;
};

/* True when the directory is cached and allows the optimistic path. */
static bool knows_parent(struct sql_db *db, const struct cfs_ctx *ctx, struct make *a)
{
	const struct cfs_mknod *req = a->req;

	return req->type != CFS_TYPE_DIR && req->type != CFS_TYPE_SYMLINK &&
	       cfs_optimistic_dir_known(db->optimistic, req->parent, &a->parent) &&
	       !cfs_rules_add_entry(ctx, req->parent, &a->parent) && !a->parent.default_acl &&
	       !cfs_optimistic_dir_ask(db->optimistic, req->parent);
}

/* 1: done; 0: the name exists, or the directory has changed. */
static int create_known(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct make *a = arg;
	const struct cfs_mknod *req = a->req;
	const struct cfs_attr *t = &a->attr, *dir = &a->parent;
	int r;

	cfs_rules_new_inode(ctx, req, &a->parent, &a->attr);
	r = pg_execute(c, PG_CREATE_KNOWN, create_known_text,
		       SQL_PARAMS(SQL_I(req->parent), SQL_B(req->name, req->name_len),
				  SQL_I(a->ino), SQL_I(t->type), SQL_I(t->mode), SQL_I(t->uid),
				  SQL_I(t->gid), SQL_I(sql_us(t->ctime)),
				  SQL_I(sql_sub_us(t->ctime)), SQL_I(t->flags), SQL_I(t->rdev),
				  SQL_I(t->tier), SQL_I(dir->flags), SQL_I(dir->mode),
				  SQL_I(dir->gid), SQL_I(dir->parent)));
	if (r < 0)
		return r;
	r = pg_has_changed(c, PG_CREATE_KNOWN);
	pg_close_stmt(c, PG_CREATE_KNOWN);
	return r;
}

/* Sends the statement for the type of inode. t: the attributes for a plain directory. */
static int send_create(struct sql_conn *c, const struct cfs_ctx *ctx, const struct make *a,
		       const struct cfs_attr *t, int *ret_id)
{
	const struct cfs_mknod *req = a->req;
	bool dir = req->type == CFS_TYPE_DIR, link = req->type == CFS_TYPE_SYMLINK;
	const char *text = dir ? create_dir_text : link ? create_symlink_text : create_text;
	struct sql_param params[] = {SQL_I(req->parent),
				     SQL_B(req->name, req->name_len),
				     SQL_I(a->ino),
				     SQL_I(t->type),
				     SQL_I(t->mode),
				     SQL_I(t->uid),
				     SQL_I(t->gid),
				     SQL_I(sql_us(ctx->now)),
				     SQL_I(sql_sub_us(ctx->now)),
				     SQL_I(t->nlink),
				     SQL_I(t->length),
				     SQL_I(t->rdev),
				     SQL_I(dir ? 02000 : 0),
				     {0}};

	if (link)
		params[13] = (struct sql_param)SQL_B(req->target, req->target_len);
	else
		params[13] = (struct sql_param)SQL_I(cfs_host_dir_stats(sql_host(c)));
	*ret_id = dir ? PG_CREATE_DIR : link ? PG_CREATE_SYMLINK : PG_CREATE;
	return pg_execute(c, *ret_id, text, params, CFS_ARRAY_SIZE(params) - !(dir || link));
}

/* Finds the reason why nothing was created. PG_UNUSUAL: the case is not simple. */
static int not_created(struct sql_conn *c, const struct cfs_ctx *ctx, const struct make *a)
{
	const struct cfs_mknod *req = a->req;
	int r = cfs_rules_add_entry(ctx, req->parent, &a->parent);

	if (r < 0)
		return r;
	r = sql_find(c, req->parent, req->name, req->name_len, a->ret);
	return r == -ENOENT ? PG_UNUSUAL : r < 0 ? r : -EEXIST;
}

static void remember_dirs(struct cfs_optimistic *cache, const struct make *a)
{
	cfs_optimistic_dir_remember(cache, a->req->parent, &a->parent);
	if (a->attr.type == CFS_TYPE_DIR)
		cfs_optimistic_dir_remember(cache, a->ino, &a->attr);
}

static int create(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct make *a = arg;
	const struct cfs_mknod *req = a->req;
	static const struct cfs_attr plain;
	struct cfs_attr t;
	bool done;
	int id, r;

	cfs_rules_new_inode(ctx, req, &plain, &t);
	r = send_create(c, ctx, a, &t, &id);
	if (r < 0)
		return r;
	if (PQntuples(pg_result(c, id)) == 0) {
		pg_close_stmt(c, id);
		return -ENOENT;
	}
	sql_node_columns(c, (enum sql_stmt_id)id, 0, &a->parent);
	done = pg_int(pg_result(c, id), 0, INSERTED) > 0;
	pg_close_stmt(c, id);
	if (!done)
		return not_created(c, ctx, a);
	cfs_rules_new_inode(ctx, req, &a->parent, &a->attr);
	a->parent = sql_touched(ctx, &a->parent, req->type == CFS_TYPE_DIR);
	remember_dirs(c->db->optimistic, a);
	return 0;
}

static int make_name(struct cfs_engine *e, const struct cfs_ctx *ctx, struct make *a)
{
	struct sql_db *db = sql_db(e);
	int r;

	if (knows_parent(db, ctx, a)) {
		r = sql_read(db, ctx, CFS_META_OP_mknod, create_known, a);
		if (r)
			return r < 0 ? r : 0;
		cfs_optimistic_dir_forget(sql_db(e)->optimistic, a->req->parent);
	}
	return sql_read(db, ctx, CFS_META_OP_mknod, create, a);
}

/*
 * After a lost answer. Inode numbers are unique: if the inode exists, the statement was executed;
 * else the generic transaction runs.
 */
static int create_again(struct cfs_engine *e, const struct cfs_ctx *ctx, const struct make *a,
			struct cfs_usage *ret_usage)
{
	int r = sql_op_getattr(e, ctx, a->ino, &a->ret->attr);

	if (r == -ENOENT) {
		r = sql_op_mknod(e, ctx, a->req, a->ino, a->ret, ret_usage);
		/* The statement with the lost answer was executed meanwhile. */
		if (r == -EEXIST && a->ret->ino == a->ino)
			r = 0;
		else
			return r;
	}
	if (r < 0)
		return r;
	a->ret->ino = a->ino;
	cfs_usage_made(ret_usage, a->req->parent, &a->ret->attr);
	return a->req->ret_parent ? sql_op_getattr(e, ctx, a->req->parent, a->req->ret_parent) : 0;
}

static int create_generic(struct cfs_engine *e, const struct cfs_ctx *ctx, const struct make *a,
			  struct cfs_usage *ret_usage)
{
	cfs_optimistic_dir_forget(sql_db(e)->optimistic, a->req->parent);
	return sql_op_mknod(e, ctx, a->req, a->ino, a->ret, ret_usage);
}

int pg_op_mknod(struct cfs_engine *e, const struct cfs_ctx *ctx, const struct cfs_mknod *req,
		cfs_ino_t ino, struct cfs_entry *ret, struct cfs_usage *ret_usage)
{
	struct make a = {.req = req, .ino = ino, .ret = ret};
	int r;

	if (!req->name_len)
		return sql_op_mknod(e, ctx, req, ino, ret, ret_usage);
	if (!pg_is_authorized(ctx) || cfs_ino_is_trash(req->parent) || cfs_host_changelog(e->host))
		return create_generic(e, ctx, &a, ret_usage);
	r = make_name(e, ctx, &a);
	if (r == PG_UNUSUAL)
		r = create_generic(e, ctx, &a, ret_usage);
	else if (r == PG_UNKNOWN)
		r = create_again(e, ctx, &a, ret_usage);
	else if (!r) {
		ret->ino = ino;
		ret->attr = a.attr;
		cfs_usage_made(ret_usage, req->parent, &a.attr);
		if (req->ret_parent)
			*req->ret_parent = a.parent;
	}
	if (!r)
		cfs_optimistic_file_remember(sql_db(e)->optimistic, req->parent, req->name,
					     req->name_len, ret);
	else if (r == -EEXIST)
		cfs_optimistic_name_remember(sql_db(e)->optimistic, req->parent, req->name,
					     req->name_len, ret->ino);
	return r;
}

/* ---- link ---- */

/* $1 parent, $2 name, $3 inode, $4 us, $5 ns below */
static const char link_text[] =
	"WITH p AS (SELECT n.* FROM {node} n WHERE n.inode=$1 FOR KEY SHARE),"
	"x AS (SELECT inode FROM {edge} WHERE parent=$1 AND name=$2),"
	"v AS (SELECT n.inode,n.type FROM {node} n,p WHERE n.inode=$3 AND n.type<>2 AND "
	"n.flags&3=0 AND n.nlink>0 AND COALESCE(n.parent,0)<" PG_TRASH " AND " PG_DIR_OPEN(
		"1") " FOR UPDATE OF n),"
		     "e AS (INSERT INTO {edge}(parent,name,inode,type) SELECT $1,$2,v.inode,v.type "
		     "FROM v "
		     "WHERE NOT EXISTS (SELECT 1 FROM x) "
		     "ON CONFLICT(parent,name) DO NOTHING RETURNING inode),"
		     "u AS (UPDATE {node} n SET nlink=n.nlink+1,parent=0,ctime=$4,ctimensec=$5 "
		     "FROM e "
		     "WHERE n.inode=e.inode RETURNING {NODE}) "
		     "SELECT {NODE} FROM u n";

struct link {
	const struct cfs_engine_link *req;
	struct cfs_attr attr;
};

static int link_name(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct link *a = arg;
	int r = pg_execute(c, PG_LINK, link_text,
			   SQL_PARAMS(SQL_I(a->req->parent), SQL_B(a->req->name, a->req->len),
				      SQL_I(a->req->ino), SQL_I(sql_us(ctx->now)),
				      SQL_I(sql_sub_us(ctx->now))));

	if (r < 0)
		return r;
	if (PQntuples(pg_result(c, PG_LINK)))
		sql_node_columns(c, (enum sql_stmt_id)PG_LINK, 0, &a->attr);
	else
		r = PG_UNUSUAL;
	pg_close_stmt(c, PG_LINK);
	return r;
}

/* After a lost answer. PG_UNUSUAL: the name does not lead to the inode. */
static int find_link(struct cfs_engine *e, const struct cfs_ctx *ctx,
		     const struct cfs_engine_link *req, struct cfs_attr *ret)
{
	struct cfs_entry there;
	int r = sql_op_lookup(e, ctx, req->parent, req->name, req->len, &there);

	if (r == -ENOENT || (!r && there.ino != req->ino))
		return PG_UNUSUAL;
	*ret = there.attr;
	return r;
}

int pg_op_link(struct cfs_engine *e, const struct cfs_ctx *ctx, const struct cfs_engine_link *req,
	       struct cfs_attr *ret, struct cfs_usage *ret_usage)
{
	struct link a = {.req = req};
	bool lost;
	int r = PG_UNUSUAL;

	if (!req->sid && pg_is_authorized(ctx) && !cfs_ino_is_trash(req->parent) &&
	    !cfs_host_changelog(e->host))
		r = sql_read(sql_db(e), ctx, CFS_META_OP_link, link_name, &a);
	lost = r == PG_UNKNOWN;
	if (lost)
		r = find_link(e, ctx, req, &a.attr);
	if (r == PG_UNUSUAL) {
		r = sql_op_link(e, ctx, req, ret, ret_usage);
		if (r != -EEXIST || !lost)
			return r;
		/* The statement with the lost answer may have been executed meanwhile. */
		r = find_link(e, ctx, req, &a.attr);
	}
	if (r)
		return r == PG_UNUSUAL ? -EEXIST : r;
	*ret = a.attr;
	cfs_usage_linked(ret_usage, req->parent, &a.attr);
	return 0;
}
