/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of the PostgreSQL engine.
 *
 * A connection is always in libpq's pipeline mode. pg_queue queues a statement; pg_exchange sends
 * the queue and reads the results, in one round trip. BEGIN goes with the first statement of a
 * transaction, COMMIT with the last.
 *
 * The name of a prepared statement contains a hash of its text: behind a pooler, mounts share
 * server connections, and must not execute each other's statements.
 */
#ifndef CFS_META_PG_INTERNAL_H
#define CFS_META_PG_INTERNAL_H

#include <errno.h>
#include <libpq-fe.h>

#include "base/bytes.h"
#include "meta/engine/optimistic.h"
#include "meta/sql/sql-internal.h"

#define PG_QUEUE_MAX 1100 /* rows of put_rows (CFS_PUT_ROWS) are one exchange */

/* Statements that statements.h does not have: X(id, name in messages). */
/* clang-format off */
#define PG_STATEMENTS(X) \
	X(BEGIN, "begin") \
	X(COMMIT, "commit") \
	X(ROLLBACK, "rollback") \
	X(XID, "transaction id") \
	X(STATUS, "transaction status") \
	X(END_SESSION, "end session") \
	X(HAS_INDEX, "index list") \
	X(COLUMNS, "column list") \
	X(CREATE, "create") \
	X(CREATE_KNOWN, "create in known") \
	X(CREATE_DIR, "create directory") \
	X(CREATE_SYMLINK, "create symlink") \
	X(LINK, "link") \
	X(UNLINK, "unlink") \
	X(UNLINK_KNOWN, "unlink known") \
	X(UNLINK_TRASH, "unlink to trash") \
	X(UNLINK_TRASH_KNOWN, "unlink known to trash") \
	X(LOCK_DIR, "lock directory") \
	X(RMDIR, "rmdir") \
	X(RMDIR_TRASH, "rmdir to trash") \
	X(COMMIT_SLICE, "commit slice") \
	X(COMMIT_ATTRS, "commit slice and attributes") \
	X(COMMIT_GROUP, "commit slice in a group") \
	X(SETATTR, "setattr") \
	X(ADVICE, "advice")
/* clang-format on */

enum pg_stmt_id {
	PG_BEFORE_FIRST = SQL_STMT_COUNT - 1,
#define ID(id, name) PG_##id,
	PG_STATEMENTS(ID)
#undef ID
		PG_STMT_COUNT,
};

struct pg_stmt {
	char *text, name[32];
	bool prepared; /* the server knows it by name */
	int n_params;
	Oid types[SQL_PARAMS_MAX];
	const char *values[SQL_PARAMS_MAX];
	int lengths[SQL_PARAMS_MAX], formats[SQL_PARAMS_MAX];
	uint64_t ints[SQL_PARAMS_MAX]; /* big endian, where values[] points */
	bool asked;		       /* queued, and the result is not read yet */
	PGresult *result;
	int row;
};

/* The entries of the queue, in the order of their results. */
struct pg_queued {
	int id;		/* enum sql_stmt_id or pg_stmt_id; -1: a Parse message */
	PGresult **ret; /* the result goes here; NULL: it is dropped */
};

struct pg_conn {
	struct sql_conn sql; /* first */
	PGconn *handle;
	struct pg_stmt *stmt[PG_STMT_COUNT];
	struct pg_queued queue[PG_QUEUE_MAX];
	unsigned n_queued;
	bool in_txn;	/* BEGIN was queued */
	bool wants_txn; /* BEGIN goes with the next statement */
	uint64_t xid;	/* the transaction's id, 0 until it is known */
	int64_t insert_id;
};

struct pg_db {
	struct sql_db sql;	   /* first */
	char **keywords, **values; /* for PQconnectdbParams, NULL at the end */
	size_t n_values;
	size_t timeout_at; /* index of connect_timeout, which depends on the number of addresses */
	size_t name_at;	   /* index of application_name, which differs between connections */
	char *schema;	   /* NULL: the server's default; else part of sql.prefix */
	atomic_bool unnamed; /* a pooler forgets named statements */
	struct cfs_optimistic optimistic;
};

static inline struct pg_conn *pg_conn(struct sql_conn *c)
{
	return (struct pg_conn *)c;
}

static inline struct pg_db *pg_db(struct sql_db *db)
{
	return (struct pg_db *)db;
}

/* ---- connect.c ---- */
/* Fills keywords and values from the URL and the environment. */
int pg_parse_url(struct pg_db *db, const struct cfs_url *url, char err[256]);
void pg_free_url(struct pg_db *db);
int pg_connect(struct sql_db *db, bool writer, struct sql_conn **ret, char err[256]);
void pg_disconnect(struct sql_conn *c);

/* ---- exchange.c ---- */
/* The negative errno of a failed result; unexpected ones are logged. */
int pg_error(struct pg_conn *s, const PGresult *result, int id);
/* Prepares this text as a statement: translates ? and `name` to PostgreSQL's syntax. */
int pg_prepare(struct pg_conn *s, int id, const char *text);
void pg_free_stmt(struct pg_stmt *st);
/* Queues a statement with the parameters bound to it. keep: its result goes to stmt->result. */
int pg_queue(struct pg_conn *s, int id, bool keep);
/* The same; the result goes to *ret. */
int pg_queue_to(struct pg_conn *s, int id, PGresult **ret);
/*
 * Sends the queue and a statement, as pg_open_stmt. pg_close_stmt frees its result, also after an
 * error.
 */
int pg_ask(struct sql_conn *c, int id, const char *text, const struct sql_param *params, size_t n);
/* Sends the queue and reads all results. Returns the first error, in the order of statements. */
int pg_exchange(struct pg_conn *s);
/* Runs a text without parameters, whose words in braces are expanded; drops the result. */
int pg_run(struct pg_conn *s, const char *text);
void pg_bind(struct pg_stmt *st, int n, const struct sql_param *p);
int64_t pg_int(const PGresult *result, int row, int col);
/* Identifies the server process: differs after a restart or a promotion. */
#define PG_SERVER "(extract(epoch from pg_postmaster_start_time())*1000000)::bigint"
int pg_begin(struct sql_conn *c);
int pg_commit(struct sql_conn *c);
int pg_rollback(struct sql_conn *c);
/* 1: committed, 0: not committed, -EAGAIN: still running. */
int pg_resolve(struct sql_conn *c, uint64_t txn);
/*
 * The session's name begins its application_name. A pooler gives that to the server's session, too,
 * and may append the address of its client.
 */
int pg_end_session(struct sql_conn *c, const char *session);

/* ---- schema.c ---- */
int pg_each_column(struct sql_conn *c, sql_column_fn see, void *arg);
int pg_has_index(struct sql_conn *c, const char *table, const char *name);
void pg_put_type(FILE *f, const struct sql_column *col);
int pg_run_ddl(struct sql_conn *c, const char *text);
int pg_begin_ddl(struct sql_conn *c);

/* ---- dialect.c ---- */
extern const struct sql_dialect pg_dialect;

/*
 * ---- ops-*.c: operations in one statement ----
 *
 * Each statement checks and changes in its own transaction. In an unusual case it changes nothing
 * (PG_UNUSUAL), and the generic transaction of meta/sql runs. When the answer is lost, the outcome
 * is unknown (PG_UNKNOWN). sql_read() has ended the session by then, unless the server refuses
 * that or the deadline has passed.
 */
#define PG_UNKNOWN -EINPROGRESS
#define PG_UNUSUAL -EDOM

/* Inodes from this number on are in the trash. */
#define PG_TRASH "9223372032828243968"
/* Condition: names may be created or removed in directory `p`, by its flags and its parent. */
#define PG_DIR_OPEN(flags) "p.type=2 AND p.flags&" flags "=0 AND COALESCE(p.parent,0)<" PG_TRASH

/* Prepares a statement whose text has braces, and binds its parameters $1.. */
int pg_open_stmt(struct sql_conn *c, int id, const char *text, const struct sql_param *params,
		 size_t n);
/*
 * The same, then sends the queue and the statement. sql_int() and sql_node_columns() read the first
 * row. PG_UNKNOWN: the answer was lost.
 */
int pg_execute(struct sql_conn *c, int id, const char *text, const struct sql_param *params,
	       size_t n);
static inline const PGresult *pg_result(struct sql_conn *c, int id)
{
	return pg_conn(c)->stmt[id]->result;
}
/* Frees the result. */
void pg_close_stmt(struct sql_conn *c, int id);
/* True when a statement without result rows has changed a row. */
bool pg_has_changed(struct sql_conn *c, int id);
/*
 * True when a statement need not check permissions: for the superuser, and when the kernel has
 * checked them.
 */
static inline bool pg_is_authorized(const struct cfs_ctx *ctx)
{
	return !ctx->check || ctx->uid == 0;
}

/* ---- members of struct cfs_engine_ops: ops-*.c, advice.c, settle.c ---- */
#define DECLARE(member) CFS_ENGINE_DECLARE(pg_op_##member, member);
DECLARE(advise)
DECLARE(settle)
DECLARE(mknod)
DECLARE(link)
DECLARE(remove)
DECLARE(commit_slice)
DECLARE(commit_group)
DECLARE(setattr)
#undef DECLARE

#endif
