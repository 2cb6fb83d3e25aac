/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the binary dump: every table once, in segments of bounded size. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/bytes.h"
#include "cmd/dump/dump.h"
#include "cmd/dump/dumpnames.h"
#include "cmd/dump/protobuf.h"

enum { SEGMENT_BYTES = 1 << 20 };

struct where {
	struct pb offsets; /* packed varints */
	uint64_t rows;
};

struct writer {
	struct dump *d;
	uint64_t at; /* in the dump, before compression */
	const struct part *part;
	struct pb batch, row;
	uint64_t rows; /* in batch */
	/*
	 * Extended attributes without a value are in segments of their own: JuiceFS takes the value for
	 * NULL, and its load into SQL loses the whole segment.
	 */
	struct pb empty;
	uint64_t empty_rows;
	struct where where[PB_CHANGELOG + 1];
	uint8_t *records;
	size_t cap;
};

static int put(struct writer *w, const void *p, size_t len)
{
	w->at += len;
	return stream_write(w->d->out, p, len);
}

static int put_segment(struct writer *w, enum pb_segment type, const struct pb *m, uint64_t rows)
{
	uint8_t head[12];
	int r;

	if (m->failed)
		return -ENOMEM;
	pb_varint(&w->where[type].offsets, w->at);
	w->where[type].rows += rows;
	cfs_put_be32(head, type);
	cfs_put_be64(head + 4, m->n);
	r = put(w, head, sizeof(head));
	return r ? r : put(w, m->v, m->n);
}

/* ---- rows ---- */

static int encode_list(struct writer *w, const struct cfs_row *row, size_t *ret_len)
{
	size_t i, len = row->list.n * CFS_SLICE_BYTES;

	if (CFS_ARRAY_RESERVE(w->records, len, w->cap) < 0)
		return -ENOMEM;
	for (i = 0; i < row->list.n; i++)
		cfs_slice_encode(&row->list.slices[i], w->records + i * CFS_SLICE_BYTES);
	*ret_len = len;
	return 0;
}

static int node(struct writer *w, const struct cfs_row *row)
{
	uint8_t attr[CFS_ATTR_BYTES_MAX];

	pb_number(&w->row, 1, row->ino);
	pb_bytes(&w->row, 2, attr, cfs_attr_encode(&row->attr, attr));
	w->d->inodes++;
	return 1;
}

static int edge(struct writer *w, const struct cfs_row *row)
{
	pb_number(&w->row, 1, row->edge.parent);
	pb_number(&w->row, 2, row->ino);
	pb_bytes(&w->row, 3, row->edge.name, row->edge.name_len);
	pb_number(&w->row, 4, row->edge.type);
	w->d->entries++;
	return 1;
}

static int chunk(struct writer *w, const struct cfs_row *row)
{
	size_t len;
	int r;

	if (row->list.damaged)
		return dump_damaged(w->d, row);
	r = encode_list(w, row, &len);
	if (r)
		return r;
	pb_number(&w->row, 1, row->ino);
	pb_number(&w->row, 2, row->list.indx);
	pb_bytes(&w->row, 3, w->records, len);
	return 1;
}

static int ref(struct writer *w, const struct cfs_row *row)
{
	if (row->ref.refs == 1) /* a chunk's record says as much */
		return 0;
	pb_number(&w->row, 1, row->ref.id);
	pb_number(&w->row, 2, row->ref.size);
	pb_number(&w->row, 3, (uint64_t)row->ref.refs);
	return 1;
}

static int delfile(struct writer *w, const struct cfs_row *row)
{
	pb_number(&w->row, 1, row->ino);
	pb_number(&w->row, 2, row->deleted.length);
	pb_number(&w->row, 3, (uint64_t)row->deleted.when_s);
	return 1;
}

static int sustained(struct writer *w, const struct cfs_row *row)
{
	struct pb inodes = {0};

	pb_varint(&inodes, row->ino);
	pb_number(&w->row, 1, row->sid);
	pb_message(&w->row, 2, &inodes);
	pb_free(&inodes);
	return 1;
}

static int dir_stat(struct writer *w, const struct cfs_row *row)
{
	pb_number(&w->row, 1, row->ino);
	pb_number(&w->row, 2, (uint64_t)row->stat.length);
	pb_number(&w->row, 3, (uint64_t)row->stat.space);
	pb_number(&w->row, 4, (uint64_t)row->stat.inodes);
	return 1;
}

static int symlink_row(struct writer *w, const struct cfs_row *row)
{
	pb_number(&w->row, 1, row->ino);
	pb_bytes(&w->row, 2, row->symlink.target, row->symlink.len);
	return 1;
}

static int xattr(struct writer *w, const struct cfs_row *row)
{
	char name[CFS_NAME_MAX + 1];

	pb_number(&w->row, 1, row->ino);
	pb_bytes(&w->row, 2, name, dump_xattr_name(w->d, row, name));
	pb_bytes(&w->row, 3, row->xattr.value, row->xattr.value_len);
	return row->xattr.value_len ? 1 : 2;
}

static int parent(struct writer *w, const struct cfs_row *row)
{
	pb_number(&w->row, 1, row->ino);
	pb_number(&w->row, 2, row->parent.dir);
	pb_number(&w->row, 3, row->parent.names);
	return 1;
}

static int acl(struct writer *w, const struct cfs_row *row)
{
	pb_number(&w->row, 1, row->acl.id);
	pb_bytes(&w->row, 2, row->acl.rule, row->acl.len);
	return 1;
}

static int counter(struct writer *w, const struct cfs_row *row)
{
	size_t len = strlen(row->counter.name);

	if (dump_counter_find(dump_counter_names, row->counter.name, len) == COUNTER_COUNT)
		return 0;
	pb_bytes(&w->row, 1, row->counter.name, len);
	pb_number(&w->row, 2, (uint64_t)row->counter.value);
	return 1;
}

/*
 * The order matters on a volume in use: inodes are read after the names that lead to them, and the
 * data of a file after its length.
 */
static const struct part {
	enum pb_segment segment;
	enum pb_batch batch;
	enum cfs_meta_table table;
	int (*encode)(struct writer *w,
		      const struct cfs_row *row); /* 1, 0: left out, 2: into empty */
} parts[] = {
	{PB_COUNTER, BATCH_COUNTERS, CFS_TABLE_COUNTER, counter},
	{PB_EDGE, BATCH_EDGES, CFS_TABLE_EDGE, edge},
	{PB_NODE, BATCH_NODES, CFS_TABLE_NODE, node},
	{PB_CHUNK, BATCH_CHUNKS, CFS_TABLE_CHUNK, chunk},
	{PB_PARENT, BATCH_PARENTS, CFS_TABLE_PARENT, parent},
	{PB_SYMLINK, BATCH_SYMLINKS, CFS_TABLE_SYMLINK, symlink_row},
	{PB_SUSTAINED, BATCH_SUSTAINED, CFS_TABLE_SUSTAINED, sustained},
	{PB_DELFILE, BATCH_DELFILES, CFS_TABLE_DELFILE, delfile},
	{PB_REF, BATCH_REFS, CFS_TABLE_REF, ref},
	{PB_ACL, BATCH_ACLS, CFS_TABLE_ACL, acl},
	{PB_XATTR, BATCH_XATTRS, CFS_TABLE_XATTR, xattr},
	{PB_STAT, BATCH_STATS, CFS_TABLE_DIR_STAT, dir_stat},
};

static const char *const names[PB_CHANGELOG + 1] = {
	[PB_FORMAT] = "format",
	[PB_COUNTER] = "counter",
	[PB_NODE] = "node",
	[PB_EDGE] = "edge",
	[PB_CHUNK] = "chunk",
	[PB_REF] = "sliceRef",
	[PB_SYMLINK] = "symlink",
	[PB_SUSTAINED] = "sustained",
	[PB_DELFILE] = "delFile",
	[PB_XATTR] = "xattr",
	[PB_ACL] = "acl",
	[PB_STAT] = "stat",
	[PB_QUOTA] = "quota",
	[PB_PARENT] = "parent",
	[PB_CHANGELOG] = "changeLog",
};

static int flush(struct writer *w, enum pb_segment type)
{
	int r = w->rows ? put_segment(w, type, &w->batch, w->rows) : 0;

	w->batch.n = 0;
	w->rows = 0;
	return r;
}

static int flush_empty(struct writer *w)
{
	int r = w->empty_rows ? put_segment(w, PB_XATTR, &w->empty, w->empty_rows) : 0;

	w->empty.n = 0;
	w->empty_rows = 0;
	return r;
}

static int add_row(void *arg, const struct cfs_row *row)
{
	struct writer *w = arg;
	int r;

	w->row.n = 0;
	r = w->part->encode(w, row);
	progress_add(&w->d->p, 1);
	if (r <= 0)
		return r;
	if (r == 2) {
		pb_message(&w->empty, w->part->batch, &w->row);
		w->empty_rows++;
		return w->empty.n >= SEGMENT_BYTES ? flush_empty(w) : 0;
	}
	pb_message(&w->batch, w->part->batch, &w->row);
	w->rows++;
	return w->batch.n >= SEGMENT_BYTES ? flush(w, w->part->segment) : 0;
}

static int add_quota(void *arg, const struct cfs_quota *q)
{
	static const enum pb_batch batch[] = {
		[CFS_QUOTA_DIR] = BATCH_QUOTAS,
		[CFS_QUOTA_USER] = BATCH_USER_QUOTAS,
		[CFS_QUOTA_GROUP] = BATCH_GROUP_QUOTAS,
	};
	struct writer *w = arg;

	w->row.n = 0;
	pb_number(&w->row, 1, q->key);
	pb_number(&w->row, 2, (uint64_t)q->max_space);
	pb_number(&w->row, 3, (uint64_t)q->max_inodes);
	pb_number(&w->row, 4, (uint64_t)q->used_space);
	pb_number(&w->row, 5, (uint64_t)q->used_inodes);
	pb_number(&w->row, 6, (uint64_t)q->kind);
	pb_message(&w->batch, batch[q->kind], &w->row);
	w->rows++;
	return 0;
}

static int put_quotas(struct writer *w)
{
	struct cfs_ctx ctx = cfs_ctx_internal(60000);
	int r = cfs_meta_each_quota(w->d->meta, &ctx, add_quota, w);

	return r ? r : flush(w, PB_QUOTA);
}

static int put_setting(struct writer *w)
{
	pb_bytes(&w->batch, 1, w->d->setting, strlen(w->d->setting));
	w->rows = 1;
	return flush(w, PB_FORMAT);
}

static int put_footer(struct writer *w)
{
	struct pb footer = {0}, entry = {0}, info = {0};
	uint8_t number[8];
	uint64_t start;
	size_t i;
	int r;

	cfs_put_be32(number, PB_MAGIC);
	r = put(w, number, 4);
	pb_number(&footer, 1, PB_MAGIC);
	pb_number(&footer, 2, PB_VERSION);
	for (i = 0; i <= PB_CHANGELOG; i++) {
		if (!w->where[i].offsets.n)
			continue;
		entry.n = info.n = 0;
		pb_message(&info, 1, &w->where[i].offsets);
		pb_number(&info, 2, w->where[i].rows);
		pb_bytes(&entry, 1, names[i], strlen(names[i]));
		pb_message(&entry, 2, &info);
		pb_message(&footer, 3, &entry);
	}
	start = w->at;
	if (!r && footer.failed)
		r = -ENOMEM;
	if (!r)
		r = put(w, footer.v, footer.n);
	cfs_put_be64(number, w->at - start);
	if (!r)
		r = put(w, number, 8);
	pb_free(&footer);
	pb_free(&entry);
	pb_free(&info);
	return r;
}

int dump_binary(struct dump *d)
{
	struct writer w = {.d = d};
	size_t i;
	int r = put_setting(&w);

	for (i = 0; i < CFS_ARRAY_SIZE(parts) && !r; i++) {
		w.part = &parts[i];
		r = cfs_meta_scan(d->meta, w.part->table, add_row, &w);
		if (!r)
			r = flush(&w, w.part->segment) ?: flush_empty(&w);
	}
	if (!r)
		r = put_quotas(&w);
	if (!r)
		r = put_footer(&w);
	pb_free(&w.batch);
	pb_free(&w.empty);
	pb_free(&w.row);
	for (i = 0; i <= PB_CHANGELOG; i++)
		pb_free(&w.where[i].offsets);
	free(w.records);
	return r;
}
