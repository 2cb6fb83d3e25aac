/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The SQL runner: operations are written once (names.c, remove.c, chunks.c, ...) over numbered
 * statements; a dialect implements the access to one database.
 *
 *	op function ──> sql_txn()/sql_read() ──> sql_exec()/sql_query() ──> dialect
 *
 * Statement texts live in statements.h, one per line, with {table} for "jfs_<prefix>table" and ?
 * for parameters; a dialect may replace single texts. Each connection prepares a statement at its
 * first use and keeps it.
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
struct sql_db;	 /* pool of connections to one database; the engine */
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

/*
 * Parameters, in order, one letter each in fmt:
 *	i  int64_t   (u64 values are passed as their two's complement)
 *	b  const void *, size_t   binary
 *	t  const char *, size_t   text
 *	n  (no argument) NULL
 */
/* Runs a statement that returns no rows. Returns the number of rows changed or a negative errno;
 * -EEXIST: unique key. */
int sql_exec(struct sql_conn *c, enum sql_stmt_id id, const char *fmt, ...);
/*
 * As sql_exec, of a write whose outcome is not needed before the end of the transaction: it may be
 * sent in one batch with later statements. A later statement or the commit returns its error.
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
/* 1: a row; 0: no more (the query is closed); negative errno (closed too). */
int sql_next(struct sql_conn *c, enum sql_stmt_id id);
/*
 * Ends a query before its last row. Does nothing when it has ended. Queries that are open when fn
 * of sql_txn or sql_read returns are ended there.
 */
void sql_done(struct sql_conn *c, enum sql_stmt_id id);
/* Columns of the current row; pointers live until the next sql_next/sql_done of that statement. */
int64_t sql_int(struct sql_conn *c, enum sql_stmt_id id, int col); /* NULL: 0 */
const void *sql_blob(struct sql_conn *c, enum sql_stmt_id id, int col, size_t *ret_len);
/* Query for exactly one row: 1 (row is current, call sql_done afterwards), 0 none, negative. */
int sql_row(struct sql_conn *c, enum sql_stmt_id id, const char *fmt, ...);

/*
 * One write transaction on a connection of the pool: begin, fn, commit. fn's negative result rolls
 * back and is returned, except -EAGAIN from the database (busy, deadlock, serialization), which is
 * retried with backoff until ctx->deadline: fn must be repeatable and write outputs only at its
 * end.
 */
typedef int (*sql_fn)(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg);
int sql_txn(struct sql_db *db, const struct cfs_ctx *ctx, enum cfs_meta_op op, sql_fn fn,
	    void *arg);
/*
 * Called by fn first: when the answer of the commit is lost, the transaction may run again although
 * it was carried out.
 */
void sql_repeatable(void);
/* True when an earlier commit of this transaction got no answer, so its changes may be there. */
bool sql_is_repeated(const struct sql_conn *c);
/*
 * Called at the end of a scan: -EAGAIN, which repeats it, when the server may have stopped the
 * query there.
 */
int sql_confirm_end(struct sql_conn *c);
/* Statements without a transaction. */
int sql_read(struct sql_db *db, const struct cfs_ctx *ctx, enum cfs_meta_op op, sql_fn fn,
	     void *arg);
struct cfs_engine_host *sql_host(struct sql_conn *c);
/* The engine handed to an operation. */
static inline struct sql_db *sql_db(struct cfs_engine *e)
{
	return (struct sql_db *)e;
}
/* The automatic id that the last run of this INSERT gave. */
int64_t sql_insert_id(struct sql_conn *c, enum sql_stmt_id id);

/* Row helpers used everywhere (node.c). FOR UPDATE where the dialect has it. */
int sql_get_node(struct sql_conn *c, cfs_ino_t ino, bool for_update, struct cfs_attr *ret);
/* Locks a directory against deletion, where the dialect can, before a name is created in it. */
int sql_keep_node(struct sql_conn *c, cfs_ino_t ino, struct cfs_attr *ret);
/*
 * For databases without FOR_SHARE, as the last statement: makes sure that a directory which gets a
 * name exists until the commit. A shared lock taken earlier would deadlock with the update of its
 * times. seen: its attributes before; a directory moved to the trash since then counts as missing.
 * -ENOENT.
 */
int sql_keep_late(struct sql_conn *c, cfs_ino_t dir, const struct cfs_attr *seen);
/*
 * certification.c: certification rows, for the servers of a cluster, which replicate changed rows
 * but no locks. Elsewhere these functions do nothing. Of two conflicting operations on different
 * servers, the second fails with -EAGAIN.
 *
 * certify_dir: a name is created in the directory; close_dir: the directory is removed if it is
 * empty. The two conflict; certify_dir rarely conflicts with certify_dir. When close_dir returns 1,
 * the content of the directory is certain only from then on; 0: it was certain before.
 */
int sql_certify_dir(struct sql_conn *c, cfs_ino_t dir);
int sql_close_dir(struct sql_conn *c, cfs_ino_t dir);
/*
 * Makes a transaction that locks a node without changing it conflict with all changes of the node.
 */
int sql_claim_node(struct sql_conn *c, cfs_ino_t ino);
/*
 * Lock for moving a directory to another parent, on every database. Held until the commit; taken
 * before any other lock.
 */
int sql_lock_tree(struct sql_conn *c);
int sql_put_node(struct sql_conn *c, cfs_ino_t ino, const struct cfs_attr *attr);    /* insert */
int sql_update_node(struct sql_conn *c, cfs_ino_t ino, const struct cfs_attr *attr); /* whole row */
/* Reads the columns {NODE} of a row, which start at col. */
#define SQL_NODE_COLUMNS 18
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
/* nlink += d, times; 0 rows: -ENOENT. */
int sql_touch_parent(struct sql_conn *c, const struct cfs_ctx *ctx, cfs_ino_t parent, int nlink_d);
/*
 * The attributes of a directory after a change of its names by sql_touch_parent, when nlink_d is
 * not 0.
 */
struct cfs_attr sql_touched(const struct cfs_ctx *ctx, const struct cfs_attr *dir, int nlink_d);
/* Writes usage in this transaction when the engine does so inline (usage.c). */
int sql_write_usage(struct sql_conn *c, const struct cfs_usage *u);
/* When it does not: writes usage that the core does not get and so cannot batch. */
int sql_write_lone_usage(struct sql_conn *c, const struct cfs_usage *u);
/*
 * Marks a write of usage (meta/engine/engine.h) before its changes, in the same transaction. 0: go
 * on; -EEXIST: it is stored already.
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
	const char *for_share;		     /* {FOR_SHARE}: against deletion alone; NULL: "" */
	const char *keep_late;		     /* {KEEP_LATE}; NULL: sql_keep_late does nothing */
	const char *or_ignore, *else_ignore; /* for {OR_IGNORE}, {ELSE_IGNORE} */
	/*
	 * The expansion of a word of the dialect, which may contain braces again; NULL: unknown
	 * word.
	 */
	const char *(*word)(const struct sql_conn *c, const char *word, size_t len);
	int (*connect)(struct sql_db *db, bool writer, struct sql_conn **ret, char err[256]);
	void (*disconnect)(struct sql_conn *c);
	int (*begin)(struct sql_conn *c);
	/* When the answer is lost: unknown and txn of *c are set. */
	int (*commit)(struct sql_conn *c);
	/* 1: that transaction was committed, 0: it was not, -EAGAIN: it is still running. */
	int (*resolve)(struct sql_conn *c, uint64_t txn);
	int (*rollback)(struct sql_conn *c);
	/* A replacement of a statement's text, or NULL. */
	const char *(*text)(enum sql_stmt_id id);
	int (*prepare)(struct sql_conn *c, enum sql_stmt_id id, const char *text);
	int (*bind_int)(struct sql_conn *c, enum sql_stmt_id id, int n, int64_t v);
	int (*bind_bytes)(struct sql_conn *c, enum sql_stmt_id id, int n, const void *v, size_t len,
			  bool text);
	int (*bind_null)(struct sql_conn *c, enum sql_stmt_id id, int n);
	int (*step)(struct sql_conn *c, enum sql_stmt_id id); /* 1 row, 0 done */
	/*
	 * Queues the query; it is sent with the next message, at the latest for its own first step.
	 * Queries that are started together cost one round trip. NULL: step sends it.
	 */
	int (*ask)(struct sql_conn *c, enum sql_stmt_id id);
	/*
	 * Sends it in one batch with the next statement, which returns its error. NULL: runs at
	 * once.
	 */
	int (*post)(struct sql_conn *c, enum sql_stmt_id id);
	/* Adds a row, copied, to a multi-row INSERT. NULL: each row on its own, as post. */
	int (*load)(struct sql_conn *c, enum sql_stmt_id id, const char *fmt, va_list ap);
	void (*reset)(struct sql_conn *c, enum sql_stmt_id id);
	int (*changes)(struct sql_conn *c, enum sql_stmt_id id);
	/*
	 * The number of statements that the server has stopped, for a server that may answer such a
	 * statement without an error as one that found no row; else NULL.
	 */
	int (*stops)(struct sql_conn *c, uint64_t *ret);
	int64_t (*col_int)(struct sql_conn *c, enum sql_stmt_id id, int col);
	const void *(*col_bytes)(struct sql_conn *c, enum sql_stmt_id id, int col, size_t *ret_len);
	/* The automatic id that the last run of this INSERT gave. */
	int64_t (*insert_id)(struct sql_conn *c, enum sql_stmt_id id);
	/* Makes the database itself, empty. NULL: it must exist. */
	int (*create_database)(struct sql_db *db);
	/* Used by ddl.c to find and create tables. Table names without prefix. */
	int (*has_column)(struct sql_conn *c, const char *table, const char *column); /* 1, 0 */
	/* Without has_column: every column of every table with the prefix. */
	int (*each_column)(struct sql_conn *c, sql_column_fn see, void *arg);
	int (*has_index)(struct sql_conn *c, const char *table, const char *name); /* 1, 0, errno */
	void (*put_type)(FILE *f, const struct sql_column *col);
	const char *auto_id; /* text behind the column; NULL: part of the type */
	/* Text behind a column that is the whole key; NULL: the key follows the columns. */
	const char *(*only_key)(const struct sql_column *col);
	void (*put_table_options)(struct sql_conn *c,
				  FILE *f);		  /* text behind the columns; or NULL */
	int (*run)(struct sql_conn *c, const char *text); /* one statement without result */
	/*
	 * begin_ddl and end_ddl enclose the creation of tables; end_ddl also follows drops; or
	 * NULL.
	 */
	int (*begin_ddl)(struct sql_conn *c), (*end_ddl)(struct sql_conn *c);
	int (*sync)(struct sql_db *db, const struct cfs_ctx *ctx); /* NULL: commits are durable */
	bool counts_round_trips; /* the dialect counts them itself */
	bool single_writer; /* one write connection, guarded by a mutex with deadline (SQLite) */
};

/* Implementations of struct cfs_engine_ops members, grouped by file; e is a struct sql_db. */
#include "meta/sql/ops.h"

#endif
