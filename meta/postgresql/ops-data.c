/* SPDX-License-Identifier: Apache-2.0 */
/* Commits of slices and changes of attributes, each in one statement. */
#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "meta/postgresql/pg-internal.h"

/* ---- commit of a slice ---- */

/*
 * A growing file with several names takes the generic transaction: the usage of all its directories
 * changes, and these are not locked.
 *
 * $1 inode, $2 chunk, $3 record, $4 slice, $5 its size, $6 end of the written range, $7 mtime in us
 * and $8 the ns below, $9 ctime in us and $10 the ns below. Returns the inode before the change.
 */
#define COMMIT_TEXT(condition, changes, bytes)                                                     \
	"WITH n AS (SELECT n.* FROM {node} n WHERE n.inode=$1 FOR UPDATE),"                        \
	"c AS (INSERT INTO {chunk} AS c (inode,indx,slices) SELECT $1,$2,$3 FROM n "               \
	"WHERE n.type=1 AND (COALESCE(n.parent,0)<>0 OR n.length>=$6)" condition " "               \
	"ON CONFLICT(inode,indx) DO UPDATE SET slices=c.slices||excluded.slices "                  \
	"RETURNING length(c.slices) AS bytes),"                                                    \
	"r AS (INSERT INTO {chunk_ref}(chunkid,size,refs) SELECT $4,$5,1 FROM c WHERE $4<>0),"     \
	"u AS (UPDATE {node} u SET length=GREATEST(n.length,$6),mtime=$7,mtimensec=$8,ctime=$9,"   \
	"ctimensec=$10" changes " FROM n,c WHERE u.inode=n.inode) "                                \
	"SELECT {NODE}," bytes " FROM n"
#define BYTES "(SELECT bytes FROM c)"
static const char commit_text[] = COMMIT_TEXT("", "", BYTES);
/*
 * The same with $11 mode, $12 uid, $13 gid, $14 and $15 atime; NULL: unchanged. A change of mode of
 * a file with an ACL takes the generic transaction, which changes the ACL too.
 */
#define COMMIT_ATTRS_TEXT(bytes)                                                                   \
	COMMIT_TEXT(" AND ($11 IS NULL OR COALESCE(n.access_acl_id,0)=0)",                         \
		    ",mode=COALESCE($11,n.mode),uid=COALESCE($12,n.uid),gid=COALESCE($13,n.gid),"  \
		    "atime=COALESCE($14,n.atime),atimensec=COALESCE($15,n.atimensec)",             \
		    bytes)
static const char commit_attrs_text[] = COMMIT_ATTRS_TEXT(BYTES);
/*
 * In a group a file that would take the generic transaction makes all statements fail, by a division
 * by zero: those behind it must not be carried out before it.
 */
static const char commit_group_text[] = COMMIT_ATTRS_TEXT("COALESCE(" BYTES ",1/(n.type-1))");

static const char *commit_text_of(enum pg_stmt_id id)
{
	return id == PG_COMMIT_SLICE   ? commit_text
	       : id == PG_COMMIT_ATTRS ? commit_attrs_text
				       : commit_group_text;
}

/* ret: the statement is queued, and its rows go there. NULL: pg_execute. */
static int put_commit(struct sql_conn *c, const struct cfs_ctx *ctx, const struct cfs_commit *k,
		      enum pg_stmt_id id, PGresult **ret)
{
	static const struct cfs_attr_change none;
	const struct cfs_attr_change *t = k->attrs ? k->attrs : &none;
	const struct cfs_slice *s = &k->slice;
	uint64_t end = ((uint64_t)k->indx << CFS_CHUNK_BITS) + s->pos + s->len;
	size_t n = id == PG_COMMIT_SLICE ? 10 : 15;
	uint8_t record[CFS_SLICE_BYTES];
	struct sql_param params[15] = {
		SQL_I(k->ino),
		SQL_I(k->indx),
		SQL_B(record, sizeof(record)),
		SQL_I(s->id),
		SQL_I(s->size),
		SQL_I(end),
		SQL_I(sql_us(k->mtime)),
		SQL_I(sql_sub_us(k->mtime)),
		SQL_I(sql_us(ctx->now)),
		SQL_I(sql_sub_us(ctx->now)),
		SQL_I(t->mode),
		SQL_I(t->uid),
		SQL_I(t->gid),
		SQL_I(sql_us(t->atime)),
		SQL_I(sql_sub_us(t->atime)),
	};

	int r;

	cfs_slice_encode(s, record);
	params[10].null = !(t->set & CFS_SET_MODE);
	params[11].null = !(t->set & CFS_SET_UID);
	params[12].null = !(t->set & CFS_SET_GID);
	params[13].null = params[14].null = !(t->set & CFS_SET_ATIME);
	if (!ret)
		return pg_execute(c, id, commit_text_of(id), params, n);
	r = pg_open_stmt(c, id, commit_text_of(id), params, n);
	return r ? r : pg_queue_to(pg_conn(c), id, ret);
}

static void node_of(const PGresult *v, struct cfs_attr *ret)
{
	int64_t row[SQL_NODE_COLUMNS];

	for (int i = 0; i < SQL_NODE_COLUMNS; i++)
		row[i] = pg_int(v, 0, i);
	sql_node_row(row, ret);
}

/* The outcome of a commit by the row that its statement has returned. */
static int take_commit(struct sql_conn *c, const struct cfs_ctx *ctx, struct sql_commit *a,
		       const PGresult *v)
{
	const struct cfs_commit *req = a->req;
	uint64_t end = ((uint64_t)req->indx << CFS_CHUNK_BITS) + req->slice.pos + req->slice.len;
	uint64_t old_length;
	int r;

	if (PQntuples(v) == 0)
		return -ENOENT;
	node_of(v, &a->attr);
	if (a->attr.type != CFS_TYPE_FILE)
		return -EPERM;
	a->records = (unsigned)pg_int(v, 0, SQL_NODE_COLUMNS) / CFS_SLICE_BYTES;
	old_length = a->attr.length;
	if (!a->records)
		return PG_UNUSUAL; /* nothing was written */
	if (end > old_length)
		a->attr.length = end;
	a->attr.mtime = req->mtime;
	a->attr.ctime = ctx->now;
	cfs_rules_apply(req->attrs, &a->attr);
	a->usage = (struct cfs_usage){0};
	r = sql_usage_length(c, req->ino, &a->attr, old_length, &a->usage);
	if (r < 0)
		cfs_warn("statistics of directories miss a write, 'cachefs fsck --repair' counts "
			 "it: inode=%llu error=%s",
			 (unsigned long long)req->ino, cfs_errname(r));
	return 0;
}

static int commit(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct sql_commit *a = arg;
	const struct cfs_commit *req = a->req;
	enum pg_stmt_id id = req->attrs ? PG_COMMIT_ATTRS : PG_COMMIT_SLICE;
	int r;

	r = sql_prepare_commit(c, a);
	if (r < 0)
		return r;
	r = put_commit(c, ctx, req, id, NULL);
	if (r == -EEXIST)
		return sql_slice_in_use(req);
	if (r < 0)
		return r;
	r = take_commit(c, ctx, a, pg_result(c, id));
	pg_close_stmt(c, id);
	return r;
}

int pg_op_commit_slice(struct cfs_engine *e, const struct cfs_ctx *ctx, struct cfs_commit *c,
		       unsigned *ret_records, struct cfs_usage *ret_usage)
{
	struct sql_commit a = {.req = c};
	int r = cfs_rules_record(c->indx, &c->slice);

	if (r)
		return r;
	r = PG_UNUSUAL;
	if (c->slice.id && !cfs_host_changelog(e->host))
		r = sql_read(sql_db(e), ctx, CFS_META_OP_write, commit, &a);
	if (r == PG_UNUSUAL)
		return sql_op_commit_slice(e, ctx, c, ret_records, ret_usage);
	if (r < 0)
		return r; /* the caller asks find_commit after PG_UNKNOWN */
	return sql_committed(sql_db(e), &a, ret_records, ret_usage);
}

/* ---- group commit ---- */

/*
 * One statement for each file. Statements between two Syncs are one transaction: other clients see
 * all or none.
 */
static int commit_each(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct sql_group *g = arg;
	PGresult *rows[CFS_COMMITS_MAX] = {NULL};
	size_t i;
	int r = 0;

	for (i = 0; i < g->n && !r; i++)
		r = put_commit(c, ctx, g->v[i].req, PG_COMMIT_GROUP, &rows[i]);
	if (r) {
		/* The server carries nothing out before a Sync. */
		c->broken = true;
		pg_conn(c)->n_queued = 0;
		goto out;
	}
	r = pg_exchange(pg_conn(c));
	if (r == -ENOTCONN) {
		c->unknown = true;
		r = PG_UNKNOWN;
	}
	/* No commit was made. One by one, they hold fewer locks at a time. */
	if (r == -EAGAIN)
		r = PG_UNUSUAL;
	for (i = 0; i < g->n && !r; i++)
		g->err[i] = rows[i] ? take_commit(c, ctx, &g->v[i], rows[i]) : -EIO;
out:
	for (i = 0; i < g->n; i++)
		PQclear(rows[i]);
	return r;
}

static int run_group(struct sql_db *db, const struct cfs_ctx *ctx, struct sql_group *g)
{
	return sql_read(db, ctx, CFS_META_OP_write, commit_each, g);
}

size_t pg_op_commit_group(struct cfs_engine *e, const struct cfs_ctx *ctx,
			  struct cfs_commit *const *commits, size_t n, struct cfs_committed *ret)
{
	return sql_commit_group(e, ctx, commits, n, ret, run_group);
}

/* ---- attributes ---- */

/*
 * $1 inode, $2 mode, $3 and $4 atime, $5 and $6 mtime, $7 and $8 ctime; NULL: unchanged. $9 uid and
 * $10 gid of a chown(2): the statement finds the inode only when it has them already, and changes
 * the ctime.
 */
static const char setattr_text[] =
	"UPDATE {node} n SET mode=COALESCE($2,n.mode),atime=COALESCE($3,n.atime),"
	"atimensec=COALESCE($4,n.atimensec),mtime=COALESCE($5,n.mtime),"
	"mtimensec=COALESCE($6,n.mtimensec),ctime=$7,ctimensec=$8 "
	"WHERE n.inode=$1 AND n.flags&3=0 AND COALESCE(n.parent,0)<" PG_TRASH " "
	"AND ($2 IS NULL OR COALESCE(n.access_acl_id,0)=0) "
	"AND ($9 IS NULL OR n.uid=$9) AND ($10 IS NULL OR n.gid=$10) "
	"AND (COALESCE($9,$10) IS NULL OR n.type=2 OR n.mode&3072=0) RETURNING {NODE}";

struct setattr {
	cfs_ino_t ino;
	uint32_t set;
	const struct cfs_attr *in;
	struct cfs_attr attr;
};

static int setattr(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct setattr *a = arg;
	uint32_t set = a->set;
	struct timespec atime = cfs_rules_time(ctx, set & CFS_SET_ATIME_NOW, a->in->atime);
	struct timespec mtime = cfs_rules_time(ctx, set & CFS_SET_MTIME_NOW, a->in->mtime);
	struct timespec ctime = set & CFS_SET_CTIME ? a->in->ctime : ctx->now;
	struct sql_param params[] = {SQL_I(a->ino),	   SQL_I(a->in->mode & 07777),
				     SQL_I(sql_us(atime)), SQL_I(sql_sub_us(atime)),
				     SQL_I(sql_us(mtime)), SQL_I(sql_sub_us(mtime)),
				     SQL_I(sql_us(ctime)), SQL_I(sql_sub_us(ctime)),
				     SQL_I(a->in->uid),	   SQL_I(a->in->gid)};
	int r;

	params[1].null = !(set & CFS_SET_MODE);
	params[2].null = params[3].null = !(set & (CFS_SET_ATIME | CFS_SET_ATIME_NOW));
	params[4].null = params[5].null = !(set & (CFS_SET_MTIME | CFS_SET_MTIME_NOW));
	params[8].null = !(set & CFS_SET_UID);
	params[9].null = !(set & CFS_SET_GID);
	r = pg_execute(c, PG_SETATTR, setattr_text, params, CFS_ARRAY_SIZE(params));
	if (r < 0)
		return r;
	if (PQntuples(pg_result(c, PG_SETATTR)))
		sql_node_columns(c, (enum sql_stmt_id)PG_SETATTR, 0, &a->attr);
	else
		r = PG_UNUSUAL;
	pg_close_stmt(c, PG_SETATTR);
	return r;
}

/*
 * Whether the cached owner and group are those of the chown(2): tar does this for each directory.
 */
static bool keeps_owner(struct cfs_optimistic *cache, cfs_ino_t ino, uint32_t set,
			const struct cfs_attr *in)
{
	struct cfs_attr attr;

	if (!cfs_optimistic_attr(cache, ino, &attr))
		return false;
	return (!(set & CFS_SET_UID) || attr.uid == in->uid) &&
	       (!(set & CFS_SET_GID) || attr.gid == in->gid);
}

static bool is_simple(struct cfs_optimistic *cache, cfs_ino_t ino, uint32_t set,
		      const struct cfs_attr *in)
{
	const uint32_t owner = CFS_SET_UID | CFS_SET_GID;
	const uint32_t times = CFS_SET_ATIME | CFS_SET_ATIME_NOW | CFS_SET_MTIME |
			       CFS_SET_MTIME_NOW | CFS_SET_CTIME;

	set &= ~(uint32_t)CFS_SET_IS_OPEN;
	if (!(set & owner))
		return set && !(set & ~(times | CFS_SET_MODE));
	/* An inode with set-id bits, which chown(2) clears, does not match the statement. */
	return !(set & ~(times | owner | CFS_SET_KILL_SUID | CFS_SET_KILL_SGID)) &&
	       keeps_owner(cache, ino, set, in);
}

int pg_op_setattr(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, uint32_t set,
		  const struct cfs_attr *in, struct cfs_attr *ret, struct cfs_usage *ret_usage)
{
	struct setattr a = {.ino = ino, .set = set, .in = in};
	int r = PG_UNUSUAL;

	if (is_simple(sql_db(e)->optimistic, ino, set, in) && pg_is_authorized(ctx) &&
	    !cfs_host_changelog(e->host)) {
		/* The statement is idempotent: after a lost answer it is simply repeated. */
		do
			r = sql_read(sql_db(e), ctx, CFS_META_OP_setattr, setattr, &a);
		while (r == PG_UNKNOWN && !cfs_deadline_passed(ctx->deadline));
	}
	if (r == PG_UNUSUAL) {
		r = sql_op_setattr(e, ctx, ino, set, in, ret, ret_usage);
	} else if (!r) {
		*ret = a.attr;
		*ret_usage = (struct cfs_usage){.uid = a.attr.uid, .gid = a.attr.gid};
	}
	if (!r)
		cfs_optimistic_attr_changed(sql_db(e)->optimistic, ino, ret);
	return r == PG_UNKNOWN ? -ETIMEDOUT : r;
}
