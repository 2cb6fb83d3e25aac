/* SPDX-License-Identifier: Apache-2.0 */
/* Directory listings: pages in the order of names, each continued behind the last name. */
#include <errno.h>
#include <string.h>

#include "meta/sql/sql-internal.h"

struct listing {
	cfs_ino_t dir;
	bool attrs;
	size_t limit;
	struct cfs_cursor cursor;
	cfs_dirent_fn fn;
	void *arg;
};

/* Columns of the edge behind those of the node. */
enum { NAME, INO, TYPE, NODE_INO };

static void remember(struct cfs_optimistic *cache, const struct listing *a,
		     const struct cfs_dirent *d)
{
	if (cache && a->attrs)
		cfs_optimistic_file_remember(cache, a->dir, d->name, d->name_len, &d->entry);
	else if (cache)
		cfs_optimistic_name_remember(cache, a->dir, d->name, d->name_len, d->entry.ino);
}

/* 1: fn has ended the page; -EIO: the name is invalid. */
static int deliver(struct sql_conn *c, struct listing *a, enum sql_stmt_id id)
{
	int first = a->attrs ? SQL_NODE_COLUMNS : 0;
	size_t len;
	const void *name = sql_blob(c, id, first + NAME, &len);
	struct cfs_dirent e = {.name = name, .name_len = len};
	struct cfs_cursor after;

	if (len == 0 || len > CFS_NAME_MAX)
		return -EIO;
	e.type = (uint8_t)sql_int(c, id, first + TYPE);
	e.entry.ino = (cfs_ino_t)sql_int(c, id, first + INO);
	e.entry.attr.type = e.type;
	e.entry.attr.nlink = 1;
	/* A name whose inode is missing is listed, so that it can be removed. */
	if (a->attrs && sql_int(c, id, first + NODE_INO))
		sql_node_columns(c, id, 0, &e.entry.attr);
	after.len = (uint16_t)len;
	memcpy(after.key, name, len);
	e.after = &after;
	remember(c->db->optimistic, a, &e);
	if (a->fn(a->arg, &e))
		return 1;
	a->cursor.len = after.len;
	memcpy(a->cursor.key, after.key, len);
	return 0;
}

/* 1: a directory; -ENOENT, -ENOTDIR. */
static int check_dir(struct sql_conn *c, cfs_ino_t dir)
{
	struct cfs_attr attr;
	int r = sql_get_node(c, dir, false, &attr);

	if (r)
		return r;
	return attr.type == CFS_TYPE_DIR ? 1 : -ENOTDIR;
}

/* Selects one row more than the limit: when it is missing, the directory ends. */
static int list(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct listing *a = arg;
	enum sql_stmt_id id = a->attrs ? SQL_list_nodes : SQL_list_names;
	bool at_start = a->cursor.len == 0;
	size_t n = 0;
	int r = sql_query(c, id, "ibi", (int64_t)a->dir, a->cursor.key, (size_t)a->cursor.len,
			  (int64_t)a->limit + 1);

	if (r)
		return r;
	while ((r = sql_next(c, id)) > 0) {
		if (n++ == a->limit)
			return 0;
		r = deliver(c, a, id);
		if (r)
			return r < 0 ? r : 0;
	}
	if (r < 0)
		return r;
	return at_start && !n ? check_dir(c, a->dir) : 1;
}

int sql_op_readdir(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t dir, bool attrs,
		   size_t limit, struct cfs_cursor *cursor, cfs_dirent_fn fn, void *arg)
{
	struct listing a = {
		.dir = dir,
		.attrs = attrs,
		.limit = limit < INT32_MAX ? limit : INT32_MAX,
		.cursor = *cursor,
		.fn = fn,
		.arg = arg,
	};
	int r = sql_read(sql_db(e), ctx, CFS_META_OP_readdir, list, &a);

	/* Continues behind the delivered entries, also after an error. */
	*cursor = a.cursor;
	return r;
}
