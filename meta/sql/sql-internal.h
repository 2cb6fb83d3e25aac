/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by runner, pool, schema and dialects: the database and its connections.
 *
 * Locks: write_lock protects the write connection of a single-writer database. It is held across
 * statements and taken with a deadline, before pool.lock; pool.lock's holder only tries it.
 */
#ifndef CFS_META_SQL_INTERNAL_H
#define CFS_META_SQL_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "meta/engine/optimistic.h"
#include "meta/sql/sql.h"

#define SQL_STMT_WORDS	  ((SQL_STMT_COUNT + 63) / 64)
#define SQL_SESSION_MAX	  128 /* of its name, with NUL */
#define SQL_ABANDONED_MAX 64

struct sql_conn {
	struct sql_db *db;
	struct sql_conn *next; /* in the pool */
	bool writer;
	bool conflict; /* the database asked to try the transaction again */
	bool broken;   /* must not be used again */
	bool unknown;  /* the answer to COMMIT, or to a change without a transaction, was lost */
	uint64_t txn;  /* then the server's transaction number, 0 when unknown */
	char session[SQL_SESSION_MAX]; /* its name at the server; "": not known */
	bool repeated;		 /* the answer to an earlier COMMIT of this transaction was lost */
	bool changed_nothing;	 /* a statement of this transaction has changed no row */
	uint64_t stops;		 /* the last result of sql_dialect.stops */
	cfs_deadline_t deadline; /* of the operation that uses it */
	unsigned round_trips;
	bool certifies;		    /* the server is a node of a cluster: certification.c */
	unsigned certification_row; /* below SQL_CERTIFICATION_ROWS; connections should differ */
	/*
	 * An expression: a number that another server has not, nor the same one after a restart.
	 * NULL: none is needed, as no server lacks changes that were acknowledged.
	 */
	const char *server;
	unsigned epoch;		   /* sql_db.epoch when it was connected */
	uint64_t made_ms, idle_ms; /* when it was connected, and last used */
	uint64_t commits;	   /* sql_db.commits at its last read: the age of its page cache */
	uint64_t prepared[SQL_STMT_WORDS], open[SQL_STMT_WORDS];
};

/* Sessions that may still execute the request of an operation that has failed: fence.c. */
struct sql_abandoned {
	pthread_mutex_t lock; /* no other lock is taken under it */
	atomic_uint n;
	struct sql_abandoned_session {
		char session[SQL_SESSION_MAX];
		cfs_deadline_t give_up; /* 0: no attempt to end it */
	} v[SQL_ABANDONED_MAX];		/* the oldest first */
};

struct sql_db {
	struct cfs_engine engine; /* first */
	const struct sql_dialect *dialect;
	struct cfs_optimistic *optimistic; /* of engines with optimistic operations, else NULL */
	bool read_only;
	bool missing;	     /* the database does not exist; format will create it */
	uint64_t timeout_ms; /* for work without a context */
	char *prefix;	     /* of table names in statements: "jfs_" */
	char *bare_prefix;   /* for the catalogue, when `prefix` contains a schema; or NULL */
	char *where;	     /* the database in messages, without secrets */
	_Atomic uint64_t commits;
	atomic_uint epoch;	 /* changes with the schema or the server */
	atomic_bool away;	 /* the last attempt to connect failed */
	atomic_bool has_records; /* the table of records.c exists */
	atomic_bool in_txn_only; /* all writes must be in transactions */
	struct sql_abandoned abandoned;

	struct {
		pthread_mutex_t lock; /* no other lock is taken under it */
		uint32_t *have;	      /* for each table, bits of the existing columns; or NULL */
	} columns;

	pthread_mutex_t write_lock;
	struct sql_conn *writer; /* under write_lock; connected at first use */

	struct {
		pthread_mutex_t lock;
		TAILQ_HEAD(, sql_waiter) waiters; /* for a connection, in order of arrival */
		struct sql_conn *idle;		  /* most recently used first */
		unsigned n_conns, max_conns, max_idle;
		uint64_t idle_ms, life_ms; /* of a connection, 0: no limit */
		uint64_t swept_ms;
		cfs_deadline_t full_until; /* until then at most full_conns connections */
		unsigned full_conns;
	} pool;
};

static inline bool sql_refuses_changes(const struct sql_db *db)
{
	return db->read_only || atomic_load(&db->engine.host->refuse_changes);
}

/* Fills the fields that dialects share, except `where`. db: zeroed memory of the dialect's size. */
int sql_db_init(struct sql_db *db, const struct cfs_engine_conf *conf,
		const struct cfs_engine_ops *ops, const struct sql_dialect *dialect);
/* Makes the first connection, to check that the database can be reached. err: one line. */
int sql_db_probe(struct sql_db *db, cfs_deadline_t deadline, char err[256]);
/*
 * Closes all connections and frees the fields. Required after sql_db_init, also after its failure.
 */
void sql_db_deinit(struct sql_db *db);

/* -ETIMEDOUT: no connection in time; or the error of connecting. */
int sql_acquire_writer(struct sql_db *db, cfs_deadline_t deadline, struct sql_conn **ret);
/*
 * quick: the read takes microseconds, and may use the idle write connection, whose page cache stays
 * valid after commits of this process.
 */
int sql_acquire_reader(struct sql_db *db, cfs_deadline_t deadline, bool quick,
		       struct sql_conn **ret);
void sql_release(struct sql_conn *c);
/* After a change of the schema: closes the connections with their prepared statements. */
void sql_forget_statements(struct sql_db *db);
/*
 * After a lost answer: closes all connections as old as c. A server that is shutting down must not
 * be asked for the outcome of a commit, because its standby may lack its last commits.
 */
void sql_forget_server(const struct sql_conn *c);

/*
 * ---- fence.c ----
 *
 * Called before each attempt of an operation: ends the abandoned sessions, and the session of the
 * operation's own lost connection ("": none). 0: they are gone, or the server refuses to end them;
 * -EAGAIN: not yet; -ENOTCONN, -ETIMEDOUT: no answer.
 */
int sql_fence(struct sql_conn *c, const char *session);
/*
 * Leaves a session ("": none) to the next operation, when its own fails at the deadline. Of more
 * than SQL_ABANDONED_MAX the oldest is dropped.
 */
void sql_abandon(struct sql_db *db, const char *session);

/* ---- commit-probe.c: the commit probe of this thread's transaction ---- */
void sql_probe_begin(void);
/* Notes a statement before it runs, with its parameters. */
void sql_probe_note(enum sql_stmt_id id, const struct sql_param *v);
/* Notes that the statement was executed. */
void sql_probe_confirm(void);
bool sql_probe_known(void);
/* Runs the commit probe. 1: committed, 0: not committed, or repeatable; -EIO: not known. */
int sql_probe_ask(struct sql_conn *c);

/* True for statements in which a duplicate key means a race: the transaction is retried. */
bool sql_is_race(int id);
/* Expands the words in braces of a statement; malloc'ed, NULL without memory. */
char *sql_expand(struct sql_conn *c, const char *text);
const char *sql_stmt_text(enum sql_stmt_id id);
const char *sql_stmt_name(enum sql_stmt_id id);

/* ---- schema (volume-format section 3) ---- */

enum sql_kind { SQL_KIND_I32, SQL_KIND_I64, SQL_KIND_STRING, SQL_KIND_TEXT, SQL_KIND_BLOB };

struct sql_column {
	const char *name;
	enum sql_kind kind;
	unsigned size; /* of a binary column of limited length, else 0 */
	bool null;
	bool key; /* (part of) the primary key */
	bool auto_id;
	bool zero; /* DEFAULT 0 */
};

struct sql_index {
	const char *name;    /* without the prefix UQE_<table>_ or IDX_<table>_ */
	const char *columns; /* comma separated */
	bool unique;
};

#define SQL_MAX_COLUMNS 20
struct sql_table {
	const char *name;			    /* without prefix */
	struct sql_column columns[SQL_MAX_COLUMNS]; /* ends with name NULL */
	struct sql_index indexes[3];		    /* ends with name NULL */
};

extern const struct sql_table sql_tables[];	/* ends with name NULL */
extern const struct sql_table sql_record_table; /* created by the first record: records.c */

/* ddl.c */
/*
 * table: without prefix. 1: the column exists; 0: it does not; negative: no answer, and the
 * transaction will be tried again.
 */
int sql_has_column(struct sql_conn *c, const char *table, const char *column);
/* 1: a table, index or column of the list is missing, 0: none, or negative. */
int sql_check_schema(struct sql_conn *c);
/* Creates missing tables, indexes, columns; in the current transaction where the database can. */
int sql_create_schema(struct sql_conn *c);
/* Drops every table of the list, and sql_record_table. */
int sql_drop_schema(struct sql_conn *c);
int sql_create_table(struct sql_conn *c, const struct sql_table *t);

static inline const char *sql_bare_prefix(const struct sql_db *db)
{
	return db->bare_prefix ? db->bare_prefix : db->prefix;
}

static inline const struct sql_dialect *sql_dialect(const struct sql_conn *c)
{
	return c->db->dialect;
}

#endif
