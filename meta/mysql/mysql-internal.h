/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the MySQL dialect share. It builds with MariaDB Connector/C and with
 * libmysqlclient, and speaks to MariaDB, MySQL, Galera and TiDB.
 */
#ifndef CFS_META_MYSQL_INTERNAL_H
#define CFS_META_MYSQL_INTERNAL_H

#include <mysql.h>

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

/* A bit per column of sql_tables. */
struct mysql_columns {
	pthread_mutex_t lock;
	uint32_t there[32];
	bool known;
};

struct mysql_db {
	struct sql_db sql; /* first */
	char *user, *password, *host, *socket, *database;
	unsigned port;
	enum mysql_tls tls;
	char *tls_ca, *tls_cert, *tls_key;
	struct mysql_columns columns;
};

struct mysql_value {
	int64_t num;
	unsigned long len;
	my_bool null, truncated;
	void *buf; /* of a column of bytes, filled when asked for */
	size_t cap;
};

struct mysql_stmt {
	MYSQL_STMT *handle;
	unsigned n_params, n_columns;
	MYSQL_BIND *bind; /* parameters, then columns */
	struct mysql_value *values;
	bool executed;
};

struct mysql_conn {
	struct sql_conn sql; /* first */
	MYSQL *handle;
	bool in_txn;
	struct mysql_stmt stmt[SQL_STMT_COUNT];
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
/* One statement of text without result; logged as its first word. */
int mysql_run(struct mysql_conn *m, const char *text);

/* stmt.c: members of the dialect */
int mysql_prepare_stmt(struct sql_conn *c, enum sql_stmt_id id, const char *text);
int mysql_bind_int(struct sql_conn *c, enum sql_stmt_id id, int n, int64_t v);
int mysql_bind_bytes(struct sql_conn *c, enum sql_stmt_id id, int n, const void *v, size_t len,
		     bool text);
int mysql_bind_null(struct sql_conn *c, enum sql_stmt_id id, int n);
int mysql_step(struct sql_conn *c, enum sql_stmt_id id);
void mysql_reset_stmt(struct sql_conn *c, enum sql_stmt_id id);
int mysql_changes(struct sql_conn *c, enum sql_stmt_id id);
int64_t mysql_insert_id_of(struct sql_conn *c, enum sql_stmt_id id);
int64_t mysql_col_int(struct sql_conn *c, enum sql_stmt_id id, int col);
const void *mysql_col_bytes(struct sql_conn *c, enum sql_stmt_id id, int col, size_t *ret_len);
void mysql_close_stmts(struct mysql_conn *m);

/* schema.c: members of the dialect */
int mysql_check_schema(struct sql_conn *c);
int mysql_create_schema(struct sql_conn *c);
int mysql_drop_schema(struct sql_conn *c);
bool mysql_has_column(struct sql_conn *c, const char *table, const char *column);

#endif
