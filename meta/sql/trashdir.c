/* SPDX-License-Identifier: Apache-2.0 */
/* Hour directories of the trash (volume-format section 9). */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "meta/sql/sql.h"

struct trash_dir {
	const char *name;
	cfs_ino_t *ino;
	struct cfs_usage *usage;
};

static int find(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct trash_dir *a = arg;
	struct sql_edge edge;
	int r = sql_get_edge(c, CFS_TRASH_INO, a->name, strlen(a->name), &edge);

	if (!r)
		*a->ino = edge.ino;
	return r;
}

/* A volume that was formatted without trash gets the trash root with the first hour. */
static int make_root(struct sql_conn *c, const struct cfs_attr *hour)
{
	struct cfs_attr root;
	int r = sql_get_node(c, CFS_TRASH_INO, false, &root);

	if (r != -ENOENT)
		return r;
	root = *hour;
	root.parent = CFS_ROOT_INO;
	return sql_put_node(c, CFS_TRASH_INO, &root);
}

/*
 * An hour directory counts in the volume's usage, but not in the link count and times of the trash.
 */
static int make(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct trash_dir *a = arg;
	const struct cfs_attr attr = cfs_rules_directory(ctx, 0555, CFS_TRASH_INO);
	int64_t last;
	int r = find(c, ctx, a);

	*a->usage = (struct cfs_usage){0};
	if (r != -ENOENT)
		return r;
	r = make_root(c, &attr);
	if (r < 0)
		return r;
	r = sql_add_counter(c, ctx, "nextTrash", 1, &last);
	if (r)
		return r;
	*a->ino = CFS_TRASH_INO + (uint64_t)last + 1;
	r = sql_exec(c, SQL_put_edge, "ibii", (int64_t)CFS_TRASH_INO, a->name, strlen(a->name),
		     (int64_t)*a->ino, (int64_t)CFS_TYPE_DIR);
	if (r >= 0)
		r = sql_put_node(c, *a->ino, &attr);
	if (r >= 0 && cfs_host_dir_stats(sql_host(c)))
		r = sql_exec(c, SQL_new_dir_stat, "i", (int64_t)*a->ino);
	if (r < 0)
		return r;
	cfs_usage_inode(a->usage, &attr, 1);
	r = sql_write_usage(c, a->usage);
	if (r < 0)
		return r;
	return sql_log(c, ctx, "CREATE(%" PRIu64 ",%s,0,0,2,365,0,,linux,false):%" PRIu64,
		       CFS_TRASH_INO, a->name, *a->ino);
}

static int make_root_alone(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct cfs_attr attr = cfs_rules_directory(ctx, 0555, CFS_ROOT_INO);
	int r = make_root(c, &attr);

	return r < 0 ? r : 0;
}

int sql_op_trash_dir(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *name,
		     cfs_ino_t *ret, struct cfs_usage *ret_usage)
{
	struct trash_dir a = {.name = name, .ino = ret, .usage = ret_usage};
	int r = -ENOENT;

	*ret = CFS_TRASH_INO;
	*ret_usage = (struct cfs_usage){0};
	if (*name)
		r = sql_read(sql_db(e), ctx, CFS_META_OP_lookup, find, &a);
	if (r == -ENOENT)
		r = sql_txn(sql_db(e), ctx, CFS_META_OP_mknod, *name ? make : make_root_alone, &a);
	/* Another client has created it meanwhile. */
	if (r == -EEXIST) {
		*ret_usage = (struct cfs_usage){0};
		r = *name ? sql_read(sql_db(e), ctx, CFS_META_OP_lookup, find, &a) : 0;
	}
	return r;
}
