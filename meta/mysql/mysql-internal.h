/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of the MySQL dialect. It builds with MariaDB Connector/C and with
 * libmysqlclient, and speaks to MariaDB, MySQL, Galera and TiDB.
 */
#ifndef CFS_META_MYSQL_INTERNAL_H
#define CFS_META_MYSQL_INTERNAL_H

#include <mysql.h>

#include "meta/engine/optimistic.h"
#include "meta/engine/rules.h"
#include "meta/sql/sql-internal.h"

#if !defined(MARIADB_PACKAGE_VERSION) && MYSQL_VERSION_ID >= 80000
typedef bool my_bool;
#endif

enum mysql_tls {
	MYSQL_TLS_OFF,
	MYSQL_TLS_PREFERRED,
	MYSQL_TLS_UNVERIFIED,
	MYSQL_TLS_VERIFIED,
};

struct mysql_db {
	struct sql_db sql; /* first */
	char *user, *password, *host, *socket, *database;
	unsigned port;
	enum mysql_tls tls;
	char *tls_ca, *tls_cert, *tls_key;
	int sync_wait; /* wsrep_sync_wait of the URL, or -1 */
	struct cfs_optimistic optimistic;
};

struct mysql_value {
	int64_t num;
	unsigned long len;
	my_bool null, truncated;
	void *buf; /* of a column of bytes */
	size_t cap;
};

struct mysql_stmt {
	MYSQL_STMT *handle;
	unsigned n_params, n_columns;
	MYSQL_BIND *bind; /* parameters, then columns */
	struct mysql_value *values;
	uint8_t *place; /* of a batch: the number of the parameter of each ? */
	unsigned n_places;
	bool executed;
};

/* Operations as a batch of statements in one round trip (batch.c). */
enum mysql_batch_id {
#define BATCH(id, text) MYSQL_BATCH_##id,
#include "batch-texts.h"
#undef BATCH
	MYSQL_BATCH_COUNT,
};

/* How a connection sends batches. */
enum mysql_way {
	MYSQL_GENERIC,	/* never: operations take the generic transaction */
	MYSQL_MULTI,	/* a multi-statement query: multi.c */
	MYSQL_COMPOUND, /* a compound statement, MariaDB: compound.c */
};

/* The text of a statement that contains its values (text.c). */
struct mysql_text {
	char *v; /* without NUL */
	size_t len, cap;
};

/* An INSERT that is being collected (bulk.c). */
struct mysql_bulk {
	enum sql_stmt_id id;
	unsigned rows;
	struct mysql_text text; /* up to the last row */
	char *full;		/* the text of the statement */
	const char *rest;	/* its part behind the rows */
};

struct mysql_conn {
	struct sql_conn sql; /* first */
	MYSQL *handle;
	enum mysql_way way;
	bool tidb;
	bool in_txn; /* between START TRANSACTION and COMMIT, without batches */
	bool sent;   /* this attempt has sent a batch */
	struct mysql_stmt stmt[SQL_STMT_COUNT];
	struct mysql_stmt batch[MYSQL_BATCH_COUNT];
	char *multi[MYSQL_BATCH_COUNT]; /* texts, built at first use */
	struct mysql_text text;		/* the last multi-statement query */
	struct mysql_bulk bulk;
};

static inline struct mysql_conn *mysql_conn(struct sql_conn *c)
{
	return (struct mysql_conn *)c;
}

/* conn.c */
int mysql_connect_to(struct sql_db *db, bool writer, struct sql_conn **ret, char err[256]);
void mysql_disconnect(struct sql_conn *c);
/*
 * Maps an error code of the server or the client library as struct sql_dialect says; unexpected
 * ones are logged with the statement at fault.
 */
int mysql_error_of(struct mysql_conn *m, unsigned code, const char *text, const char *statement);
/* Runs one statement without parameters and result. */
int mysql_run(struct mysql_conn *m, const char *text);
/* Runs one query without parameters; the caller frees *ret with mysql_free_result(). */
int mysql_query_rows(struct mysql_conn *m, const char *text, MYSQL_RES **ret);
/*
 * When a Galera node aborts a transaction in favour of another node's, the next statement should
 * fail. MariaDB 10.11 sometimes executes it and the following statements outside a transaction, and
 * COMMIT succeeds without effect. Therefore, on Galera, transactions are read-write by an explicit
 * START TRANSACTION, and the session's default is read-only: a write outside a transaction fails.
 * After each statement, mysql_check_txn() reads the transaction state from the server's status.
 */
int mysql_start_txn(struct mysql_conn *m);
/* -EAGAIN: the server has aborted the transaction. */
int mysql_check_txn(const struct mysql_conn *m);

/* stmt.c: members of the dialect */
int mysql_prepare_stmt(struct sql_conn *c, enum sql_stmt_id id, const char *text);
int mysql_bind(struct sql_conn *c, enum sql_stmt_id id, int n, const struct sql_param *p);
int mysql_step(struct sql_conn *c, enum sql_stmt_id id);
void mysql_reset_stmt(struct sql_conn *c, enum sql_stmt_id id);
int mysql_changes(struct sql_conn *c, enum sql_stmt_id id);
int64_t mysql_insert_id_of(struct sql_conn *c, enum sql_stmt_id id);
int64_t mysql_col_int(struct sql_conn *c, enum sql_stmt_id id, int col);
const void *mysql_col_bytes(struct sql_conn *c, enum sql_stmt_id id, int col, size_t *ret_len);
void mysql_close_stmts(struct mysql_conn *m);
int mysql_open_stmt(struct mysql_conn *m, struct mysql_stmt *s, const char *text, const char *name);
/* Bytes are not copied: the caller keeps them until the statement was sent. */
int mysql_set_param(struct mysql_stmt *s, int n, const struct sql_param *p);

/* text.c: 0 or -ENOMEM. Bytes are written in hexadecimal, so that the server never parses them. */
int mysql_text_put(struct mysql_text *t, const char *v, size_t len);
int mysql_text_put_param(struct mysql_text *t, const struct sql_param *p);
void mysql_text_free(struct mysql_text *t);
/* Length of the first token of a statement: a word, a name in backquotes, or a character. */
size_t mysql_text_word(const char *p);

/* bulk.c: load of the dialect. Pending rows are sent before any other statement, or dropped. */
int mysql_bulk_add(struct sql_conn *c, enum sql_stmt_id id, const struct sql_param *v, size_t n);
int mysql_bulk_flush(struct mysql_conn *m);
void mysql_bulk_drop(struct mysql_conn *m);

/* batch.c */
/*
 * Runs a batch in the connection's way, which is not MYSQL_GENERIC. MYSQL_DONE: done. 0: the
 * optimistic check failed. Else a negative errno. Unless it is done, nothing has changed, except
 * that -ENOTCONN leaves the outcome open. row: n columns, zeros without an answer; MYSQL_DONE_ROW:
 * there is a row.
 */
enum { MYSQL_DONE = 1, MYSQL_DONE_ROW };
int mysql_batch_run(struct mysql_conn *m, enum mysql_batch_id id, int64_t *row, unsigned n,
		    const struct sql_param *params, size_t n_params);
/* Ends the transaction of a batch whose result is r, which it returns. */
int mysql_batch_end(struct mysql_conn *m, int r);
/* For messages. */
const char *mysql_batch_name(enum mysql_batch_id id);
struct mysql_params {
	const struct sql_param *v;
	size_t n;
};
/* mysql_batch_run for MYSQL_COMPOUND and for MYSQL_MULTI. */
int mysql_compound_run(struct mysql_conn *m, enum mysql_batch_id id, int64_t *row, unsigned n,
		       const struct mysql_params *params);
int mysql_multi_run(struct mysql_conn *m, enum mysql_batch_id id, int64_t *row, unsigned n,
		    const struct mysql_params *params);
/*
 * Sends several statements as one text, and calls fn with the result of each; rows: NULL without
 * columns. Returns 0, the first negative value of fn, or -EIO for an error of the server.
 */
typedef int (*mysql_result_fn)(struct mysql_conn *m, MYSQL_RES *rows, void *arg);
int mysql_send_text(struct mysql_conn *m, const char *text, size_t len, mysql_result_fn fn,
		    void *arg);
/*
 * One attempt of an operation. 1: done; 0 or -EEXIST: nothing has changed, and the caller runs the
 * generic transaction; another negative value: an error of the database.
 */
typedef int (*mysql_batch_fn)(struct mysql_conn *m, const struct cfs_ctx *ctx, void *arg);
/*
 * Runs fn until it gets an answer or the deadline has passed; 0 at once on a volume with a changelog
 * or on a connection without batches. After a lost answer, `applied` is the commit probe: 1: the
 * operation was executed; 0: it was not. It runs before the next attempt, and again before 0 is
 * returned. size: of *arg; `applied` gets a copy of *arg, from when the answer was lost. NULL: the
 * result is then -EINPROGRESS.
 */
int mysql_batch(struct sql_db *db, const struct cfs_ctx *ctx, enum cfs_meta_op op,
		mysql_batch_fn fn, mysql_batch_fn applied, void *arg, size_t size);
/* The attributes of a directory for a batch, from the cache or the database. */
int mysql_get_dir(struct mysql_conn *m, cfs_ino_t ino, struct cfs_attr *ret);

/*
 * The parameters of DIR_IS in batch-texts.h: the attributes of a directory that the rules depend
 * on. The columns of COMMIT_DIR are its other attributes.
 */
#define MYSQL_DIR(a)                                                                               \
	SQL_I((a)->flags), SQL_I((a)->mode), SQL_I((a)->uid), SQL_I((a)->gid), SQL_I((a)->parent), \
		SQL_I((a)->access_acl), SQL_I((a)->default_acl), SQL_I((a)->tier)
#define MYSQL_DIR_COLUMNS 7
/*
 * Updates the cache and *attr after a change in directory ino. done: the result of mysql_batch_run.
 */
void mysql_dir_changed(struct sql_db *db, cfs_ino_t ino, int done,
		       const int64_t row[MYSQL_DIR_COLUMNS], struct cfs_attr *attr);
/* The parameters of TOUCH. */
#define MYSQL_TOUCH(ctx, nlink_d)                                                                  \
	SQL_I((nlink_d) != 0), SQL_I(nlink_d), SQL_I(sql_us((ctx)->now)),                          \
		SQL_I(sql_us((ctx)->now)), SQL_I(sql_sub_us((ctx)->now)),                          \
		SQL_I(sql_sub_us((ctx)->now))

/* The parameters of STILL. */
#define MYSQL_STILL(v)                                                                             \
	SQL_I((v)->flags), SQL_I((v)->mode), SQL_I((v)->uid), SQL_I((v)->gid), SQL_I((v)->nlink),  \
		SQL_I((v)->length), SQL_I((v)->parent)

/* names.c remove.c rename.c write.c group.c advice.c: members of struct cfs_engine_ops */
#define DECLARE(member) CFS_ENGINE_DECLARE(mysql_op_##member, member);
DECLARE(advise)
DECLARE(mknod)
DECLARE(link)
DECLARE(rename)
DECLARE(setattr)
DECLARE(remove)
DECLARE(commit_slice)
DECLARE(commit_group)
#undef DECLARE

/* schema.c: members of the dialect */
int mysql_each_column(struct sql_conn *c, sql_column_fn see, void *arg);
int mysql_has_index(struct sql_conn *c, const char *table, const char *name);
int mysql_stops(struct sql_conn *c, uint64_t *ret);
void mysql_put_type(FILE *f, const struct sql_column *col);
void mysql_put_table_options(struct sql_conn *c, FILE *f);
int mysql_run_ddl(struct sql_conn *c, const char *text);
int mysql_end_ddl(struct sql_conn *c);

#endif
