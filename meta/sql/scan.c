/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole tables, page by page behind a key. Keys of rows do not change and fresh ones are larger, so
 * a row that exists throughout is met.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "meta/sql/sql-internal.h"

/* Lists of slices are up to 64 KiB each. */
enum { PAGE = 4096, PAGE_LISTS = 256, PAIR_BYTES = 12 };

static const struct source {
	enum sql_stmt_id stmt;
	const char *table, *column; /* an older client's volume, mounted read-only, may lack it */
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
};

struct scan {
	enum cfs_meta_table table;
	uint64_t after;
	cfs_row_fn fn;
	void *arg;
	bool at_end;
	int stopped; /* what fn returned */
	struct cfs_slice *slices;
	size_t cap;
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
	const size_t each = a->table == CFS_TABLE_CHUNK ? CFS_SLICE_BYTES : PAIR_BYTES;
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

/* Returns the row's key in *ret_key. */
static int decode(struct sql_conn *c, struct scan *a, enum sql_stmt_id id, struct cfs_row *row,
		  uint64_t *ret_key)
{
	int r = 0;

	*row = (struct cfs_row){0};
	*ret_key = (uint64_t)sql_int(c, id, a->table == CFS_TABLE_NODE ? SQL_NODE_COLUMNS : 0);
	row->ino = *ret_key;
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
		row->ref.id = *ret_key;
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
	}
	return r;
}

static int scan(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct scan *a = arg;
	const struct source *s = &sources[a->table];
	struct cfs_row row;
	int64_t n = 0;
	uint64_t key;
	int r;

	if (!sql_dialect(c)->has_column(c, s->table, s->column)) {
		a->at_end = true;
		return 0;
	}
	r = sql_query(c, s->stmt, "ii", a->after, s->page);
	while (r >= 0 && (r = sql_next(c, s->stmt)) > 0) {
		n++;
		r = decode(c, a, s->stmt, &row, &key);
		if (r < 0)
			return r;
		a->stopped = a->fn(a->arg, &row);
		if (a->stopped)
			return 0;
		/* What was delivered stays delivered when the page is asked for again. */
		a->after = key;
	}
	a->at_end = r >= 0 && n < s->page;
	return r < 0 ? r : 0;
}

int sql_op_scan(struct cfs_engine *e, const struct cfs_ctx *ctx, enum cfs_meta_table table,
		struct cfs_scan_pos *pos, cfs_row_fn fn, void *arg)
{
	struct scan a = {.table = table, .after = pos->a, .fn = fn, .arg = arg};
	int r = sql_read(sql_db(e), ctx, CFS_META_OP_other, scan, &a);

	free(a.slices);
	pos->a = a.after;
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
