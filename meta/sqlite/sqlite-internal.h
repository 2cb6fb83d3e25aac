/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the SQLite dialect. */
#ifndef CFS_META_SQL_SQLITE_INTERNAL_H
#define CFS_META_SQL_SQLITE_INTERNAL_H

#include <sqlite3.h>

#include "meta/sql/sql-internal.h"

/*
 * The checkpointer is a thread with its own connection, which moves most of the write-ahead log
 * into the database. The lock protects `stop` and the wait for work. The phases form a cycle: the
 * write connection ends IDLE and BULK_MOVED, the thread ends WANTED.
 */
enum sqlite_checkpoint {
	SQLITE_CHECKPOINT_IDLE,
	SQLITE_CHECKPOINT_WANTED,
	SQLITE_CHECKPOINT_BULK_MOVED,
};

struct sqlite_checkpointer {
	atomic_int phase; /* enum sqlite_checkpoint */
	/* Under the write lock. */
	int next_frames;      /* log length at which the next run starts */
	uint64_t frame_bytes; /* 0: not known */
	uint64_t warn_bytes;  /* log length of the next warning */
	pthread_mutex_t lock;
	pthread_cond_t wake, moved;
	pthread_t thread;
	bool running, stop;
};

/* The space on the disk of the database, as the last look found it. */
struct sqlite_room {
	_Atomic uint64_t look_ms; /* time of the next look */
	atomic_bool full;
};

/* The database file: sqlite-file.c. */
struct sqlite_file {
	_Atomic uint64_t ino;	  /* its inode number; 0: not known, nothing was written yet */
	_Atomic uint64_t look_ms; /* time of the next look */
	atomic_bool gone;
};

struct sqlite_db {
	struct sql_db sql; /* first */
	char *path;
	atomic_bool immutable;	     /* read-only, and the log cannot be opened */
	_Atomic uint64_t synced_log; /* inode number of the log whose directory entry is durable */
	struct sqlite_checkpointer checkpointer;
	struct sqlite_room room;
	struct sqlite_file file;
};

struct sqlite_conn {
	struct sql_conn sql; /* first */
	sqlite3 *handle;
	sqlite3_stmt *begin, *commit, *rollback;
	sqlite3_stmt *stmt[SQL_STMT_COUNT];
	bool completes_database; /* copies the log into it before it closes */
};

extern const struct sql_dialect sql_sqlite;

/* The engine's open and close. */
int sql_sqlite_open(const struct cfs_engine_conf *conf, struct cfs_engine **ret, char err[256]);
void sql_sqlite_close(struct cfs_engine *e);

/* Maps a result code; unexpected ones are logged with the statement (or NULL) at fault. */
int sqlite_error(sqlite3 *handle, int rc, const char *statement);
int sqlite_open_handle(struct sqlite_db *db, int flags, sqlite3 **ret);
/* Reads the first page: detects a file that is not a database, or is locked. */
int sqlite_probe(sqlite3 *handle);
/* Runs a statement without parameters and result, formatted by sqlite3_mprintf (%w, %q). */
__attribute__((format(printf, 2, 3))) int sqlite_run(sqlite3 *handle, const char *fmt, ...);

/* sqlite-log.c */
void sqlite_checkpointer_init(struct sqlite_db *db);
void sqlite_checkpointer_stop(struct sqlite_db *db);
/* Copies what the log has into the database, as far as no reader needs it there. Errors are logged. */
void sqlite_move_log(sqlite3 *handle);
/* Makes the write connection report the length of its log to the checkpointer. */
void sqlite_checkpointer_watch(struct sqlite_db *db, sqlite3 *handle);
int sqlite_sync(struct sql_db *db, const struct cfs_ctx *ctx);

/* sqlite-file.c */
/* Called when the first connection that writes has opened the file. */
void sqlite_remember_file(struct sqlite_db *db);
/* 0; -EIO: the path leads to another file or none. Logs when that changes. */
int sqlite_check_file(struct sqlite_db *db);
/* The same; a file that is gone may be noticed 100 ms late. */
int sqlite_check_file_often(struct sqlite_db *db);

/* sqlite-advice.c */
int sqlite_op_advise(struct cfs_engine *e, const struct cfs_ctx *ctx, const struct cfs_adviser *to);

/* sqlite-room.c */
int sqlite_op_room(struct cfs_engine *e);

/* sqlite-schema.c */
void sqlite_put_type(FILE *f, const struct sql_column *col);
const char *sqlite_only_key(const struct sql_column *col);
int sqlite_has_column(struct sql_conn *c, const char *table, const char *column);
int sqlite_has_index(struct sql_conn *c, const char *table, const char *name);
int sqlite_run_ddl(struct sql_conn *c, const char *text);

#endif
