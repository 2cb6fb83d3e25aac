/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scans of whole tables, page by page in the order of a key. The key of a row does not change, so
 * each row that exists throughout the scan is delivered.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "meta/sql/sql-internal.h"

/* Rows of one page; a list of slices is up to 64 KiB. */
enum { PAGE = 4096, PAGE_LISTS = 256 };

static const struct source {
	enum sql_stmt_id stmt;
	const char *table, *column; /* a volume of an older client may lack it */
	int64_t page;
} sources[] = {
	[CFS_TABLE_NODE] = {SQL_scan_nodes, "node", "inode", PAGE},
	[CFS_TABLE_EDGE] = {SQL_scan_edges, "edge", "id", PAGE},
	[CFS_TABLE_CHUNK] = {SQL_scan_chunks, "chunk", "id", PAGE_LISTS},
	[CFS_TABLE_REF] = {SQL_scan_refs, "chunk_ref", "chunkid", PAGE},
	[CFS_TABLE_DELAYED] = {SQL_scan_delayed, "delslices", "chunkid", PAGE_LISTS},
	[CFS_TABLE_DELFILE] = {SQL_scan_delfiles, "delfile", "inode", PAGE},
	[CFS_TABLE_SUSTAINED] = {SQL_scan_sustained, "sustained", "id", PAGE},
	[CFS_TABLE_DETACHED] = {SQL_scan_detached, "detached_node", "inode", PAGE},
	[CFS_TABLE_DIR_STAT] = {SQL_scan_dir_stats, "dir_stats", "inode", PAGE},
	[CFS_TABLE_SYMLINK] = {SQL_scan_symlinks, "symlink", "inode", PAGE_LISTS},
	[CFS_TABLE_XATTR] = {SQL_scan_xattrs, "xattr", "id", PAGE_LISTS},
	[CFS_TABLE_PARENT] = {SQL_scan_parents, "node", "parent", PAGE},
	[CFS_TABLE_ACL] = {SQL_scan_acls, "acl", "id", PAGE},
	/* Few rows without a numeric key: one page. */
	[CFS_TABLE_COUNTER] = {SQL_scan_counters, "counter", "name", INT64_MAX},
};

struct scan {
	enum cfs_meta_table table;
	struct cfs_scan_pos after;
	cfs_row_fn fn;
	void *arg;
	bool at_end;
	int stopped; /* what fn returned */
	struct cfs_slice *slices;
	size_t cap;
	char *text; /* of one row */
};

static int room_for(struct scan *a, size_t n)
{
	struct cfs_slice *v;

	if (n <= a->cap)
		return 0;
	v = reallocarray(a->slices, n, sizeof(*v));
	if (!v)
		return -ENOMEM;
	a->slices = v;
	a->cap = n;
	return 0;
}

static int decode_list(struct sql_conn *c, struct scan *a, enum sql_stmt_id id, int col,
		       struct cfs_row *row)
{
	const size_t each = a->table == CFS_TABLE_CHUNK ? CFS_SLICE_BYTES : SQL_PAIR_BYTES;
	size_t len, i, n;
	const uint8_t *p = sql_blob(c, id, col, &len);
	int r;

	n = len / each;
	row->list.damaged = len % each;
	if (row->list.damaged)
		return 0;
	r = room_for(a, n);
	if (r < 0)
		return r;
	for (i = 0; i < n; i++, p += each) {
		if (a->table == CFS_TABLE_CHUNK)
			cfs_slice_decode(p, &a->slices[i]);
		else
			a->slices[i] = (struct cfs_slice){
				.id = cfs_get_be64(p),
				.size = cfs_get_be32(p + 8),
			};
	}
	row->list.slices = a->slices;
	row->list.n = n;
	return 0;
}

static size_t pack_named(struct sql_conn *c, enum sql_stmt_id id, int col, uint8_t *out)
{
	size_t len;
	const void *p = sql_blob(c, id, col, &len);

	cfs_put_be32(out, (uint32_t)(len / CFS_ACL_ENTRY_BYTES));
	if (len)
		memcpy(out + 4, p, len);
	return 4 + len;
}

static int decode_acl(struct sql_conn *c, struct scan *a, enum sql_stmt_id id, struct cfs_row *row)
{
	size_t users, groups;
	uint8_t *p;
	int i;

	(void)sql_blob(c, id, 5, &users);
	(void)sql_blob(c, id, 6, &groups);
	free(a->text);
	a->text = malloc(16 + users + groups);
	if (!a->text)
		return -ENOMEM;
	p = (uint8_t *)a->text;
	for (i = 0; i < 4; i++, p += 2)
		cfs_put_be16(p, (uint16_t)sql_int(c, id, 1 + i));
	p += pack_named(c, id, 5, p);
	p += pack_named(c, id, 6, p);
	row->acl.id = (uint32_t)sql_int(c, id, 0);
	row->acl.rule = a->text;
	row->acl.len = (size_t)(p - (uint8_t *)a->text);
	return 0;
}

static int decode_counter(struct sql_conn *c, struct scan *a, enum sql_stmt_id id,
			  struct cfs_row *row)
{
	size_t len;
	const char *name = sql_blob(c, id, 0, &len);

	free(a->text);
	a->text = strndup(len ? name : "", len);
	row->counter.name = a->text;
	row->counter.value = sql_int(c, id, 1);
	return a->text ? 0 : -ENOMEM;
}

/* Returns the row's key in *ret_key. */
static int decode(struct sql_conn *c, struct scan *a, enum sql_stmt_id id, struct cfs_row *row,
		  struct cfs_scan_pos *ret_key)
{
	int r = 0;

	*row = (struct cfs_row){0};
	*ret_key = (struct cfs_scan_pos){0};
	if (a->table == CFS_TABLE_COUNTER)
		return decode_counter(c, a, id, row);
	ret_key->a = (uint64_t)sql_int(c, id, a->table == CFS_TABLE_NODE ? SQL_NODE_COLUMNS : 0);
	row->ino = ret_key->a;
	switch (a->table) {
	case CFS_TABLE_NODE:
		sql_node_columns(c, id, 0, &row->attr);
		break;
	case CFS_TABLE_EDGE:
		row->edge.parent = (cfs_ino_t)sql_int(c, id, 1);
		row->edge.name = sql_blob(c, id, 2, &row->edge.name_len);
		row->ino = (cfs_ino_t)sql_int(c, id, 3);
		row->edge.type = (uint8_t)sql_int(c, id, 4);
		break;
	case CFS_TABLE_CHUNK:
		row->ino = (cfs_ino_t)sql_int(c, id, 1);
		row->list.indx = (uint32_t)sql_int(c, id, 2);
		r = decode_list(c, a, id, 3, row);
		break;
	case CFS_TABLE_DELAYED:
		row->list.deleted_s = sql_int(c, id, 1);
		r = decode_list(c, a, id, 2, row);
		break;
	case CFS_TABLE_REF:
		row->ref.id = ret_key->a;
		row->ref.size = (uint32_t)sql_int(c, id, 1);
		row->ref.refs = sql_int(c, id, 2);
		break;
	case CFS_TABLE_DELFILE:
		row->deleted.length = (uint64_t)sql_int(c, id, 1);
		row->deleted.when_s = sql_int(c, id, 2);
		break;
	case CFS_TABLE_SUSTAINED:
		row->sid = (uint64_t)sql_int(c, id, 1);
		row->ino = (cfs_ino_t)sql_int(c, id, 2);
		break;
	case CFS_TABLE_DETACHED:
		row->added_s = sql_int(c, id, 1);
		break;
	case CFS_TABLE_DIR_STAT:
		row->stat = (struct cfs_dir_stat){
			.length = sql_int(c, id, 1),
			.space = sql_int(c, id, 2),
			.inodes = sql_int(c, id, 3),
		};
		break;
	case CFS_TABLE_SYMLINK:
		row->symlink.target = sql_blob(c, id, 1, &row->symlink.len);
		break;
	case CFS_TABLE_XATTR:
		row->ino = (cfs_ino_t)sql_int(c, id, 1);
		row->xattr.name = sql_blob(c, id, 2, &row->xattr.name_len);
		row->xattr.value = sql_blob(c, id, 3, &row->xattr.value_len);
		break;
	case CFS_TABLE_PARENT:
		row->parent.dir = (cfs_ino_t)sql_int(c, id, 1);
		row->parent.names = (uint32_t)sql_int(c, id, 2);
		ret_key->b = row->parent.dir;
		break;
	case CFS_TABLE_ACL:
		r = decode_acl(c, a, id, row);
		break;
	case CFS_TABLE_COUNTER:
		break;
	}
	return r;
}

static int scan(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct scan *a = arg;
	const struct source *s = &sources[a->table];
	struct cfs_row row;
	struct cfs_scan_pos key;
	int64_t n = 0;
	int r;

	r = sql_has_column(c, s->table, s->column);
	if (r <= 0) {
		a->at_end = !r;
		return r;
	}
	if (a->table == CFS_TABLE_COUNTER)
		r = sql_query(c, s->stmt, "");
	else if (a->table == CFS_TABLE_PARENT)
		r = sql_query(c, s->stmt, "iiii", (int64_t)a->after.a, (int64_t)a->after.a,
			      (int64_t)a->after.b, s->page);
	else
		r = sql_query(c, s->stmt, "ii", (int64_t)a->after.a, s->page);
	while (r >= 0 && (r = sql_next(c, s->stmt)) > 0) {
		n++;
		r = decode(c, a, s->stmt, &row, &key);
		if (r < 0)
			return r;
		a->stopped = a->fn(a->arg, &row);
		if (a->stopped)
			return 0;
		/* A retry continues behind this row. */
		a->after = key;
	}
	if (r >= 0 && n < s->page) {
		r = sql_confirm_end(c);
		a->at_end = !r;
	}
	return r < 0 ? r : 0;
}

int sql_op_scan(struct cfs_engine *e, const struct cfs_ctx *ctx, enum cfs_meta_table table,
		struct cfs_scan_pos *pos, cfs_row_fn fn, void *arg)
{
	struct scan a = {.table = table, .after = *pos, .fn = fn, .arg = arg};
	int r = sql_read(sql_db(e), ctx, CFS_META_OP_other, scan, &a);

	free(a.slices);
	free(a.text);
	*pos = a.after;
	if (a.stopped)
		return a.stopped;
	return r < 0 ? r : a.at_end;
}

struct lengths {
	cfs_ino_t ino;
	uint32_t first;
	struct cfs_chunk_len *v;
	size_t n;
};

static int list_chunks(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct lengths *a = arg;
	int r = sql_query(c, SQL_chunk_lengths, "iii", a->ino, (int64_t)a->first, (int64_t)1024);

	a->n = 0;
	while (r >= 0 && (r = sql_next(c, SQL_chunk_lengths)) > 0)
		a->v[a->n++] = (struct cfs_chunk_len){
			.indx = (uint32_t)sql_int(c, SQL_chunk_lengths, 0),
			.records = (uint32_t)(sql_int(c, SQL_chunk_lengths, 1) / CFS_SLICE_BYTES),
		};
	return r < 0 ? r : 0;
}

ssize_t sql_op_list_chunks(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			   uint32_t first, struct cfs_chunk_len ret[1024])
{
	struct lengths a = {.ino = ino, .first = first, .v = ret};
	int r = sql_read(sql_db(e), ctx, CFS_META_OP_read_chunk, list_chunks, &a);

	return r < 0 ? r : (ssize_t)a.n;
}
