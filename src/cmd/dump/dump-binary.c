/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the binary dump: every table once, in segments of bounded size. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "cmd/dump/dump.h"
#include "cmd/dump/dumpnames.h"
#include "cmd/dump/wire.h"

enum { SEGMENT_BYTES = 1 << 20 };

struct where {
	struct wire offsets; /* packed varints */
	uint64_t rows;
};

struct writer {
	struct dump *d;
	uint64_t at; /* in the dump, before compression */
	const struct part *part;
	struct wire batch, row;
	uint64_t rows; /* in batch */
	struct where where[WIRE_CHANGELOG + 1];
	uint8_t *records;
	size_t cap;
};

static int put(struct writer *w, const void *p, size_t len)
{
	w->at += len;
	return stream_write(w->d->out, p, len);
}

static int put_segment(struct writer *w, enum wire_segment type, const struct wire *m,
		       uint64_t rows)
{
	uint8_t head[12];
	int r;

	if (m->failed)
		return -ENOMEM;
	wire_varint(&w->where[type].offsets, w->at);
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

	if (len > w->cap) {
		uint8_t *p = realloc(w->records, len);

		if (!p)
			return -ENOMEM;
		w->records = p;
		w->cap = len;
	}
	for (i = 0; i < row->list.n; i++)
		cfs_slice_encode(&row->list.slices[i], w->records + i * CFS_SLICE_BYTES);
	*ret_len = len;
	return 0;
}

static int node(struct writer *w, const struct cfs_row *row)
{
	uint8_t attr[CFS_ATTR_BYTES_MAX];

	wire_number(&w->row, 1, row->ino);
	wire_bytes(&w->row, 2, attr, cfs_attr_encode(&row->attr, attr));
	w->d->inodes++;
	return 1;
}

static int edge(struct writer *w, const struct cfs_row *row)
{
	wire_number(&w->row, 1, row->edge.parent);
	wire_number(&w->row, 2, row->ino);
	wire_bytes(&w->row, 3, row->edge.name, row->edge.name_len);
	wire_number(&w->row, 4, row->edge.type);
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
	wire_number(&w->row, 1, row->ino);
	wire_number(&w->row, 2, row->list.indx);
	wire_bytes(&w->row, 3, w->records, len);
	return 1;
}

static int ref(struct writer *w, const struct cfs_row *row)
{
	if (row->ref.refs == 1) /* a chunk's record says as much */
		return 0;
	wire_number(&w->row, 1, row->ref.id);
	wire_number(&w->row, 2, row->ref.size);
	wire_number(&w->row, 3, (uint64_t)row->ref.refs);
	return 1;
}

static int delfile(struct writer *w, const struct cfs_row *row)
{
	wire_number(&w->row, 1, row->ino);
	wire_number(&w->row, 2, row->deleted.length);
	wire_number(&w->row, 3, (uint64_t)row->deleted.when_s);
	return 1;
}

static int sustained(struct writer *w, const struct cfs_row *row)
{
	struct wire inodes = {0};

	wire_varint(&inodes, row->ino);
	wire_number(&w->row, 1, row->sid);
	wire_message(&w->row, 2, &inodes);
	wire_free(&inodes);
	return 1;
}

static int dir_stat(struct writer *w, const struct cfs_row *row)
{
	wire_number(&w->row, 1, row->ino);
	wire_number(&w->row, 2, (uint64_t)row->stat.length);
	wire_number(&w->row, 3, (uint64_t)row->stat.space);
	wire_number(&w->row, 4, (uint64_t)row->stat.inodes);
	return 1;
}

static int symlink_row(struct writer *w, const struct cfs_row *row)
{
	wire_number(&w->row, 1, row->ino);
	wire_bytes(&w->row, 2, row->symlink.target, row->symlink.len);
	return 1;
}

static int xattr(struct writer *w, const struct cfs_row *row)
{
	wire_number(&w->row, 1, row->ino);
	wire_bytes(&w->row, 2, row->xattr.name, row->xattr.name_len);
	wire_bytes(&w->row, 3, row->xattr.value, row->xattr.value_len);
	return 1;
}

static int parent(struct writer *w, const struct cfs_row *row)
{
	wire_number(&w->row, 1, row->ino);
	wire_number(&w->row, 2, row->parent.dir);
	wire_number(&w->row, 3, row->parent.names);
	return 1;
}

static int acl(struct writer *w, const struct cfs_row *row)
{
	wire_number(&w->row, 1, row->acl.id);
	wire_bytes(&w->row, 2, row->acl.rule, row->acl.len);
	return 1;
}

static int counter(struct writer *w, const struct cfs_row *row)
{
	size_t len = strlen(row->counter.name);

	if (dump_counter_find(dump_counter_names, row->counter.name, len) == COUNTER_COUNT)
		return 0;
	wire_bytes(&w->row, 1, row->counter.name, len);
	wire_number(&w->row, 2, (uint64_t)row->counter.value);
	return 1;
}

/*
 * The order matters on a volume in use: inodes are read after the names that lead to them, and the
 * data of a file after its length.
 */
static const struct part {
	enum wire_segment segment;
	enum wire_batch batch;
	enum cfs_meta_table table;
	int (*encode)(struct writer *w, const struct cfs_row *row); /* 1, 0: left out */
} parts[] = {
	{WIRE_COUNTER, BATCH_COUNTERS, CFS_TABLE_COUNTER, counter},
	{WIRE_EDGE, BATCH_EDGES, CFS_TABLE_EDGE, edge},
	{WIRE_NODE, BATCH_NODES, CFS_TABLE_NODE, node},
	{WIRE_CHUNK, BATCH_CHUNKS, CFS_TABLE_CHUNK, chunk},
	{WIRE_PARENT, BATCH_PARENTS, CFS_TABLE_PARENT, parent},
	{WIRE_SYMLINK, BATCH_SYMLINKS, CFS_TABLE_SYMLINK, symlink_row},
	{WIRE_SUSTAINED, BATCH_SUSTAINED, CFS_TABLE_SUSTAINED, sustained},
	{WIRE_DELFILE, BATCH_DELFILES, CFS_TABLE_DELFILE, delfile},
	{WIRE_REF, BATCH_REFS, CFS_TABLE_REF, ref},
	{WIRE_ACL, BATCH_ACLS, CFS_TABLE_ACL, acl},
	{WIRE_XATTR, BATCH_XATTRS, CFS_TABLE_XATTR, xattr},
	{WIRE_STAT, BATCH_STATS, CFS_TABLE_DIR_STAT, dir_stat},
};

static const char *const names[WIRE_CHANGELOG + 1] = {
	[WIRE_FORMAT] = "format",
	[WIRE_COUNTER] = "counter",
	[WIRE_NODE] = "node",
	[WIRE_EDGE] = "edge",
	[WIRE_CHUNK] = "chunk",
	[WIRE_REF] = "sliceRef",
	[WIRE_SYMLINK] = "symlink",
	[WIRE_SUSTAINED] = "sustained",
	[WIRE_DELFILE] = "delFile",
	[WIRE_XATTR] = "xattr",
	[WIRE_ACL] = "acl",
	[WIRE_STAT] = "stat",
	[WIRE_QUOTA] = "quota",
	[WIRE_PARENT] = "parent",
	[WIRE_CHANGELOG] = "changeLog",
};

static int flush(struct writer *w, enum wire_segment type)
{
	int r = w->rows ? put_segment(w, type, &w->batch, w->rows) : 0;

	w->batch.n = 0;
	w->rows = 0;
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
	wire_message(&w->batch, w->part->batch, &w->row);
	w->rows++;
	return w->batch.n >= SEGMENT_BYTES ? flush(w, w->part->segment) : 0;
}

static int add_quota(void *arg, const struct cfs_quota *q)
{
	static const enum wire_batch batch[] = {
		[CFS_QUOTA_DIR] = BATCH_QUOTAS,
		[CFS_QUOTA_USER] = BATCH_USER_QUOTAS,
		[CFS_QUOTA_GROUP] = BATCH_GROUP_QUOTAS,
	};
	struct writer *w = arg;

	w->row.n = 0;
	wire_number(&w->row, 1, q->key);
	wire_number(&w->row, 2, (uint64_t)q->max_space);
	wire_number(&w->row, 3, (uint64_t)q->max_inodes);
	wire_number(&w->row, 4, (uint64_t)q->used_space);
	wire_number(&w->row, 5, (uint64_t)q->used_inodes);
	wire_number(&w->row, 6, (uint64_t)q->kind);
	wire_message(&w->batch, batch[q->kind], &w->row);
	w->rows++;
	return 0;
}

static int put_quotas(struct writer *w)
{
	struct cfs_ctx ctx = cfs_ctx_internal(60000);
	int r = cfs_meta_each_quota(w->d->meta, &ctx, add_quota, w);

	return r ? r : flush(w, WIRE_QUOTA);
}

static int put_setting(struct writer *w)
{
	wire_bytes(&w->batch, 1, w->d->setting, strlen(w->d->setting));
	w->rows = 1;
	return flush(w, WIRE_FORMAT);
}

static int put_footer(struct writer *w)
{
	struct wire footer = {0}, entry = {0}, info = {0};
	uint8_t number[8];
	uint64_t start;
	size_t i;
	int r;

	cfs_put_be32(number, WIRE_MAGIC);
	r = put(w, number, 4);
	wire_number(&footer, 1, WIRE_MAGIC);
	wire_number(&footer, 2, WIRE_VERSION);
	for (i = 0; i <= WIRE_CHANGELOG; i++) {
		if (!w->where[i].offsets.n)
			continue;
		entry.n = info.n = 0;
		wire_message(&info, 1, &w->where[i].offsets);
		wire_number(&info, 2, w->where[i].rows);
		wire_bytes(&entry, 1, names[i], strlen(names[i]));
		wire_message(&entry, 2, &info);
		wire_message(&footer, 3, &entry);
	}
	start = w->at;
	if (!r && footer.failed)
		r = -ENOMEM;
	if (!r)
		r = put(w, footer.v, footer.n);
	cfs_put_be64(number, w->at - start);
	if (!r)
		r = put(w, number, 8);
	wire_free(&footer);
	wire_free(&entry);
	wire_free(&info);
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
			r = flush(&w, w.part->segment);
	}
	if (!r)
		r = put_quotas(&w);
	if (!r)
		r = put_footer(&w);
	wire_free(&w.batch);
	wire_free(&w.row);
	for (i = 0; i <= WIRE_CHANGELOG; i++)
		wire_free(&w.where[i].offsets);
	free(w.records);
	return r;
}
