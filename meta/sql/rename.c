/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <sys/stat.h>

#include "meta/sql/sql-internal.h"

struct rename {
	const struct cfs_engine_rename *req;
	bool locks_tree; /* take the lock for moves of directories to another parent */
	/* results of one attempt */
	struct cfs_attr src_dir, dst_dir; /* attributes of the parents */
	struct sql_edge src, dst;	  /* dst.ino 0: the target name is free */
	bool dst_full;			  /* the target is a directory with entries */
	bool dst_dangles;		  /* the target has no node, so no row of it is locked */
	int dst_has_data;		  /* for sql_dispose */
	int src_nlink, dst_nlink;	  /* changes of the parents' link counts */
	bool raced;			  /* look the names up again */
	bool takes_free_name;		  /* -EEXIST then means that the target was created */
	struct cfs_renamed ret;
	struct cfs_usage usage;
};

/* ---- reading: the queries are started together and go to the server as one batch ---- */

static int ask(struct sql_conn *c, const struct cfs_rename *q)
{
	int r = sql_query(c, SQL_src_dir, "i", q->src_parent);

	if (!r)
		r = sql_query(c, SQL_dst_dir, "i", q->dst_parent);
	if (!r)
		r = sql_query(c, SQL_lock_nodes, "ibib", q->src_parent, q->src_name, q->src_len,
			      q->dst_parent, q->dst_name, q->dst_len);
	/* While the nodes are locked, no other transaction changes their edges. */
	if (!r)
		r = sql_query(c, SQL_src_edge, "ib", q->src_parent, q->src_name, q->src_len);
	if (!r)
		r = sql_query(c, SQL_dst_edge, "ib", q->dst_parent, q->dst_name, q->dst_len);
	if (!r)
		r = sql_query(c, SQL_dst_entry, "ib", q->dst_parent, q->dst_name, q->dst_len);
	if (!r)
		r = sql_query(c, SQL_dst_chunk, "ib", q->dst_parent, q->dst_name, q->dst_len);
	return r;
}

static int read_dir(struct sql_conn *c, enum sql_stmt_id id, struct cfs_attr *ret)
{
	int r = sql_next(c, id);

	if (r <= 0)
		return r < 0 ? r : -ENOENT;
	sql_node_columns(c, id, 0, ret);
	sql_done(c, id);
	return 0;
}

/* ret->ino is 0 without a row. */
static int read_edge(struct sql_conn *c, enum sql_stmt_id id, struct sql_edge *ret)
{
	int r = sql_next(c, id);

	*ret = (struct sql_edge){0};
	if (r <= 0)
		return r;
	ret->ino = (cfs_ino_t)sql_int(c, id, 0);
	ret->type = (uint8_t)sql_int(c, id, 1);
	sql_done(c, id);
	return 0;
}

/* 1: there is a row. */
static int read_any(struct sql_conn *c, enum sql_stmt_id id)
{
	int r = sql_next(c, id);

	sql_done(c, id);
	return r;
}

/* Whether the directory that is to be replaced has entries. */
static int is_full(struct sql_conn *c, cfs_ino_t dir)
{
	int closed, r = read_any(c, SQL_dst_entry);

	if (r)
		return r;
	closed = sql_close_dir(c, dir);
	if (closed <= 0)
		return closed;
	r = sql_has(c, SQL_has_entry, "i", dir);
	return r;
}

/* The locked nodes of both names, in the order of inodes. */
struct locked {
	cfs_ino_t ino[2];
	struct cfs_attr attr[2];
	unsigned n;
};

static int read_locked(struct sql_conn *c, struct locked *l)
{
	int r;

	l->n = 0;
	while ((r = sql_next(c, SQL_lock_nodes)) > 0 && l->n < 2) {
		l->ino[l->n] = (cfs_ino_t)sql_int(c, SQL_lock_nodes, SQL_NODE_COLUMNS);
		sql_node_columns(c, SQL_lock_nodes, 0, &l->attr[l->n++]);
	}
	sql_done(c, SQL_lock_nodes);
	return r < 0 ? r : 0;
}

/*
 * Finds the attributes of the edge's node. A node that is not locked got this name after the lock,
 * or does not exist (-ENOENT).
 */
static int take_locked(struct sql_conn *c, struct rename *a, const struct locked *l,
		       const struct sql_edge *edge, struct cfs_attr *ret)
{
	int r;

	for (unsigned i = 0; i < l->n; i++) {
		if (l->ino[i] == edge->ino) {
			*ret = l->attr[i];
			return 0;
		}
	}
	r = sql_get_node(c, edge->ino, false, ret);
	if (r)
		return r;
	a->raced = true;
	return -ENOENT;
}

static int take_nodes(struct sql_conn *c, struct rename *a, const struct locked *l)
{
	struct cfs_attr *dst = &a->ret.victim.attr;
	int r = take_locked(c, a, l, &a->src, &a->ret.moved.attr);

	a->ret.moved.ino = a->src.ino;
	a->ret.victim.ino = a->dst.ino;
	if (r < 0 || !a->dst.ino || a->dst.ino == a->src.ino)
		return r;
	r = take_locked(c, a, l, &a->dst, dst);
	if (r == -ENOENT && !a->raced) {
		*dst = sql_missing_node(&a->dst);
		a->dst_dangles = true;
		r = 0;
	}
	return r;
}

static int find(struct sql_conn *c, struct rename *a)
{
	const struct cfs_rename *q = &a->req->r;
	struct locked l;
	int full, data, r = ask(c, q);

	if (!r)
		r = read_dir(c, SQL_src_dir, &a->src_dir);
	if (!r)
		r = read_dir(c, SQL_dst_dir, &a->dst_dir);
	if (r < 0)
		return r;
	if (a->src_dir.type != CFS_TYPE_DIR || a->dst_dir.type != CFS_TYPE_DIR)
		return -ENOTDIR;
	r = read_locked(c, &l);
	if (!r)
		r = read_edge(c, SQL_src_edge, &a->src);
	if (!r)
		r = read_edge(c, SQL_dst_edge, &a->dst);
	if (r < 0)
		return r;
	if (!a->src.ino)
		return -ENOENT;
	full = a->dst.ino && a->dst.type == CFS_TYPE_DIR ? is_full(c, a->dst.ino) : 0;
	data = a->dst.ino && a->dst.type == CFS_TYPE_FILE ? read_any(c, SQL_dst_chunk) : 0;
	if (full < 0 || data < 0)
		return full < 0 ? full : data;
	a->dst_full = full;
	a->dst_has_data = data;
	if (a->dst.ino && (q->flags & CFS_RENAME_NOREPLACE))
		return -EEXIST;
	if (!a->dst.ino && (q->flags & CFS_RENAME_EXCHANGE))
		return -ENOENT;
	return take_nodes(c, a, &l);
}

/* ---- checks ---- */

static int check_source(const struct cfs_ctx *ctx, const struct rename *a)
{
	const struct cfs_rename *q = &a->req->r;
	const struct cfs_attr *src = &a->ret.moved.attr;
	int r = cfs_rules_remove_entry(ctx, q->src_parent, &a->src_dir, src);

	if (r < 0 || q->src_parent == q->dst_parent || src->type != CFS_TYPE_DIR)
		return r;
	if ((a->src_dir.mode & S_ISVTX) && ctx->uid != 0 && ctx->uid != src->uid)
		return -EACCES;
	/* The move changes the entry ".." of the directory. */
	return ctx->check ? cfs_rules_access(ctx, src, 2) : 0;
}

static int check_target(const struct cfs_ctx *ctx, const struct rename *a)
{
	const struct cfs_rename *q = &a->req->r;

	if (cfs_ino_is_trash(q->dst_parent))
		return (q->flags & CFS_RENAME_RESTORE) && ctx->uid == 0 ? 0 : -EPERM;
	/* A restore rebuilds a tree below its top directory, inside the trash. */
	if ((q->flags & CFS_RENAME_RESTORE) && ctx->uid == 0 && !a->dst.ino)
		return a->dst_dir.type == CFS_TYPE_DIR ? 0 : -ENOTDIR;
	if (a->dst.ino)
		return cfs_rules_remove_entry(ctx, q->dst_parent, &a->dst_dir, &a->ret.victim.attr);
	return cfs_rules_add_entry(ctx, q->dst_parent, &a->dst_dir);
}

static int check(const struct cfs_ctx *ctx, const struct rename *a)
{
	const struct cfs_rename *q = &a->req->r;
	bool exchange = q->flags & CFS_RENAME_EXCHANGE;
	bool src_is_dir = a->src.type == CFS_TYPE_DIR;
	bool dst_is_dir = a->dst.ino && a->dst.type == CFS_TYPE_DIR;
	int r;

	if (exchange && (cfs_ino_is_trash(q->src_parent) || cfs_ino_is_trash(q->dst_parent)))
		return -EPERM;
	r = check_source(ctx, a);
	if (r >= 0)
		r = check_target(ctx, a);
	if (r < 0 || exchange || !a->dst.ino)
		return r;
	if (src_is_dir != dst_is_dir)
		return src_is_dir ? -ENOTDIR : -EISDIR;
	return dst_is_dir && a->dst_full ? -ENOTEMPTY : 0;
}

static bool moves_tree(const struct rename *a)
{
	const struct cfs_rename *q = &a->req->r;

	return q->src_parent != q->dst_parent &&
	       (a->src.type == CFS_TYPE_DIR ||
		((q->flags & CFS_RENAME_EXCHANGE) && a->dst.type == CFS_TYPE_DIR));
}

/* 1: `dir` is `top` or lies below it, or its ancestors form a loop. */
static int lies_below(struct sql_conn *c, cfs_ino_t dir, cfs_ino_t top)
{
	cfs_ino_t mark = dir;
	struct cfs_attr attr;
	uint64_t steps, limit = 1;
	int r;

	for (steps = 0; dir != CFS_ROOT_INO; steps++) {
		if (dir == top)
			return 1;
		r = sql_get_node(c, dir, false, &attr);
		if (r < 0)
			return r == -ENOENT ? 0 : r;
		dir = attr.parent;
		if (dir == mark)
			return 1;
		if (steps == limit) {
			mark = dir;
			limit *= 2;
		}
	}
	return 0;
}

/*
 * Checks that no directory moves below itself. The kernel checks its cached tree, which another
 * mount may have changed.
 */
static int check_tree(struct sql_conn *c, const struct rename *a)
{
	const struct cfs_rename *q = &a->req->r;
	int r = 0;

	if (a->src.type == CFS_TYPE_DIR)
		r = lies_below(c, q->dst_parent, a->src.ino);
	if (r == 0 && (q->flags & CFS_RENAME_EXCHANGE) && a->dst.type == CFS_TYPE_DIR)
		r = lies_below(c, q->src_parent, a->dst.ino);
	return r > 0 ? -EINVAL : r;
}

/* ---- writing ---- */

static int set_src_edge(struct sql_conn *c, const struct rename *a)
{
	const struct cfs_rename *q = &a->req->r;

	return sql_post(c, SQL_set_edge, "iiibi", a->dst.ino, (int64_t)a->dst.type, q->src_parent,
			q->src_name, q->src_len, a->src.ino);
}

/* A dangling name is not locked, so another client may have changed it since. */
static int set_dst_edge(struct sql_conn *c, struct rename *a)
{
	const struct cfs_rename *q = &a->req->r;
	int r;

	if (!a->dst_dangles)
		return sql_post(c, SQL_set_edge, "iiibi", a->src.ino, (int64_t)a->src.type,
				q->dst_parent, q->dst_name, q->dst_len, a->dst.ino);
	r = sql_exec(c, SQL_set_edge, "iiibi", a->src.ino, (int64_t)a->src.type, q->dst_parent,
		     q->dst_name, q->dst_len, a->dst.ino);
	a->raced = r == 0;
	return a->raced ? -ENOENT : r < 0 ? r : 0;
}

/* Updates the row of an inode whose name was moved to directory `dir`. */
static int update_moved(struct sql_conn *c, const struct cfs_ctx *ctx, cfs_ino_t ino, cfs_ino_t dir,
			struct cfs_attr *attr)
{
	cfs_rules_moved(ctx, dir, attr);
	return sql_move_node(c, ino, attr);
}

static int exchange(struct sql_conn *c, const struct cfs_ctx *ctx, struct rename *a)
{
	const struct cfs_rename *q = &a->req->r;
	struct cfs_attr *src = &a->ret.moved.attr, *dst = &a->ret.victim.attr;
	int r;

	r = set_src_edge(c, a);
	if (r >= 0)
		r = set_dst_edge(c, a);
	if (r >= 0)
		r = update_moved(c, ctx, a->src.ino, q->dst_parent, src);
	if (r >= 0)
		r = update_moved(c, ctx, a->dst.ino, q->src_parent, dst);
	if (r < 0)
		return r;
	a->ret.victim.outcome = CFS_REMOVED_LINKED;
	if (q->src_parent == q->dst_parent)
		return 0;
	a->dst_nlink = (src->type == CFS_TYPE_DIR) - (dst->type == CFS_TYPE_DIR);
	a->src_nlink = -a->dst_nlink;
	return 0;
}

/* Renames the source's edge to the free target name. */
static int take_free_name(struct sql_conn *c, struct rename *a)
{
	const struct cfs_rename *q = &a->req->r;

	a->takes_free_name = true;
	return sql_post(c, SQL_move_edge, "ibibi", q->dst_parent, q->dst_name, q->dst_len,
			q->src_parent, q->src_name, q->src_len, a->src.ino);
}

/* Makes the target's edge lead to the source, and disposes of the replaced inode. */
static int take_name_of_victim(struct sql_conn *c, const struct cfs_ctx *ctx, struct rename *a)
{
	const struct cfs_rename *q = &a->req->r;
	const struct cfs_engine_remove victim = {
		.parent = q->dst_parent,
		.name = q->dst_name,
		.name_len = q->dst_len,
		.trash = a->req->trash,
	};
	int r;

	r = sql_post(c, SQL_del_edge, "ibi", q->src_parent, q->src_name, q->src_len, a->src.ino);
	if (!r)
		r = set_dst_edge(c, a);
	if (r < 0)
		return r;
	if (a->dst.type == CFS_TYPE_DIR)
		a->dst_nlink--;
	return sql_dispose(c, ctx, &victim, a->dst_has_data, &a->ret.victim);
}

static int move(struct sql_conn *c, const struct cfs_ctx *ctx, struct rename *a)
{
	const struct cfs_rename *q = &a->req->r;
	struct cfs_attr *src = &a->ret.moved.attr;
	int r;

	r = a->dst.ino ? take_name_of_victim(c, ctx, a) : take_free_name(c, a);
	if (r < 0)
		return r;
	if (q->src_parent != q->dst_parent) {
		a->src_nlink -= src->type == CFS_TYPE_DIR;
		a->dst_nlink += src->type == CFS_TYPE_DIR;
	}
	return update_moved(c, ctx, a->src.ino, q->dst_parent, src);
}

/* Updates the parents in the order of inodes, which is the lock order. */
static int touch_parents(struct sql_conn *c, const struct cfs_ctx *ctx, const struct rename *a)
{
	const struct cfs_rename *q = &a->req->r;
	int r = 0;

	if (q->src_parent == q->dst_parent)
		return sql_touch_dir(c, ctx, q->src_parent, a->src_nlink + a->dst_nlink);
	if (q->dst_parent < q->src_parent)
		r = sql_touch_dir(c, ctx, q->dst_parent, a->dst_nlink);
	if (r >= 0)
		r = sql_touch_dir(c, ctx, q->src_parent, a->src_nlink);
	if (r >= 0 && q->dst_parent > q->src_parent)
		r = sql_touch_dir(c, ctx, q->dst_parent, a->dst_nlink);
	return r;
}

static int log_move(struct sql_conn *c, const struct cfs_ctx *ctx, const struct rename *a)
{
	const struct cfs_rename *q = &a->req->r;
	char src[3 * CFS_NAME_MAX + 1], dst[3 * CFS_NAME_MAX + 1];

	if (!cfs_host_changelog(sql_host(c)))
		return 0;
	return sql_log(
		c, ctx, "MOVE(%" PRIu64 ",%s,%" PRIu64 ",%s,%u,%" PRIu64 ",%" PRIu64 "):%" PRIu64,
		q->src_parent, cfs_changelog_name(q->src_name, q->src_len, src), q->dst_parent,
		cfs_changelog_name(q->dst_name, q->dst_len, dst), q->flags, a->dst.ino,
		a->ret.victim.outcome == CFS_REMOVED_TRASHED ? a->req->trash : 0, a->src.ino);
}

static int rename_entry(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct rename *a = arg;
	int r;

	a->usage = (struct cfs_usage){0};
	a->ret = (struct cfs_renamed){0};
	a->src_nlink = a->dst_nlink = 0;
	a->raced = a->takes_free_name = a->dst_dangles = false;
	/* The lock order: the tree before nodes. */
	r = a->locks_tree ? sql_lock_tree(c) : 0;
	if (r == 0)
		r = find(c, a);
	if (r < 0)
		return r;
	if (a->src.ino == a->dst.ino) {
		a->ret.victim = (struct cfs_removed){.outcome = CFS_REMOVED_NONE};
		return 0;
	}
	r = 0;
	if (moves_tree(a)) {
		a->raced = !a->locks_tree;
		a->locks_tree = true;
		r = a->raced ? -EAGAIN : check_tree(c, a);
	}
	if (r == 0)
		r = check(ctx, a);
	if (r < 0)
		return r;
	r = a->req->r.flags & CFS_RENAME_EXCHANGE ? exchange(c, ctx, a) : move(c, ctx, a);
	if (r >= 0)
		r = touch_parents(c, ctx, a);
	if (r >= 0 && !cfs_ino_is_trash(a->req->r.dst_parent))
		r = sql_keep_late(c, a->req->r.dst_parent, &a->dst_dir);
	cfs_usage_renamed(&a->usage, a->req, &a->ret);
	if (r >= 0)
		r = sql_write_usage(c, &a->usage);
	return r < 0 ? r : log_move(c, ctx, a);
}

int sql_op_rename(struct cfs_engine *e, const struct cfs_ctx *ctx,
		  const struct cfs_engine_rename *req, struct cfs_renamed *ret,
		  struct cfs_usage *ret_usage)
{
	struct cfs_optimistic *cache = sql_db(e)->optimistic;
	struct rename a = {.req = req};
	int r;

	do {
		r = sql_txn(sql_db(e), ctx, CFS_META_OP_rename, rename_entry, &a);
		if (r == -EEXIST && a.takes_free_name && !(req->r.flags & CFS_RENAME_NOREPLACE))
			a.raced = true;
	} while (a.raced && !cfs_deadline_passed(ctx->deadline));
	/* Link counts may have changed. */
	if (cache) {
		cfs_optimistic_dir_forget(cache, req->r.src_parent);
		cfs_optimistic_dir_forget(cache, req->r.dst_parent);
	}
	if (r < 0)
		return r;
	*ret = a.ret;
	*ret_usage = a.usage;
	return 0;
}
