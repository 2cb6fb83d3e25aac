/* SPDX-License-Identifier: Apache-2.0 */
/* Statements on the wire: preparation, the pipeline, errors, transactions. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "meta/postgresql/pg-internal.h"

/* pg_type.dat */
#define OID_BYTEA 17
#define OID_INT8  20
#define OID_TEXT  25

static const char *stmt_name(int id)
{
	static const char *const own[] = {
#define NAME(id, name) name,
		PG_STATEMENTS(NAME)
#undef NAME
	};

	if (id < 0)
		return "-";
	return id < SQL_STMT_COUNT ? sql_stmt_name((enum sql_stmt_id)id) : own[id - SQL_STMT_COUNT];
}

/* The server on which this thread's last transaction got its id. */
static _Thread_local int64_t last_server;

/* ---- errors ---- */

static int sqlstate_error(const char *state, int id)
{
	static const struct {
		const char *prefix;
		int error;
	} map[] = {
		{"40", -EAGAIN},    /* serialization failure, deadlock */
		{"55P03", -EAGAIN}, /* lock not available */
		{"0A000", -EAGAIN}, /* the plan's table has changed */
		{"26000", -EAGAIN}, /* no such prepared statement */
		{"42P05", -EAGAIN}, /* there is such a prepared statement */
		{"57014", -EAGAIN}, /* stopped: statement_timeout, or by hand */
		{"08", -ENOTCONN},     {"57P0", -ENOTCONN}, /* shutdown, starting up, idle for too
							      long */
		{"25006", -ENOTCONN}, /* a standby since a failover: find the primary */
		{"25P0", -ENOTCONN},  /* idle in transaction for too long */
		{"53300", -ENOTCONN}, /* too many connections, at a pooler */
		{"53100", -ENOSPC},    {"53200", -ENOMEM},  {"42501", -EACCES},
		{"22001", -EINVAL},    /* string too long */
		{"22003", -EINVAL},    /* a user id beyond the column's 32 bits */
		{"22021", -EINVAL},    /* bytes that are not text */
		{"22012", PG_UNUSUAL}, /* division by zero, of a statement in a group */
	};

	if (!strcmp(state, "23505"))
		return sql_is_race(id) ? -EAGAIN : -EEXIST;
	for (size_t i = 0; i < CFS_ARRAY_SIZE(map); i++)
		if (!strncmp(state, map[i].prefix, strlen(map[i].prefix)))
			return map[i].error;
	return -EIO;
}

static bool is_expected(int error)
{
	return error == -EAGAIN || error == -EEXIST || error == -ENOTCONN || error == -EINVAL ||
	       error == PG_UNUSUAL;
}

static void forget_named(struct pg_conn *s, const char *state, int id)
{
	struct pg_db *db = pg_db(s->sql.db);

	s->sql.broken = true;
	if (!atomic_exchange(&db->unnamed, true))
		cfs_warn("a pooler between here and the server loses prepared statements, going on "
			 "without: url=%s statement=%s code=%s",
			 db->sql.where, stmt_name(id), state);
}

int pg_error(struct pg_conn *s, const PGresult *result, int id)
{
	const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
	const char *text = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
	int r;

	if (PQstatus(s->handle) == CONNECTION_BAD && !state)
		return -ENOTCONN;
	r = sqlstate_error(state ? state : "", id);
	if (r == -EAGAIN && (!strcmp(state, "26000") || !strcmp(state, "42P05")))
		forget_named(s, state, id);
	else if (r == -EAGAIN && !strcmp(state, "0A000"))
		s->sql.broken = true;
	else if (r == -EAGAIN && !strcmp(state, "57014"))
		cfs_warn("statement stopped by the server, the operation is tried again: url=%s "
			 "statement=%s error=%s",
			 s->sql.db->where, stmt_name(id), text);
	if (!is_expected(r))
		cfs_err("postgresql: statement=%s code=%s error=%s", stmt_name(id),
			state ? state : "-", text ? text : PQerrorMessage(s->handle));
	return r;
}

/* ---- statements ---- */

/* FNV-1a */
static uint64_t hash(const char *text)
{
	uint64_t h = 0xcbf29ce484222325;

	for (; *text; text++)
		h = (h ^ (unsigned char)*text) * 0x100000001b3;
	return h;
}

/* No text has a question mark or a backtick in a literal. */
static char *translate(const char *text)
{
	char *out = NULL;
	size_t size;
	unsigned n = 0;
	FILE *f = open_memstream(&out, &size);

	if (!f)
		return NULL;
	for (; *text; text++) {
		if (*text == '?')
			fprintf(f, "$%u", ++n);
		else
			fputc(*text == '`' ? '"' : *text, f);
	}
	if (fclose(f)) {
		free(out);
		return NULL;
	}
	return out;
}

int pg_prepare(struct pg_conn *s, int id, const char *text)
{
	struct pg_stmt *st = s->stmt[id];

	if (st)
		return 0;
	st = calloc(1, sizeof(*st));
	if (!st)
		return -ENOMEM;
	st->text = translate(text);
	if (!st->text) {
		free(st);
		return -ENOMEM;
	}
	/* The id makes the names of two statements with the same text different. */
	snprintf(st->name, sizeof(st->name), "cfs_%016llx_%d", (unsigned long long)hash(st->text),
		 id);
	s->stmt[id] = st;
	return 0;
}

void pg_free_stmt(struct pg_stmt *st)
{
	if (!st)
		return;
	PQclear(st->result);
	free(st->text);
	free(st);
}

static void bind(struct pg_stmt *st, int n, Oid type, const void *v, size_t len)
{
	st->types[n - 1] = type;
	st->values[n - 1] = v;
	st->lengths[n - 1] = (int)len;
	st->formats[n - 1] = 1;
	if (st->n_params < n)
		st->n_params = n;
}

void pg_bind(struct pg_stmt *st, int n, const struct sql_param *p)
{
	if (p->null) {
		bind(st, n, OID_INT8, NULL, 0);
	} else if (p->is_bytes) {
		bind(st, n, p->is_text ? OID_TEXT : OID_BYTEA, p->len ? p->bytes : "", p->len);
	} else {
		cfs_put_be64(&st->ints[n - 1], (uint64_t)p->num);
		bind(st, n, OID_INT8, &st->ints[n - 1], sizeof(uint64_t));
	}
}

int64_t pg_int(const PGresult *result, int row, int col)
{
	const char *v = PQgetvalue(result, row, col);

	switch (PQgetlength(result, row, col)) {
	case 8:
		return (int64_t)cfs_get_be64(v);
	case 4:
		return (int32_t)cfs_get_be32(v);
	case 2:
		return (int16_t)cfs_get_be16(v);
	case 1:
		return *v;
	default:
		return 0; /* NULL */
	}
}

/* ---- the pipeline ---- */

static int lost(struct pg_conn *s)
{
	s->sql.broken = true;
	return -ENOTCONN;
}

static int push(struct pg_conn *s, int id, PGresult **ret)
{
	if (s->n_queued == PG_QUEUE_MAX)
		return -E2BIG;
	s->queue[s->n_queued++] = (struct pg_queued){.id = id, .ret = ret};
	return 0;
}

/* BEGIN goes with the first statement of a transaction. */
static int begin_if_wanted(struct pg_conn *s)
{
	if (!s->wants_txn)
		return 0;
	s->wants_txn = false;
	s->in_txn = true;
	return pg_queue(s, PG_BEGIN, false);
}

int pg_queue(struct pg_conn *s, int id, bool keep)
{
	return pg_queue_to(s, id, keep ? &s->stmt[id]->result : NULL);
}

int pg_queue_to(struct pg_conn *s, int id, PGresult **ret)
{
	struct pg_stmt *st = s->stmt[id];
	bool named = !atomic_load_explicit(&pg_db(s->sql.db)->unnamed, memory_order_relaxed);
	int r;

	/* Leaves room for BEGIN, the transaction's id and COMMIT. */
	if (s->n_queued > PG_QUEUE_MAX - 8) {
		r = pg_exchange(s);
		if (r < 0)
			return r;
	}
	r = begin_if_wanted(s);
	if (r < 0)
		return r;
	if (!named) {
		if (!PQsendQueryParams(s->handle, st->text, st->n_params, st->types, st->values,
				       st->lengths, st->formats, 1))
			return lost(s);
		return push(s, id, ret);
	}
	if (!st->prepared) {
		if (!PQsendPrepare(s->handle, st->name, st->text, st->n_params, st->types))
			return lost(s);
		r = push(s, -1, NULL);
		if (r < 0)
			return r;
		st->prepared = true;
	}
	if (!PQsendQueryPrepared(s->handle, st->name, st->n_params, st->values, st->lengths,
				 st->formats, 1))
		return lost(s);
	return push(s, id, ret);
}

static int wait_socket(struct pg_conn *s, short events)
{
	struct pollfd p = {.fd = PQsocket(s->handle), .events = events};
	uint64_t left = cfs_deadline_left_ms(s->sql.deadline);
	int n;

	if (p.fd < 0)
		return lost(s);
	n = left ? poll(&p, 1, (int)CFS_MIN(left, (uint64_t)INT32_MAX)) : 0;
	if (n > 0 || (n < 0 && errno == EINTR))
		return 0;
	/* The answer may still arrive, so the connection cannot be used again. */
	s->sql.broken = true;
	return n ? -EIO : -ETIMEDOUT;
}

static int flush(struct pg_conn *s)
{
	int n, r;

	while ((n = PQflush(s->handle)) > 0) {
		r = wait_socket(s, POLLIN | POLLOUT);
		if (r < 0)
			return r;
		if (!PQconsumeInput(s->handle))
			return lost(s);
	}
	return n < 0 ? lost(s) : 0;
}

/* *ret is NULL at the end of a statement's results. */
static int next_result(struct pg_conn *s, PGresult **ret)
{
	int r;

	while (PQisBusy(s->handle)) {
		r = wait_socket(s, POLLIN);
		if (r < 0)
			return r;
		if (!PQconsumeInput(s->handle) && PQisBusy(s->handle))
			return lost(s);
	}
	*ret = PQgetResult(s->handle);
	return 0;
}

/* Reads the result of one queued statement, and the NULL that follows it. */
static int read_result(struct pg_conn *s, const struct pg_queued *q, int *ret_error)
{
	PGresult *result, *end = NULL;
	ExecStatusType status;
	int r = next_result(s, &result);

	if (r < 0)
		return r;
	if (!result)
		return lost(s);
	status = PQresultStatus(result);
	if (status == PGRES_FATAL_ERROR || status == PGRES_BAD_RESPONSE) {
		if (!*ret_error)
			*ret_error = pg_error(s, result, q->id);
	} else if (q->id == PG_COMMIT && status == PGRES_COMMAND_OK &&
		   strcmp(PQcmdStatus(result), "COMMIT") != 0) {
		/* The server has rolled back a transaction in which a statement had failed. */
		cfs_err("postgresql: a failed transaction was not rolled back by its operation");
		*ret_error = -EIO;
	} else if (q->id == PG_XID && status == PGRES_TUPLES_OK) {
		s->xid = (uint64_t)pg_int(result, 0, 0);
		last_server = pg_int(result, 0, 1);
	} else if (q->ret && status != PGRES_PIPELINE_ABORTED) {
		*q->ret = result;
		result = NULL;
	}
	/* The statement is not prepared, although its `prepared` is set. */
	if (q->id < 0 && status != PGRES_COMMAND_OK)
		s->sql.broken = true;
	PQclear(result);
	if (PQstatus(s->handle) == CONNECTION_BAD)
		return lost(s);
	r = next_result(s, &end);
	if (r == 0 && end) {
		PQclear(end);
		return lost(s);
	}
	return r;
}

static int read_sync(struct pg_conn *s)
{
	PGresult *result;
	int r = next_result(s, &result);

	if (r < 0)
		return r;
	r = PQresultStatus(result) == PGRES_PIPELINE_SYNC ? 0 : lost(s);
	PQclear(result);
	return r;
}

int pg_exchange(struct pg_conn *s)
{
	int r, error = 0;

	s->sql.round_trips++;
	if (!PQpipelineSync(s->handle))
		r = lost(s);
	else
		r = flush(s);
	for (unsigned i = 0; i < s->n_queued && !r; i++)
		r = read_result(s, &s->queue[i], &error);
	if (!r)
		r = read_sync(s);
	s->n_queued = 0;
	return error ? error : r;
}

int pg_ask(struct sql_conn *c, int id, const char *text, const struct sql_param *params, size_t n)
{
	struct pg_conn *s = pg_conn(c);
	int r = pg_open_stmt(c, id, text, params, n);

	if (!r)
		r = pg_queue(s, id, true);
	return r ? r : pg_exchange(s);
}

int pg_run(struct pg_conn *s, const char *text)
{
	cfs_auto_free char *full = translate(text);
	int r = full ? begin_if_wanted(s) : -ENOMEM;

	if (r < 0)
		return r;
	r = PQsendQueryParams(s->handle, full, 0, NULL, NULL, NULL, NULL, 1) ? push(s, -1, NULL)
									     : lost(s);
	return r ? r : pg_exchange(s);
}

/* ---- transactions ---- */

static int control(struct pg_conn *s, int id, const char *text)
{
	int r = pg_prepare(s, id, text);

	if (!r)
		r = pg_queue(s, id, false);
	return r ? r : pg_exchange(s);
}

int pg_begin(struct sql_conn *c)
{
	struct pg_conn *s = pg_conn(c);

	s->in_txn = false;
	s->wants_txn = true;
	s->xid = 0;
	return pg_prepare(s, PG_BEGIN, "BEGIN ISOLATION LEVEL READ COMMITTED");
}

/* When the answer is lost, the transaction's id, fetched before, leads to the outcome. */
int pg_commit(struct sql_conn *c)
{
	struct pg_conn *s = pg_conn(c);
	int r;

	s->wants_txn = false;
	if (!s->in_txn)
		return 0;
	r = control(s, PG_COMMIT, "COMMIT");
	if (!r || s->sql.broken)
		s->in_txn = false;
	c->unknown = r == -ENOTCONN || r == -ETIMEDOUT;
	c->txn = s->xid;
	return r;
}

int pg_rollback(struct sql_conn *c)
{
	struct pg_conn *s = pg_conn(c);
	int r = 0;

	s->wants_txn = false;
	if (s->in_txn && !c->broken)
		r = control(s, PG_ROLLBACK, "ROLLBACK");
	s->in_txn = false;
	if (r < 0)
		c->broken = true;
	return r;
}

int pg_resolve(struct sql_conn *c, uint64_t txn)
{
	const char *status;
	bool moved;
	int r = pg_ask(c, PG_STATUS,
		       "SELECT CASE WHEN " PG_SERVER "=? OR "
		       "?<txid_snapshot_xmax(txid_current_snapshot()) "
		       "THEN txid_status(?) END," PG_SERVER,
		       SQL_PARAMS(SQL_I(last_server), SQL_I(txn), SQL_I(txn)));

	if (r < 0)
		return r;
	status = PQgetvalue(pg_result(c, PG_STATUS), 0, 0);
	moved = pg_int(pg_result(c, PG_STATUS), 0, 1) != last_server;
	if (!strcmp(status, "committed"))
		r = 1;
	else
		r = !strcmp(status, "in progress") ? -EAGAIN : 0;
	pg_close_stmt(c, PG_STATUS);
	if (r <= 0 || !moved)
		return r;
	/* A promoted standby reuses the ids of transactions that it did not receive. */
	r = sql_probe_ask(c);
	return r == -EIO ? 1 : r;
}

int pg_end_session(struct sql_conn *c, const char *session)
{
	int r = pg_ask(c, PG_END_SESSION,
		       "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
		       "WHERE starts_with(application_name,?)",
		       SQL_PARAMS(SQL_T(session)));

	if (!r && pg_int(pg_result(c, PG_END_SESSION), 0, 0))
		r = -EAGAIN;
	pg_close_stmt(c, PG_END_SESSION);
	return r;
}
