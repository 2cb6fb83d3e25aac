/* SPDX-License-Identifier: Apache-2.0 */
/* The PostgreSQL dialect: the numbered statements of meta/sql over the pipeline. */
#include <errno.h>

#include "meta/postgresql/pg-internal.h"

/* Only the texts that differ in PostgreSQL. */
static const char *pg_text(enum sql_stmt_id id)
{
	switch (id) {
	case SQL_clock:
		return "SELECT floor(extract(epoch from clock_timestamp()))::bigint";
	/* A duplicate must not abort the transaction: step() maps 0 rows to -EEXIST. */
	case SQL_put_edge:
		return "INSERT INTO {edge}(parent,name,inode,type) VALUES(?,?,?,?) "
		       "ON CONFLICT(parent,name) DO NOTHING";
	case SQL_new_xattr:
		return "INSERT INTO {xattr}(inode,name,value) VALUES(?,?,?) "
		       "ON CONFLICT(inode,name) DO NOTHING";
	case SQL_chunk_length:
		return "SELECT length(slices) FROM {chunk} WHERE inode=? AND indx=?";
	case SQL_chunk_lengths:
		return "SELECT indx,length(slices) FROM {chunk} WHERE inode=? AND indx>=? "
		       "ORDER BY indx LIMIT ?";
	/* The sum of a BIGINT column is NUMERIC. */
	case SQL_sum_entries:
		return "SELECT COUNT(*),SUM(CASE WHEN n.type=1 THEN n.length ELSE 0 END)::bigint,"
		       "SUM(CASE WHEN n.type=1 AND n.length>0 "
		       "THEN n.length+4095-(n.length+4095)%4096 ELSE 4096 END)::bigint,"
		       "SUM(n.inode%1000003*31+n.ctime%1000003)::bigint "
		       "FROM {edge} e JOIN {node} n ON n.inode=e.inode WHERE e.parent=?";
	case SQL_sum_nodes:
		return "SELECT COUNT(*),SUM(CASE WHEN type=1 AND length>0 "
		       "THEN length+4095-(length+4095)%4096 ELSE 4096 END)::bigint,"
		       "(SELECT value FROM {counter} WHERE name='totalInodes'),"
		       "(SELECT value FROM {counter} WHERE name='usedSpace'),"
		       "SUM(inode%1000003*31+ctime%1000003)::bigint "
		       "FROM {node} WHERE inode<>1 AND inode<>9223372032828243968";
	case SQL_put_acl:
		return "INSERT INTO {acl}(owner,`group`,mask,other,named_users,named_groups) "
		       "VALUES(?,?,?,?,?,?) RETURNING id";
	case SQL_load_acl_end:
		return "SELECT setval(pg_get_serial_sequence('{acl}','id'),MAX(id)) FROM {acl}";
	default:
		return NULL;
	}
}

static struct pg_stmt *stmt_of(struct sql_conn *c, enum sql_stmt_id id)
{
	return pg_conn(c)->stmt[id];
}

static int dialect_prepare(struct sql_conn *c, enum sql_stmt_id id, const char *text)
{
	return pg_prepare(pg_conn(c), id, text);
}

static int bind(struct sql_conn *c, enum sql_stmt_id id, int n, const struct sql_param *p)
{
	pg_bind(stmt_of(c, id), n, p);
	return 0;
}

static void reset(struct sql_conn *c, enum sql_stmt_id id)
{
	struct pg_conn *s = pg_conn(c);
	struct pg_stmt *st = s->stmt[id];

	for (unsigned i = 0; st->asked && i < s->n_queued; i++)
		if (s->queue[i].ret == &st->result)
			s->queue[i].ret = NULL;
	st->asked = false;
	PQclear(st->result);
	st->result = NULL;
}

static int ask(struct sql_conn *c, enum sql_stmt_id id)
{
	struct pg_stmt *st = stmt_of(c, id);
	int r = pg_queue(pg_conn(c), id, true);

	st->asked = !r;
	st->row = -1;
	return r;
}

/*
 * Also fetches the transaction's id with its first answer: it finds the outcome when the answer to
 * COMMIT is lost.
 */
static int execute(struct pg_conn *s)
{
	int r = 0;

	if (s->in_txn && !s->xid) {
		r = pg_prepare(s, PG_XID, "SELECT txid_current()," PG_SERVER);
		if (!r)
			r = pg_queue(s, PG_XID, false);
	}
	return r ? r : pg_exchange(s);
}

static int changes(struct sql_conn *c, enum sql_stmt_id id)
{
	const char *p = PQcmdTuples(stmt_of(c, id)->result);
	int n = 0;

	for (; *p >= '0' && *p <= '9'; p++)
		n = n * 10 + (*p - '0');
	return n;
}

static int step(struct sql_conn *c, enum sql_stmt_id id)
{
	struct pg_conn *s = pg_conn(c);
	struct pg_stmt *st = s->stmt[id];
	int r;

	if (!st->result) {
		r = st->asked ? 0 : ask(c, id);
		if (!r)
			r = execute(s);
		st->asked = false;
		if (r < 0)
			return r;
		if (!st->result)
			return -EIO;
		if ((id == SQL_put_edge || id == SQL_new_xattr) && changes(c, id) == 0)
			return -EEXIST;
		if (id == SQL_put_acl)
			s->insert_id = pg_int(st->result, 0, 0);
	}
	st->asked = false;
	if (st->row + 1 >= PQntuples(st->result))
		return 0;
	st->row++;
	return 1;
}

static int post(struct sql_conn *c, enum sql_stmt_id id)
{
	return pg_queue(pg_conn(c), id, false);
}

static int64_t insert_id(struct sql_conn *c, enum sql_stmt_id id)
{
	return pg_conn(c)->insert_id;
}

static int64_t col_int(struct sql_conn *c, enum sql_stmt_id id, int col)
{
	const struct pg_stmt *st = stmt_of(c, id);

	return pg_int(st->result, st->row, col);
}

static const void *col_bytes(struct sql_conn *c, enum sql_stmt_id id, int col, size_t *ret_len)
{
	const struct pg_stmt *st = stmt_of(c, id);

	*ret_len = (size_t)PQgetlength(st->result, st->row, col);
	return PQgetvalue(st->result, st->row, col);
}

const struct sql_dialect pg_dialect = {
	.name = "postgresql",
	.for_update = " FOR UPDATE",
	.for_share = " FOR KEY SHARE",
	.or_ignore = "",
	.else_ignore = "ON CONFLICT DO NOTHING",
	.text = pg_text,
	.connect = pg_connect,
	.disconnect = pg_disconnect,
	.begin = pg_begin,
	.commit = pg_commit,
	.rollback = pg_rollback,
	.resolve = pg_resolve,
	.end_session = pg_end_session,
	.prepare = dialect_prepare,
	.bind = bind,
	.step = step,
	.ask = ask,
	.post = post,
	.reset = reset,
	.changes = changes,
	.insert_id = insert_id,
	.col_int = col_int,
	.col_bytes = col_bytes,
	.each_column = pg_each_column,
	.has_index = pg_has_index,
	.put_type = pg_put_type,
	.run = pg_run_ddl,
	.begin_ddl = pg_begin_ddl,
	.counts_round_trips = true,
};
