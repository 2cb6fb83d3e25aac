/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the tables of the volume once, into files that find rows by inode. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/bytes.h"
#include "cmd/dump/dump-json.h"

static int add_node(void *arg, const struct cfs_row *row)
{
	struct json *j = arg;
	uint8_t attr[CFS_ATTR_BYTES_MAX];

	progress_add(&j->d->p, 1);
	j->d->inodes++;
	return heap_add(j->heaps[NODES], row->ino, 0, attr, cfs_attr_encode(&row->attr, attr));
}

static int add_edge(void *arg, const struct cfs_row *row)
{
	uint8_t rec[EDGE_HEAD + CFS_NAME_MAX] = {0};
	struct json *j = arg;
	size_t len = CFS_MIN(row->edge.name_len, (size_t)CFS_NAME_MAX);

	progress_add(&j->d->p, 1);
	cfs_put_be64(rec, row->ino);
	rec[8] = row->edge.type;
	memcpy(rec + EDGE_HEAD, row->edge.name, len);
	/*
	 * The key sorts entries by the first four bytes of the name; the order of the rest is
	 * arbitrary.
	 */
	return heap_add(j->heaps[EDGES], row->edge.parent, cfs_get_be32(rec + EDGE_HEAD), rec,
			EDGE_HEAD + len);
}

static int add_chunk(void *arg, const struct cfs_row *row)
{
	struct json *j = arg;
	size_t i, len = row->list.n * CFS_SLICE_BYTES;
	int r = row->list.damaged ? dump_damaged(j->d, row)
				  : CFS_ARRAY_RESERVE(j->buf, CHUNK_HEAD + len, j->buf_cap);

	if (r)
		return r;
	progress_add(&j->d->p, 1);
	cfs_put_be32(j->buf, row->list.indx);
	for (i = 0; i < row->list.n; i++)
		cfs_slice_encode(&row->list.slices[i], j->buf + CHUNK_HEAD + i * CFS_SLICE_BYTES);
	return heap_add(j->heaps[CHUNKS], row->ino, row->list.indx, j->buf, CHUNK_HEAD + len);
}

static int add_symlink(void *arg, const struct cfs_row *row)
{
	struct json *j = arg;

	return heap_add(j->heaps[SYMLINKS], row->ino, 0, row->symlink.target, row->symlink.len);
}

static int add_xattr(void *arg, const struct cfs_row *row)
{
	struct json *j = arg;
	char name[CFS_NAME_MAX + 1];
	size_t name_len = dump_xattr_name(j->d, row, name), value_len = row->xattr.value_len;

	if (CFS_ARRAY_RESERVE(j->buf, 2 + name_len + value_len, j->buf_cap) < 0)
		return -ENOMEM;
	cfs_put_be16(j->buf, (uint16_t)name_len);
	memcpy(j->buf + 2, name, name_len);
	if (value_len)
		memcpy(j->buf + 2 + name_len, row->xattr.value, value_len);
	return heap_add(j->heaps[XATTRS], row->ino, 0, j->buf, 2 + name_len + value_len);
}

static int add_rule(void *arg, const struct cfs_row *row)
{
	struct json *j = arg;

	return rulelist_add(&j->rules, row->acl.id, row->acl.rule, row->acl.len);
}

static int add_counter(void *arg, const struct cfs_row *row)
{
	struct json *j = arg;
	const char *name = row->counter.name;
	enum dump_counter c = dump_counter_find(dump_counter_names, name, strlen(name));

	if (c < COUNTER_COUNT)
		j->counters[c] = row->counter.value;
	return 0;
}

int json_read_tables(struct json *j)
{
	static const struct {
		enum cfs_meta_table table;
		cfs_row_fn fn;
	} tables[] = {
		/* The order is that of the binary dump, for the same reasons (dump-binary.c). */
		{CFS_TABLE_COUNTER, add_counter}, {CFS_TABLE_EDGE, add_edge},
		{CFS_TABLE_NODE, add_node},	  {CFS_TABLE_CHUNK, add_chunk},
		{CFS_TABLE_SYMLINK, add_symlink}, {CFS_TABLE_XATTR, add_xattr},
		{CFS_TABLE_ACL, add_rule},
	};
	size_t i;
	int r = 0;

	for (i = 0; i < HEAPS && !r; i++)
		r = heap_create(&j->heaps[i]);
	for (i = 0; i < CFS_ARRAY_SIZE(tables) && !r; i++)
		r = cfs_meta_scan(j->d->meta, tables[i].table, tables[i].fn, j);
	for (i = 0; i < HEAPS && !r; i++)
		r = heap_seal(j->heaps[i]);
	rulelist_sort(&j->rules);
	return r;
}
