/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commits of several files in one round trip: a transaction whose statements each change the rows of
 * all files. MariaDB gets them as one compound statement (compound.c), other servers as a
 * multi-statement query (multi.c). Values are put into the text; bytes in hexadecimal.
 *
 * One file that the statements do not handle makes the whole group fail, and the commits are made one
 * by one.
 *
 * The SQL is not that of a single commit (batch-texts.h): each form costs the server more than twice
 * as much in the place of the other (docs/performance.md).
 */
#include <errno.h>
#include <inttypes.h>
#include <mysqld_error.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "mysql-internal.h"

/* Columns of the two answers: the inode, then the length before; or {NODE} after, and the list's. */
enum { INODE, OLD_LENGTH, OLD_COLUMNS, NODE = 1, LIST_BYTES = NODE + SQL_NODE_COLUMNS, COLUMNS };

/* ---- the text ---- */

static void put_value(FILE *f, bool given, int64_t value, const char *column)
{
	if (given)
		fprintf(f, "%" PRId64 " %s", value, column);
	else
		fprintf(f, "NULL %s", column);
}

/* The table v of the files: x chunk, e end of the written range; NULL: unchanged. */
static void put_files(FILE *f, const struct sql_group *g)
{
	static const struct cfs_attr_change none;

	for (size_t i = 0; i < g->n; i++) {
		const struct cfs_commit *k = g->v[i].req;
		const struct cfs_attr_change *t = k->attrs ? k->attrs : &none;
		uint64_t end = ((uint64_t)k->indx << CFS_CHUNK_BITS) + k->slice.pos + k->slice.len;

		fprintf(f,
			"%sSELECT %" PRIu64 " i,%u x,%" PRIu64 " e,%" PRId64 " m,%" PRId64 " mn,",
			i ? " UNION ALL " : "(", k->ino, k->indx, end, (int64_t)sql_us(k->mtime),
			(int64_t)sql_sub_us(k->mtime));
		put_value(f, t->set & CFS_SET_MODE, t->mode, "p,");
		put_value(f, t->set & CFS_SET_UID, t->uid, "u,");
		put_value(f, t->set & CFS_SET_GID, t->gid, "g,");
		put_value(f, t->set & CFS_SET_ATIME, sql_us(t->atime), "a,");
		put_value(f, t->set & CFS_SET_ATIME, sql_sub_us(t->atime), "an");
	}
	fputs(") v", f);
}

static void put_inodes(FILE *f, const struct sql_group *g)
{
	for (size_t i = 0; i < g->n; i++)
		fprintf(f, "%s%" PRIu64, i ? "," : "(", g->v[i].req->ino);
	fputc(')', f);
}

static void put_records(FILE *f, const struct sql_group *g)
{
	fputs("INSERT INTO {chunk}(inode,indx,slices) VALUES", f);
	for (size_t i = 0; i < g->n; i++) {
		const struct cfs_commit *k = g->v[i].req;
		uint8_t record[CFS_SLICE_BYTES];

		cfs_slice_encode(&k->slice, record);
		fprintf(f, "%s(%" PRIu64 ",%u,x'", i ? "," : "", k->ino, k->indx);
		for (size_t b = 0; b < sizeof(record); b++)
			fprintf(f, "%02x", record[b]);
		fputs("')", f);
	}
	fputs(" ON DUPLICATE KEY UPDATE slices=slices||VALUES(slices);"
	      "INSERT INTO {chunk_ref}(chunkid,size,refs) VALUES",
	      f);
	for (size_t i = 0; i < g->n; i++)
		fprintf(f, "%s(%" PRIu64 ",%u,1)", i ? "," : "", g->v[i].req->slice.id,
			g->v[i].req->slice.size);
	fputc(';', f);
}

/* Rows are locked in the order of inodes, so that two groups do not deadlock. */
static void put_statements(FILE *f, bool compound, const struct cfs_ctx *ctx,
			   const struct sql_group *g)
{
	fputs(compound ? "BEGIN NOT ATOMIC "
			 "DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;"
			 "BEGIN START TRANSACTION READ WRITE;"
		       : "START TRANSACTION;",
	      f);
	fputs("SELECT inode,length FROM {node} FORCE INDEX(PRIMARY) WHERE inode IN", f);
	put_inodes(f, g);
	fputs(" ORDER BY inode FOR UPDATE;UPDATE ", f);
	put_files(f, g);
	fprintf(f,
		" STRAIGHT_JOIN {node} n FORCE INDEX(PRIMARY) ON n.inode=v.i SET "
		"n.length=GREATEST(n.length,v.e),n.mtime=v.m,n.mtimensec=v.mn,n.ctime=%" PRId64
		",n.ctimensec=%" PRId64 ",n.mode=COALESCE(v.p,n.mode),n.uid=COALESCE(v.u,n.uid),"
		"n.gid=COALESCE(v.g,n.gid),n.atime=COALESCE(v.a,n.atime),"
		"n.atimensec=COALESCE(v.an,n.atimensec) WHERE n.type=1 AND "
		"(n.length>=v.e OR COALESCE(n.parent,0)<>0) AND "
		"(v.p IS NULL OR COALESCE(n.access_acl_id,0)=0);",
		(int64_t)sql_us(ctx->now), (int64_t)sql_sub_us(ctx->now));
	fprintf(f,
		compound ? "IF ROW_COUNT()<>%zu THEN SIGNAL SQLSTATE '45000'; END IF;"
			 : "SET @c=18446744073709551615+(ROW_COUNT()<>%zu);",
		g->n);
	put_records(f, g);
	fputs("SELECT n.inode,{NODE},LENGTH(c.slices) FROM ", f);
	put_files(f, g);
	fputs(" STRAIGHT_JOIN {node} n ON n.inode=v.i "
	      "STRAIGHT_JOIN {chunk} c ON c.inode=v.i AND c.indx=v.x;",
	      f);
	fputs(compound ? "{STILL_IN}COMMIT; END; END" : "COMMIT", f);
}

static char *group_text(struct mysql_conn *m, const struct cfs_ctx *ctx, const struct sql_group *g)
{
	char *text = NULL, *full = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);

	if (!f)
		return NULL;
	put_statements(f, m->way == MYSQL_COMPOUND, ctx, g);
	if (!fclose(f))
		full = sql_expand(&m->sql, text);
	free(text);
	return full;
}

/* ---- the answers ---- */

struct answer {
	struct sql_group *g;
	uint64_t old_length[CFS_COMMITS_MAX];
	size_t n_rows; /* of files that have come */
};

static void take_row(struct mysql_conn *m, struct answer *a, const int64_t *row, unsigned columns)
{
	struct sql_commit *k;
	size_t i;

	for (i = 0; i < a->g->n && a->g->v[i].req->ino != (cfs_ino_t)row[INODE]; i++)
		;
	if (i == a->g->n)
		return;
	if (columns == OLD_COLUMNS) {
		a->old_length[i] = (uint64_t)row[OLD_LENGTH];
		return;
	}
	k = &a->g->v[i];
	sql_node_row(row + NODE, &k->attr);
	k->records = (unsigned)(row[LIST_BYTES] / CFS_SLICE_BYTES);
	/* Cannot fail: a growing file has one parent here. */
	(void)sql_usage_length(&m->sql, k->req->ino, &k->attr, a->old_length[i], &k->usage);
	a->n_rows++;
}

static int take_rows(struct mysql_conn *m, MYSQL_RES *rows, void *arg)
{
	unsigned columns = rows ? mysql_num_fields(rows) : 0, i;
	int64_t row[COLUMNS];
	MYSQL_ROW v;

	while (columns && columns <= COLUMNS && (v = mysql_fetch_row(rows))) {
		for (i = 0; i < columns; i++)
			row[i] = v[i] ? strtoll(v[i], NULL, 10) : 0;
		take_row(m, arg, row, columns);
	}
	return 0;
}

/* As mysql_batch_run. */
static int run(struct mysql_conn *m, const char *text, struct answer *a)
{
	unsigned unfit = m->way == MYSQL_COMPOUND ? ER_SIGNAL_EXCEPTION : ER_DATA_OUT_OF_RANGE;
	int r = mysql_send_text(m, text, strlen(text), take_rows, a);
	unsigned code = r ? mysql_errno(m->handle) : 0;

	if (code == unfit)
		return 0;
	if (code)
		return mysql_error_of(m, code, mysql_error(m->handle), "group of commits");
	/* The server has stopped before COMMIT without an error, or the outcome is not known. */
	if (r || m->handle->server_status & SERVER_STATUS_IN_TRANS || a->n_rows != a->g->n)
		return -ENOTCONN;
	return MYSQL_DONE;
}

static int commit_once(struct mysql_conn *m, const struct cfs_ctx *ctx, void *arg)
{
	struct answer a = {.g = arg};
	char *text;
	int r;

	if (m->tidb)
		return 0;
	text = group_text(m, ctx, arg);
	if (!text)
		return -ENOMEM;
	r = mysql_batch_end(m, run(m, text, &a));
	free(text);
	/* No commit was made. One by one, they hold fewer locks at a time. */
	return r == -EAGAIN ? 0 : r;
}

static int run_group(struct sql_db *db, const struct cfs_ctx *ctx, struct sql_group *g)
{
	int r = mysql_batch(db, ctx, CFS_META_OP_write, commit_once, NULL, g, sizeof(*g));

	/* After -EINPROGRESS the caller asks find_commit for each. */
	return r > 0 ? 0 : r ? r : -EAGAIN;
}

size_t mysql_op_commit_group(struct cfs_engine *e, const struct cfs_ctx *ctx,
			     struct cfs_commit *const *commits, size_t n, struct cfs_committed *ret)
{
	return sql_commit_group(e, ctx, commits, n, ret, run_group);
}
