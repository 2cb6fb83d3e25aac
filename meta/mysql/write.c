/* SPDX-License-Identifier: Apache-2.0 */
/* Commits a slice in one round trip. */
#include <errno.h>

#include "mysql-internal.h"

/* Columns of the batch's answer. */
enum { OLD_LENGTH, NODE, LIST_BYTES = NODE + SQL_NODE_COLUMNS, COLUMNS };

static int run_batch(struct mysql_conn *m, const struct cfs_ctx *ctx, const struct cfs_commit *k,
		     int64_t row[COLUMNS])
{
	const struct cfs_attr_change *t = k->attrs;
	const struct cfs_slice *s = &k->slice;
	int64_t end = ((int64_t)k->indx << CFS_CHUNK_BITS) + s->pos + s->len;
	uint8_t record[CFS_SLICE_BYTES];

	cfs_slice_encode(s, record);
	if (!t)
		return mysql_batch_run(
			m, MYSQL_BATCH_write, row, COLUMNS,
			SQL_PARAMS(SQL_I(k->ino), SQL_I(k->indx), SQL_I(s->id), SQL_I(end),
				   SQL_I(sql_us(k->mtime)), SQL_I(sql_sub_us(k->mtime)),
				   SQL_I(sql_us(ctx->now)), SQL_I(sql_sub_us(ctx->now)),
				   SQL_B(record, sizeof(record)), SQL_I(s->size)));
	return mysql_batch_run(
		m, MYSQL_BATCH_write_attrs, row, COLUMNS,
		SQL_PARAMS(SQL_I(k->ino), SQL_I(k->indx), SQL_I(s->id), SQL_I(end),
			   SQL_I(!!(t->set & CFS_SET_MODE)), SQL_I(!!(t->set & CFS_SET_ATIME)),
			   SQL_I(sql_us(k->mtime)), SQL_I(sql_sub_us(k->mtime)),
			   SQL_I(sql_us(ctx->now)), SQL_I(sql_sub_us(ctx->now)), SQL_I(t->mode),
			   SQL_I(!!(t->set & CFS_SET_UID)), SQL_I(t->uid),
			   SQL_I(!!(t->set & CFS_SET_GID)), SQL_I(t->gid), SQL_I(sql_us(t->atime)),
			   SQL_I(sql_sub_us(t->atime)), SQL_B(record, sizeof(record)),
			   SQL_I(s->size)));
}

static int commit_once(struct mysql_conn *m, const struct cfs_ctx *ctx, void *arg)
{
	struct sql_commit *a = arg;
	int64_t row[COLUMNS];
	int r;

	r = sql_prepare_commit(&m->sql, a);
	if (!r)
		r = run_batch(m, ctx, a->req, row);
	if (r <= 0)
		return r;
	sql_node_row(row + NODE, &a->attr);
	a->records = (unsigned)(row[LIST_BYTES] / CFS_SLICE_BYTES);
	/*
	 * Cannot fail: a growing file has one parent here, as one with several names takes the
	 * generic transaction.
	 */
	(void)sql_usage_length(&m->sql, a->req->ino, &a->attr, (uint64_t)row[OLD_LENGTH],
			       &a->usage);
	return 1;
}

int mysql_op_commit_slice(struct cfs_engine *e, const struct cfs_ctx *ctx, struct cfs_commit *c,
			  unsigned *ret_records, struct cfs_usage *ret_usage)
{
	struct sql_commit a = {.req = c};
	int r = 0;

	if (!cfs_rules_record(c->indx, &c->slice))
		r = mysql_batch(sql_db(e), ctx, CFS_META_OP_write, commit_once, NULL, &a,
				sizeof(a));
	if (!r)
		return sql_op_commit_slice(e, ctx, c, ret_records, ret_usage);
	if (r < 0)
		return r; /* the caller asks find_commit after -EINPROGRESS */
	return sql_committed(sql_db(e), &a, ret_records, ret_usage);
}
