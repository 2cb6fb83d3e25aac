/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the rows of a dump to a volume that no client uses yet; trims the changelog. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "meta/redis/ops.h"

static void put_chunk(struct rds_request *q, const struct cfs_row *row)
{
	uint8_t record[CFS_SLICE_BYTES];
	size_t i;

	rds_command(q, "sc", "DEL", row->ino, row->list.indx);
	if (!row->list.n)
		return;
	rds_command_begin(q, 2 + row->list.n);
	rds_words(q, "sc", "RPUSH", row->ino, row->list.indx);
	for (i = 0; i < row->list.n; i++) {
		cfs_slice_encode(&row->list.slices[i], record);
		rds_words(q, "b", record, sizeof(record));
	}
}

static void put_counter(struct rds_request *q, const struct cfs_row *row)
{
	int64_t shift;
	const char *key = rds_counter_key(row->counter.name, &shift);

	rds_command(q, "sKi", "SET", key, row->counter.value - shift);
}

static void put_stat(struct rds_request *q, const struct cfs_row *row)
{
	rds_command(q, "sKui", "HSET", "dirDataLength", row->ino, row->stat.length);
	rds_command(q, "sKui", "HSET", "dirUsedSpace", row->ino, row->stat.space);
	rds_command(q, "sKui", "HSET", "dirUsedInodes", row->ino, row->stat.inodes);
}

/* Adds the commands of one row, all idempotent. */
static int put_row(struct rds_request *q, enum cfs_meta_table table, const struct cfs_row *row)
{
	uint8_t buf[CFS_ATTR_BYTES_MAX];
	char text[48];
	size_t len;

	switch (table) {
	case CFS_TABLE_NODE:
		len = cfs_attr_encode(&row->attr, buf);
		rds_command(q, "skb", "SET", "i", row->ino, buf, len);
		return 0;
	case CFS_TABLE_EDGE:
		rds_entry_encode(row->edge.type, row->ino, buf);
		rds_command(q, "skbb", "HSET", "d", row->edge.parent, row->edge.name,
			    row->edge.name_len, buf, (size_t)9);
		return 0;
	case CFS_TABLE_CHUNK:
		put_chunk(q, row);
		return 0;
	case CFS_TABLE_DELFILE:
		snprintf(text, sizeof(text), "%" PRIu64 ":%" PRIu64, row->ino, row->deleted.length);
		rds_command(q, "sKis", "ZADD", "delfiles", row->deleted.when_s, text);
		return 0;
	case CFS_TABLE_SUSTAINED:
		rds_command(q, "sku", "SADD", "session", row->sid, row->ino);
		return 0;
	case CFS_TABLE_DIR_STAT:
		put_stat(q, row);
		return 0;
	case CFS_TABLE_SYMLINK:
		rds_command(q, "skb", "SET", "s", row->ino, row->symlink.target, row->symlink.len);
		return 0;
	case CFS_TABLE_XATTR:
		rds_command(q, "skbb", "HSET", "x", row->ino, row->xattr.name, row->xattr.name_len,
			    row->xattr.value, row->xattr.value_len);
		return 0;
	case CFS_TABLE_PARENT:
		rds_command(q, "skuu", "HSET", "p", row->ino, row->parent.dir,
			    (uint64_t)row->parent.names);
		return 0;
	case CFS_TABLE_ACL:
		rds_command(q, "sKub", "HSET", "acl", (uint64_t)row->acl.id, row->acl.rule,
			    row->acl.len);
		return 0;
	case CFS_TABLE_COUNTER:
		put_counter(q, row);
		return 0;
	default:
		return -EINVAL;
	}
}

static int put_refs(struct cfs_engine *e, const struct cfs_ctx *ctx, const struct cfs_row *rows,
		    size_t n)
{
	RDS_REQUEST(q, e);
	size_t i;

	rds_script_begin(&q, ctx, &rds_put_refs_lua, 3 * n);
	for (i = 0; i < n; i++)
		rds_words(&q, "uui", rows[i].ref.id, (uint64_t)rows[i].ref.size, rows[i].ref.refs);
	return rds_script_run(&q, ctx, CFS_META_OP_other, NULL);
}

/* Raises the counter of rule ids above the loaded ids. */
static int raise_acl_id(struct rds_request *q, const struct cfs_ctx *ctx,
			const struct cfs_row *rows, size_t n)
{
	uint64_t max = 0;
	size_t i;
	int r;

	rds_reset(q);
	rds_command(q, "sK", "GET", "aclMaxId");
	r = rds_run(q, ctx, CFS_META_OP_other);
	if (r)
		return r;
	max = (uint64_t)rds_int(q->reply[0]);
	for (i = 0; i < n; i++)
		if (rows[i].acl.id > max)
			max = rows[i].acl.id;
	rds_reset(q);
	rds_command(q, "sKu", "SET", "aclMaxId", max);
	return rds_run(q, ctx, CFS_META_OP_other);
}

int rds_op_put_rows(struct cfs_engine *e, const struct cfs_ctx *ctx, enum cfs_meta_table table,
		    const struct cfs_row *rows, size_t n)
{
	enum { ONE_SCRIPT = 1000 };
	RDS_REQUEST(q, e);
	size_t i;
	int r = 0;

	if (rds_of(e)->read_only)
		return -EROFS;
	if (table == CFS_TABLE_REF) {
		for (i = 0; i < n && !r; i += ONE_SCRIPT)
			r = put_refs(e, ctx, rows + i, n - i < ONE_SCRIPT ? n - i : ONE_SCRIPT);
		return r;
	}
	for (i = 0; i < n && !r; i++)
		r = put_row(&q, table, &rows[i]);
	if (!r && q.n)
		r = rds_run(&q, ctx, CFS_META_OP_other);
	if (!r && table == CFS_TABLE_ACL)
		r = raise_acl_id(&q, ctx, rows, n);
	return r;
}

/* ---- changelog housekeeping ---- */

int rds_op_trim_changelog(struct cfs_engine *e, const struct cfs_ctx *ctx, int64_t before_s,
			  int64_t max_lines)
{
	RDS_REQUEST(q, e);
	int r;

	do
		r = rds_script(&q, ctx, CFS_META_OP_other, &rds_trim_changelog_lua, NULL, "iii",
			       before_s, max_lines, (int64_t)1000);
	while (r == 1 && !cfs_deadline_passed(ctx->deadline));
	return r < 0 ? r : 0;
}
