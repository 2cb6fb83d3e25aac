/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The SQL runner. Operations (names.c, remove.c, chunks.c, ...) use numbered statements; a dialect
 * implements the access to one database.
 *
 *	op function ──> sql_txn()/sql_read() ──> sql_exec()/sql_query() ──> dialect
 *
 * statements.h has the texts, one per line, with {table} for "jfs_<prefix>table" and ? for
 * parameters. A dialect may replace single texts. Each connection prepares a statement at its first
 * use.
 */
#ifndef CFS_META_SQL_H
#define CFS_META_SQL_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "meta/engine/changelog.h"
#include "meta/engine/engine.h"
#include "meta/engine/rules.h"

struct sql_column;
typedef void (*sql_column_fn)(void *arg, const char *table, const char *column);
struct sql_db;	 /* the engine: a pool of connections to one database */
struct sql_conn; /* one connection, used by one thread at a time */

/* The certification rows of a directory, as rows of an INSERT (certification.c). */
#define SQL_CERTIFICATION_ROWS 16
#define SQL_CERTIFICATION_VALUES(ino)                                                              \
	"(" ino ",0,0,0),(" ino ",0,1,0),(" ino ",0,2,0),(" ino ",0,3,0),(" ino ",0,4,0),"         \
	"(" ino ",0,5,0),(" ino ",0,6,0),(" ino ",0,7,0),(" ino ",0,8,0),(" ino ",0,9,0),"         \
	"(" ino ",0,10,0),(" ino ",0,11,0),(" ino ",0,12,0),(" ino ",0,13,0),(" ino ",0,14,0),"    \
	"(" ino ",0,15,0)"

enum sql_stmt_id {
#define SQL(id, text) SQL_##id,
#include "meta/sql/statements.h"
#undef SQL
	SQL_STMT_COUNT,
};

/* A parameter of a statement. */
struct sql_param {
	bool is_bytes, is_text, null;
	const void *bytes;
	size_t len;
	int64_t num;
};
#define SQL_PARAMS_MAX CFS_HEADS_MAX /* of the longest statement */
#define SQL_I(v)                                                                                   \
	{                                                                                          \
		.num = (int64_t)(v)                                                                \
	}
#define SQL_B(p, n)                                                                                \
	{                                                                                          \
		.is_bytes = true, .bytes = (p), .len = (n)                                         \
	}
#define SQL_T(text)                                                                                \
	{                                                                                          \
		.is_bytes = true, .is_text = true, .bytes = (text), .len = strlen(text)            \
	}
/* An array of parameters, and its length: two arguments of a call. */
#define SQL_PARAMS(...)                                                                            \
	(const struct sql_param[]){__VA_ARGS__},                                                   \
		sizeof((const struct sql_param[]){__VA_ARGS__}) / sizeof(struct sql_param)

/*
 * Parameters, in order, one letter each in fmt:
 *	i  int64_t   (u64 values are passed as their two's complement)
 *	b  const void *, size_t   binary
 *	t  const char *, size_t   text
 */
/* Runs a statement that returns no rows. Returns the number of rows changed or a negative errno;
 * -EEXIST: unique key. */
int sql_exec(struct sql_conn *c, enum sql_stmt_id id, const char *fmt, ...);
/*
 * As sql_exec, for a write whose result is not needed before the end of the transaction. It may be
 * sent in one batch with later statements; a later statement or the commit then returns its error.
 */
int sql_post(struct sql_conn *c, enum sql_stmt_id id, const char *fmt, ...);
/*
 * As sql_post, for many rows: an INSERT whose values are exactly its parameters. Consecutive rows
 * of one statement may be combined into one INSERT. Their order is kept.
 */
int sql_load(struct sql_conn *c, enum sql_stmt_id id, const char *fmt, ...);
/* Starts a query; its rows are read with sql_next; one open query per statement id and connection.
 */
int sql_query(struct sql_conn *c, enum sql_stmt_id id, const char *fmt, ...);
/* 1: a row; 0: no more rows; negative: an error. The last two end the query. */
int sql_next(struct sql_conn *c, enum sql_stmt_id id);
/*
 * Ends a query before its last row; does nothing when it has ended. sql_txn and sql_read end the
 * queries that fn leaves open.
 */
void sql_done(struct sql_conn *c, enum sql_stmt_id id);
/* Columns of the current row; pointers live until the next sql_next/sql_done of that statement. */
int64_t sql_int(struct sql_conn *c, enum sql_stmt_id id, int col); /* NULL: 0 */
const void *sql_blob(struct sql_conn *c, enum sql_stmt_id id, int col, size_t *ret_len);
/* Queries one row. 1: it is the current row, and sql_done must follow; 0: no row; negative. */
int sql_row(struct sql_conn *c, enum sql_stmt_id id, const char *fmt, ...);
/* 1: the query has a row; 0: none; negative. */
int sql_has(struct sql_conn *c, enum sql_stmt_id id, const char *fmt, ...);

/*
 * Runs a write transaction on a connection of the pool: begin, fn, commit. A negative result of fn
 * rolls back and is returned. After -EAGAIN from the database (busy, deadlock, serialization) the
 * transaction is retried with backoff until ctx->deadline, so fn may run several times.
 */
typedef int (*sql_fn)(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg);
int sql_txn(struct sql_db *db, const struct cfs_ctx *ctx, enum cfs_meta_op op, sql_fn fn,
	    void *arg);
/*
 * Called first by an fn that may run again after its transaction was committed. When the answer to
 * COMMIT is lost, the runner then repeats the transaction and needs no commit probe.
 */
void sql_repeatable(void);
/* True when the answer to an earlier COMMIT of this transaction was lost: its changes may exist. */
bool sql_is_repeated(const struct sql_conn *c);
/*
 * Called at the end of a scan. -EAGAIN, which repeats the scan: the server may have stopped the
 * query early without an error.
 */
int sql_confirm_end(struct sql_conn *c);
/* Runs fn without a transaction; retries as sql_txn. */
int sql_read(struct sql_db *db, const struct cfs_ctx *ctx, enum cfs_meta_op op, sql_fn fn,
	     void *arg);
struct cfs_engine_host *sql_host(struct sql_conn *c);
static inline struct sql_db *sql_db(struct cfs_engine *e)
{
	return (struct sql_db *)e;
}
/* The automatic id that the last run of this INSERT gave. */
int64_t sql_insert_id(struct sql_conn *c, enum sql_stmt_id id);

/* ---- node.c: rows of nodes and edges ---- */
/* -ENOENT. for_update: locks the row, where the dialect can. */
int sql_get_node(struct sql_conn *c, cfs_ino_t ino, bool for_update, struct cfs_attr *ret);
/* Locks a directory against deletion, where the dialect can, before a name is created in it. */
int sql_keep_node(struct sql_conn *c, cfs_ino_t ino, struct cfs_attr *ret);
/*
 * The last statement of a transaction that adds a name, for databases without FOR_SHARE: locks the
 * directory against removal until the commit. An earlier shared lock would deadlock with the update
 * of its times. attr: the directory's attributes as read before. -ENOENT: it was removed, or moved
 * to the trash.
 */
int sql_keep_late(struct sql_conn *c, cfs_ino_t dir, const struct cfs_attr *attr);
/*
 * certification.c: certification rows, for the servers of a cluster, which replicate changed rows
 * but no locks. On other servers these functions do nothing. Of two conflicting transactions on
 * different servers, the second fails with -EAGAIN.
 *
 * certify_dir precedes the creation of a name in the directory, close_dir its removal. The two
 * conflict; two certify_dir rarely do. When close_dir returns 1, the caller must check again that
 * the directory is empty; 0: an earlier check is still valid.
 */
int sql_certify_dir(struct sql_conn *c, cfs_ino_t dir);
int sql_close_dir(struct sql_conn *c, cfs_ino_t dir);
/* For a transaction that only locks a node: makes it conflict with all changes of the node. */
int sql_claim_node(struct sql_conn *c, cfs_ino_t ino);
/*
 * The lock for moving a directory to another parent, on every database. It is taken before any
 * other lock and held until the commit.
 */
int sql_lock_tree(struct sql_conn *c);
int sql_put_node(struct sql_conn *c, cfs_ino_t ino, const struct cfs_attr *attr);    /* insert */
int sql_update_node(struct sql_conn *c, cfs_ino_t ino, const struct cfs_attr *attr); /* whole row */
/* The attributes in the columns {NODE}. */
#define SQL_NODE_COLUMNS 18
void sql_node_row(const int64_t row[SQL_NODE_COLUMNS], struct cfs_attr *ret);
/* The same of the current row of a query, where they start at col. */
void sql_node_columns(struct sql_conn *c, enum sql_stmt_id id, int col, struct cfs_attr *ret);
struct sql_edge {
	cfs_ino_t ino;
	uint8_t type;
};
int sql_get_edge(struct sql_conn *c, cfs_ino_t parent, const char *name, size_t len,
		 struct sql_edge *ret); /* -ENOENT */
/* The inode behind a name, in one statement. -ENOENT */
int sql_find(struct sql_conn *c, cfs_ino_t parent, const char *name, size_t len,
	     struct cfs_entry *ret);
/* Adds nlink_d to the link count, and updates the times. -ENOENT: no such directory. */
int sql_touch_parent(struct sql_conn *c, const struct cfs_ctx *ctx, cfs_ino_t parent, int nlink_d);
/* The attributes of a directory after sql_touch_parent; nlink_d 0: unchanged. */
struct cfs_attr sql_touched(const struct cfs_ctx *ctx, const struct cfs_attr *dir, int nlink_d);
/* usage.c: 1; 0: the directory has no statistics, or they would not fit and are removed. */
int sql_add_dir_stat(struct sql_conn *c, const struct cfs_usage_dir *d);
/* usage.c: writes usage in this transaction, if the engine has inline_usage. */
int sql_write_usage(struct sql_conn *c, const struct cfs_usage *u);
/* The same for engines without inline_usage: usage that is not returned to the core. */
int sql_write_lone_usage(struct sql_conn *c, const struct cfs_usage *u);
/*
 * Stores the mark of a write of usage (meta/engine/engine.h), in the same transaction. 0: make the
 * changes; -EEXIST: they are stored already.
 */
int sql_mark_write(struct sql_conn *c, const char *mark);
/*
 * Writes one changelog line (volume-format section 14) when the volume has a changelog
 * (changelog.c).
 */
__attribute__((format(printf, 3, 4))) int sql_log(struct sql_conn *c, const struct cfs_ctx *ctx,
						  const char *fmt, ...);

/*
 * A dialect. Connections are made by connect; everything else works on one connection. Errors are
 * mapped to: -EAGAIN retry the transaction, -EEXIST unique key, -ENOTCONN connection lost, -EIO.
 */
struct sql_dialect {
	const char *name;
	const char *for_update;		     /* " FOR UPDATE" or "" */
	const char *for_share;		     /* {FOR_SHARE}: a lock against deletion; NULL: "" */
	const char *keep_late;		     /* {KEEP_LATE}; NULL: sql_keep_late does nothing */
	const char *or_ignore, *else_ignore; /* for {OR_IGNORE}, {ELSE_IGNORE} */
	/* The expansion of a word of the dialect, itself with braces; NULL: unknown word. */
	const char *(*word)(const struct sql_conn *c, const char *word, size_t len);
	int (*connect)(struct sql_db *db, bool writer, struct sql_conn **ret, char err[256]);
	void (*disconnect)(struct sql_conn *c);
	int (*begin)(struct sql_conn *c);
	/* Sets unknown and txn of *c when the answer is lost. */
	int (*commit)(struct sql_conn *c);
	/* 1: the transaction was committed, 0: it was not, -EAGAIN: it is still running. */
	int (*resolve)(struct sql_conn *c, uint64_t txn);
	/* Has the server end the session with that name (sql_conn.session). 0: it is gone; -EAGAIN. */
	int (*end_session)(struct sql_conn *c, const char *session);
	int (*rollback)(struct sql_conn *c);
	/* A replacement of a statement's text, or NULL. */
	const char *(*text)(enum sql_stmt_id id);
	int (*prepare)(struct sql_conn *c, enum sql_stmt_id id, const char *text);
	/* n: from 1. Bytes are not copied: the caller keeps them until the statement has ended. */
	int (*bind)(struct sql_conn *c, enum sql_stmt_id id, int n, const struct sql_param *p);
	int (*step)(struct sql_conn *c, enum sql_stmt_id id); /* 1 row, 0 done */
	/*
	 * Queues a query, which is sent with the next message, at the latest for its first step.
	 * Queries that are started together cost one round trip. NULL: step sends it.
	 */
	int (*ask)(struct sql_conn *c, enum sql_stmt_id id);
	/* Queues a write for the next batch, which returns its error. NULL: runs at once. */
	int (*post)(struct sql_conn *c, enum sql_stmt_id id);
	/* Adds a row, copied, to a multi-row INSERT. NULL: each row on its own, as post. */
	int (*load)(struct sql_conn *c, enum sql_stmt_id id, const struct sql_param *v, size_t n);
	void (*reset)(struct sql_conn *c, enum sql_stmt_id id);
	int (*changes)(struct sql_conn *c, enum sql_stmt_id id);
	/*
	 * Counts the statements that the server has stopped. For a server that may report such a
	 * statement as one without rows instead of an error; else NULL.
	 */
	int (*stops)(struct sql_conn *c, uint64_t *ret);
	int64_t (*col_int)(struct sql_conn *c, enum sql_stmt_id id, int col);
	const void *(*col_bytes)(struct sql_conn *c, enum sql_stmt_id id, int col, size_t *ret_len);
	/* The automatic id that the last run of this INSERT gave. */
	int64_t (*insert_id)(struct sql_conn *c, enum sql_stmt_id id);
	/* Creates the empty database. NULL: it must exist. */
	int (*create_database)(struct sql_db *db);
	/* Used by ddl.c to find and create tables. Table names without prefix. */
	int (*has_column)(struct sql_conn *c, const char *table, const char *column); /* 1, 0 */
	/* Instead of has_column: delivers every column of every table with the prefix. */
	int (*each_column)(struct sql_conn *c, sql_column_fn see, void *arg);
	int (*has_index)(struct sql_conn *c, const char *table, const char *name); /* 1, 0, errno */
	void (*put_type)(FILE *f, const struct sql_column *col);
	const char *auto_id; /* text behind the column; NULL: part of the type */
	/* Text behind a column that is the whole key; NULL: the key follows the columns. */
	const char *(*only_key)(const struct sql_column *col);
	void (*put_table_options)(struct sql_conn *c,
				  FILE *f);		  /* text behind the columns; or NULL */
	int (*run)(struct sql_conn *c, const char *text); /* one statement without result */
	/* begin_ddl and end_ddl enclose the creation of tables; end_ddl follows drops; or NULL. */
	int (*begin_ddl)(struct sql_conn *c), (*end_ddl)(struct sql_conn *c);
	int (*sync)(struct sql_db *db, const struct cfs_ctx *ctx); /* NULL: commits are durable */
	bool counts_round_trips; /* the dialect counts them itself */
	bool single_writer; /* one write connection, guarded by a mutex with deadline (SQLite) */
};

#include "meta/sql/ops.h"

#endif
