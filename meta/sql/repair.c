/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of single inodes and counts, with the repair in the same transaction. */
#include <errno.h>
#include <inttypes.h>

#include "base/log.h"
#include "meta/sql/sql-internal.h"

struct check {
	cfs_ino_t ino;
	unsigned repair;
	/* results of one attempt */
	struct cfs_check c;
	struct cfs_usage usage;
	bool exists;
	uint8_t name_type; /* of the first name */
	bool types_differ;
	cfs_ino_t first_parent;
};

static bool wanted(struct check *a, enum cfs_damage damage)
{
	return cfs_check_note(&a->c, a->repair, damage);
}

/* 1: there is a row, 0 there is none. */
static int has_detached(struct sql_conn *c, cfs_ino_t ino)
{
	int r = sql_has_column(c, "detached_node", "inode");

	return r > 0 ? sql_has(c, SQL_is_detached, "i", ino) : r;
}

static int read_names(struct sql_conn *c, struct check *a)
{
	int r = sql_query(c, SQL_each_name, "i", a->ino);

	while (r >= 0 && (r = sql_next(c, SQL_each_name)) > 0) {
		cfs_ino_t parent = (cfs_ino_t)sql_int(c, SQL_each_name, 0);
		uint8_t type = (uint8_t)sql_int(c, SQL_each_name, 1);

		if (a->c.names++ == 0) {
			a->first_parent = parent;
			a->name_type = type;
		}
		a->types_differ |= type != (a->exists ? a->c.attr.type : a->name_type);
	}
	return r;
}

static int count_subdirs(struct sql_conn *c, cfs_ino_t ino, uint32_t *ret)
{
	int r = sql_row(c, SQL_count_subdirs, "i", ino);

	if (r > 0)
		*ret = (uint32_t)sql_int(c, SQL_count_subdirs, 0);
	sql_done(c, SQL_count_subdirs);
	return r < 0 ? r : 0;
}

static int sum_entries(struct sql_conn *c, struct check *a)
{
	struct cfs_dir_stat *want = &a->c.want;
	int r = sql_row(c, SQL_sum_entries, "i", a->ino);

	if (r > 0) {
		want->inodes = sql_int(c, SQL_sum_entries, 0);
		want->length = sql_int(c, SQL_sum_entries, 1);
		want->space = sql_int(c, SQL_sum_entries, 2);
		a->c.mark = (uint64_t)sql_int(c, SQL_sum_entries, 3);
	}
	sql_done(c, SQL_sum_entries);
	return r < 0 ? r : 0;
}

static int put_stat(struct sql_conn *c, const struct check *a)
{
	const struct cfs_dir_stat *st = &a->c.want;

	return sql_exec(c, SQL_put_dir_stat, "iiii", a->ino, st->length, st->space, st->inodes);
}

static int make_stat(struct sql_conn *c, struct check *a)
{
	int r = sql_has(c, SQL_has_entries, "ii", a->ino, (int64_t)CFS_CHECK_ENTRIES);

	if (r)
		return r < 0 ? r : 0;
	a->c.repaired |= CFS_CHECK_NO_STAT;
	/* Fails when another client has created the row meanwhile. */
	r = sql_exec(c, SQL_new_dir_stat, "i", a->ino);
	if (r >= 0)
		r = sum_entries(c, a);
	return r < 0 ? r : put_stat(c, a);
}

static int check_stat(struct sql_conn *c, struct check *a)
{
	struct cfs_dir_stat *have = &a->c.stat;
	int r;

	if (!cfs_host_dir_stats(sql_host(c)))
		return 0;
	r = sql_row(c, SQL_get_dir_stat, "i", a->ino);
	if (r < 0)
		return r;
	if (!r)
		return a->repair & CFS_CHECK_NO_STAT ? make_stat(c, a) : 0;
	have->length = sql_int(c, SQL_get_dir_stat, 0);
	have->space = sql_int(c, SQL_get_dir_stat, 1);
	have->inodes = sql_int(c, SQL_get_dir_stat, 2);
	sql_done(c, SQL_get_dir_stat);
	r = sum_entries(c, a);
	if (r < 0)
		return r;
	return cfs_check_stat(&a->c, a->repair) ? put_stat(c, a) : 0;
}

/* An orphan has no name, is not open in any session, and is not part of a clone in progress. */
static int check_orphan(struct sql_conn *c, const struct cfs_ctx *ctx, struct check *a)
{
	const struct cfs_engine_remove req = {.parent = 0};
	const struct cfs_attr *attr = &a->c.attr;
	struct cfs_removed gone = {.ino = a->ino};
	int r = sql_has(c, SQL_is_sustained, "i", a->ino);

	if (r == 0)
		r = has_detached(c, a->ino);
	if (r)
		return r < 0 ? r : 0;
	if (attr->nlink || attr->type == CFS_TYPE_DIR) {
		a->c.damage |= CFS_DAMAGE_ORPHAN;
		return 0;
	}
	if (!wanted(a, CFS_DAMAGE_ORPHAN))
		return 0;
	gone.attr = *attr;
	r = sql_dispose(c, ctx, &req, -1, &gone);
	if (gone.outcome == CFS_REMOVED_DELETED)
		cfs_usage_inode(&a->usage, &gone.attr, -1);
	return r < 0 ? r : sql_write_usage(c, &a->usage);
}

static int check_named(struct sql_conn *c, struct check *a)
{
	const struct cfs_attr *attr = &a->c.attr;
	struct cfs_attr now;
	uint32_t subdirs = 0;
	int r = attr->type == CFS_TYPE_DIR ? count_subdirs(c, a->ino, &subdirs) : 0;

	if (r < 0)
		return r;
	cfs_check_names(&a->c, a->repair, a->ino, subdirs, a->first_parent, a->types_differ);
	if (a->c.repaired & CFS_DAMAGE_TYPE)
		r = sql_exec(c, SQL_set_names_type, "ii", (int64_t)attr->type, a->ino);
	if (r < 0 || !(a->c.repaired & (CFS_DAMAGE_NLINK | CFS_DAMAGE_PARENT)))
		return r;
	now = cfs_check_repaired(&a->c);
	return sql_move_node(c, a->ino, &now);
}

static int make_directory(struct sql_conn *c, const struct cfs_ctx *ctx, struct check *a)
{
	struct cfs_attr attr = cfs_rules_directory(ctx, 0755, a->first_parent);
	int r;

	attr.nlink = a->c.nlink;
	r = sql_put_node(c, a->ino, &attr);
	if (r < 0)
		return r;
	cfs_usage_inode(&a->usage, &attr, 1);
	cfs_usage_entry(&a->usage, a->first_parent, &attr, 1);
	return sql_write_usage(c, &a->usage);
}

/* The inode is missing, but other rows refer to it. */
static int check_missing(struct sql_conn *c, const struct cfs_ctx *ctx, struct check *a)
{
	uint64_t length;
	int r;

	if (a->c.names) {
		r = count_subdirs(c, a->ino, &a->c.nlink);
		a->c.nlink += 2;
		a->c.parent = a->first_parent;
		if (r < 0 || !wanted(a, CFS_DAMAGE_NAME))
			return r;
		if (a->name_type == CFS_TYPE_DIR)
			return make_directory(c, ctx, a);
		return sql_exec(c, SQL_del_names, "i", a->ino);
	}
	r = sql_has(c, SQL_has_entry, "i", a->ino);
	if (r < 0)
		return r;
	if (r)
		a->c.damage |= CFS_DAMAGE_LOST;
	r = sql_has(c, SQL_list_xattrs, "i", a->ino);
	if (r > 0 && wanted(a, CFS_DAMAGE_XATTR))
		r = sql_exec(c, SQL_del_xattrs, "i", a->ino);
	if (r < 0)
		return r;
	r = sql_row(c, SQL_last_chunk, "i", a->ino);
	if (r <= 0)
		return r;
	length = ((uint64_t)sql_int(c, SQL_last_chunk, 0) + 1) << CFS_CHUNK_BITS;
	sql_done(c, SQL_last_chunk);
	r = sql_has(c, SQL_get_delfile, "i", a->ino);
	if (r || !wanted(a, CFS_DAMAGE_DATA))
		return r;
	return sql_exec(c, SQL_put_delfile, "iii", a->ino, length, (int64_t)ctx->now.tv_sec);
}

static int check(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct check *a = arg;
	int r;

	*a = (struct check){.ino = a->ino, .repair = a->repair};
	r = sql_get_node(c, a->ino, a->repair, &a->c.attr);
	if (r < 0 && r != -ENOENT)
		return r;
	a->exists = r == 0;
	r = read_names(c, a);
	if (r < 0)
		return r;
	if (!a->exists)
		r = check_missing(c, ctx, a);
	else if (a->c.names || a->ino == CFS_ROOT_INO || a->ino == CFS_TRASH_INO)
		r = check_named(c, a);
	else
		r = check_orphan(c, ctx, a);
	if (r >= 0 && a->exists && a->c.attr.type == CFS_TYPE_DIR)
		r = check_stat(c, a);
	if (r < 0 || !a->c.repaired)
		return r < 0 ? r : 0;
	return sql_log(c, ctx, "REPAIRDIR(%" PRIu64 ",%u)", a->ino, a->c.repaired);
}

int sql_op_check_inode(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
		       unsigned repair, struct cfs_check *ret, struct cfs_usage *ret_usage)
{
	struct check a = {.ino = ino, .repair = repair};
	int r = repair ? sql_txn(sql_db(e), ctx, CFS_META_OP_other, check, &a)
		       : sql_read(sql_db(e), ctx, CFS_META_OP_other, check, &a);

	if (r < 0)
		return r;
	*ret = a.c;
	*ret_usage = a.usage;
	return 0;
}

static int sum_nodes(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct cfs_sums *a = arg;
	int r = sql_row(c, SQL_sum_nodes, "");

	if (r <= 0)
		return r < 0 ? r : -EIO;
	a->inodes = sql_int(c, SQL_sum_nodes, 0);
	a->space = sql_int(c, SQL_sum_nodes, 1);
	a->counted_inodes = sql_int(c, SQL_sum_nodes, 2);
	a->counted_space = sql_int(c, SQL_sum_nodes, 3);
	a->mark = (uint64_t)sql_int(c, SQL_sum_nodes, 4);
	sql_done(c, SQL_sum_nodes);
	return 0;
}

int sql_op_check_usage(struct cfs_engine *e, const struct cfs_ctx *ctx, struct cfs_sums *ret)
{
	struct cfs_sums a = {0};
	int r = sql_read(sql_db(e), ctx, CFS_META_OP_other, sum_nodes, &a);

	if (r < 0)
		return r;
	*ret = a;
	return 0;
}

struct refs {
	uint64_t id;
	uint32_t size;
	int64_t have, want;
};

static int fix_refs(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct refs *a = arg;
	int r;

	if (a->have < 0) {
		r = sql_exec(c, SQL_put_ref, "iii", a->id, (int64_t)a->size, a->want);
		return r == -EEXIST ? -EBUSY : r < 0 ? r : 0;
	}
	sql_repeatable();
	r = sql_exec(c, SQL_set_refs, "iii", a->want, a->id, a->have);
	return r == 0 && !sql_is_repeated(c) ? -EBUSY : r < 0 ? r : 0;
}

int sql_op_fix_refs(struct cfs_engine *e, const struct cfs_ctx *ctx, uint64_t id, uint32_t size,
		    int64_t have, int64_t want)
{
	struct refs a = {.id = id, .size = size, .have = have, .want = want};
	int r = sql_txn(sql_db(e), ctx, CFS_META_OP_other, fix_refs, &a);

	return r == -EBUSY ? -EAGAIN : r;
}

static int clear_dir_stats(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	int r;

	sql_repeatable();
	r = sql_exec(c, SQL_clear_dir_stats, "");
	return r < 0 ? r : 0;
}

int sql_op_clear_dir_stats(struct cfs_engine *e, const struct cfs_ctx *ctx)
{
	return sql_txn(sql_db(e), ctx, CFS_META_OP_other, clear_dir_stats, NULL);
}
