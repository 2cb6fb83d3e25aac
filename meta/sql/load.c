/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the rows of a volume being loaded: the opposite of scan.c. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "meta/sql/sql-internal.h"

enum { ACL_HEAD_BYTES = 8 };

struct load {
	enum cfs_meta_table table;
	const struct cfs_row *rows;
	size_t n;
	uint8_t *records; /* of one chunk */
	size_t cap;
};

static int put_chunk(struct sql_conn *c, struct load *a, const struct cfs_row *row)
{
	size_t i, bytes = row->list.n * CFS_SLICE_BYTES;

	if (bytes > a->cap) {
		uint8_t *p = realloc(a->records, bytes);

		if (!p)
			return -ENOMEM;
		a->records = p;
		a->cap = bytes;
	}
	for (i = 0; i < row->list.n; i++)
		cfs_slice_encode(&row->list.slices[i], a->records + i * CFS_SLICE_BYTES);
	return sql_load(c, SQL_load_chunk, "iib", (int64_t)row->ino, (int64_t)row->list.indx,
			a->records, bytes);
}

static int put_node(struct sql_conn *c, const struct cfs_row *row)
{
	int r = 0;

	/* create() has made these two. */
	if (row->ino == CFS_ROOT_INO || row->ino == CFS_TRASH_INO)
		r = sql_exec(c, SQL_del_node, "i", (int64_t)row->ino);
	if (r < 0)
		return r;
	return sql_load(c, SQL_put_node, "iiiiiiiiiiiiiiiiiii", (int64_t)row->ino,
			SQL_NODE_VALUES(&row->attr));
}

/* Reads the packed named entries at *p, and advances *p. */
static int named(const uint8_t **p, const uint8_t *end, const uint8_t **ret, size_t *ret_len)
{
	size_t n;

	if (end - *p < 4)
		return -EINVAL;
	n = cfs_get_be32(*p);
	*p += 4;
	if (n > (size_t)(end - *p) / CFS_ACL_ENTRY_BYTES)
		return -EINVAL;
	*ret = *p;
	*ret_len = n * CFS_ACL_ENTRY_BYTES;
	*p += *ret_len;
	return 0;
}

static int put_acl(struct sql_conn *c, const struct cfs_row *row)
{
	const uint8_t *p = row->acl.rule, *end = p + row->acl.len, *users, *groups;
	size_t users_len, groups_len;
	int64_t v[4];
	int i, r;

	if (row->acl.len < ACL_HEAD_BYTES)
		return -EINVAL;
	for (i = 0; i < 4; i++, p += 2)
		v[i] = cfs_get_be16(p);
	r = named(&p, end, &users, &users_len);
	if (!r)
		r = named(&p, end, &groups, &groups_len);
	return r ? r
		 : sql_load(c, SQL_load_acl, "iiiiibb", (int64_t)row->acl.id, v[0], v[1], v[2],
			    v[3], users, users_len, groups, groups_len);
}

static int put_counter(struct sql_conn *c, const struct cfs_row *row)
{
	const char *name = row->counter.name;
	int r = sql_exec(c, SQL_set_counter, "it", row->counter.value, name, strlen(name));

	return r ? r : sql_exec(c, SQL_new_counter, "ti", name, strlen(name), row->counter.value);
}

static int put_row(struct sql_conn *c, struct load *a, const struct cfs_row *row)
{
	int64_t ino = (int64_t)row->ino;

	switch (a->table) {
	case CFS_TABLE_NODE:
		return put_node(c, row);
	case CFS_TABLE_EDGE:
		return sql_load(c, SQL_load_edge, "ibii", (int64_t)row->edge.parent, row->edge.name,
				row->edge.name_len, ino, (int64_t)row->edge.type);
	case CFS_TABLE_CHUNK:
		return put_chunk(c, a, row);
	case CFS_TABLE_REF:
		return sql_load(c, SQL_load_ref, "iii", (int64_t)row->ref.id,
				(int64_t)row->ref.size, row->ref.refs);
	case CFS_TABLE_DELFILE:
		return sql_load(c, SQL_load_delfile, "iii", ino, (int64_t)row->deleted.length,
				row->deleted.when_s);
	case CFS_TABLE_SUSTAINED:
		return sql_load(c, SQL_put_sustained, "ii", (int64_t)row->sid, ino);
	case CFS_TABLE_DIR_STAT:
		return sql_load(c, SQL_put_dir_stat, "iiii", ino, row->stat.length, row->stat.space,
				row->stat.inodes);
	case CFS_TABLE_SYMLINK:
		return sql_load(c, SQL_put_symlink, "ib", ino, row->symlink.target,
				row->symlink.len);
	case CFS_TABLE_XATTR:
		return sql_load(c, SQL_load_xattr, "itb", ino, row->xattr.name, row->xattr.name_len,
				row->xattr.value, row->xattr.value_len);
	case CFS_TABLE_ACL:
		return put_acl(c, row);
	case CFS_TABLE_COUNTER:
		return put_counter(c, row);
	case CFS_TABLE_PARENT: /* follows from the edges */
		return 0;
	case CFS_TABLE_DELAYED:
	case CFS_TABLE_DETACHED:
		break;
	}
	return -EINVAL;
}

static int put_rows(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct load *a = arg;
	size_t i;
	int r = 0;

	for (i = 0; i < a->n && r >= 0; i++)
		r = put_row(c, a, &a->rows[i]);
	if (r >= 0 && a->table == CFS_TABLE_ACL)
		r = sql_row(c, SQL_load_acl_end, "");
	return r < 0 ? r : 0;
}

int sql_op_put_rows(struct cfs_engine *e, const struct cfs_ctx *ctx, enum cfs_meta_table table,
		    const struct cfs_row *rows, size_t n)
{
	struct load a = {.table = table, .rows = rows, .n = n};
	int r;

	if (table == CFS_TABLE_PARENT)
		return 0;
	r = sql_txn(sql_db(e), ctx, CFS_META_OP_other, put_rows, &a);
	free(a.records);
	return r;
}
