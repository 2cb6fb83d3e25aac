/* SPDX-License-Identifier: Apache-2.0 */
/* Connections, and the mapping of the server's errors. */
#include <errmsg.h>
#include <errno.h>
#include <mysqld_error.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/text/resolve.h"
#include "mysql-internal.h"

#define CONNECT_TIMEOUT_S 5
/* A longer wait for a row lock fails, and the transaction is retried within its deadline. */
#define LOCK_WAIT_S 2

/* Of UUID_SHORT() the part that stays: the second of the start, below 8 bits of the id. */
#define SERVER "CAST((UUID_SHORT()>>24)^(@@server_id<<30) AS SIGNED)"

/* Some libraries do not have these in their headers. */
enum {
	CODE_DISK_FULL = 1021,
	CODE_CONNECTION_KILLED = 1927,
	CODE_STATEMENT_TIMEOUT = 1969,	   /* MariaDB's max_statement_time */
	CODE_TOO_MANY_RESOURCES = 1226,	   /* of one user: max_user_connections */
	CODE_READ_TIMEOUT = 3024,	   /* MySQL's max_execution_time */
	CODE_ROLLED_BACK_AT_COMMIT = 3101, /* by group replication */
	CODE_TIDB_RETRYABLE = 8022,
	CODE_TIDB_SCHEMA_CHANGED = 8028,
	CODE_TIDB_WRITE_CONFLICT = 9007,
	CODE_SERVER_LOST_EXTENDED = 2055,
};

/* ---- errors ---- */

static bool is_lost(unsigned code, const char *text)
{
	switch (code) {
	case CR_CONNECTION_ERROR:
	case CR_CONN_HOST_ERROR:
	case CR_IPSOCK_ERROR:
	case CR_UNKNOWN_HOST:
	case CR_SERVER_GONE_ERROR:
	case CR_SERVER_HANDSHAKE_ERR:
	case CR_SERVER_LOST:
	case CODE_SERVER_LOST_EXTENDED:
	case ER_SERVER_SHUTDOWN:
	case CODE_CONNECTION_KILLED:
		return true;
	/*
	 * A Galera node that loses its majority at COMMIT: the other nodes may have received the
	 * transaction. The connection is closed, and the commit probe finds the outcome.
	 */
	case ER_ERROR_DURING_COMMIT:
		return strstr(text, "Not connected to Primary Component");
	default:
		return false;
	}
}

/*
 * Such an error runs no handler, so a compound statement leaves its transaction open. The
 * connection must be closed: its next statement would be part of that transaction.
 */
static bool is_stopped(unsigned code)
{
	return code == ER_QUERY_INTERRUPTED || code == CODE_STATEMENT_TIMEOUT ||
	       code == CODE_READ_TIMEOUT;
}

static bool is_conflict(unsigned code, const char *text)
{
	switch (code) {
	case ER_LOCK_DEADLOCK: /* also Galera's failed certification at COMMIT */
	case ER_LOCK_WAIT_TIMEOUT:
	case ER_CHECKREAD:
	case CODE_ROLLED_BACK_AT_COMMIT:
	case ER_UNKNOWN_COM_ERROR: /* a Galera node that is not synced with the cluster */
	case CODE_TIDB_RETRYABLE:
	case CODE_TIDB_SCHEMA_CHANGED:
	case CODE_TIDB_WRITE_CONFLICT:
		return true;
	/* "Got error 149 ... during COMMIT": HA_ERR_LOCK_DEADLOCK, from a cluster. */
	case ER_ERROR_DURING_COMMIT:
		return strstr(text, "error 149");
	default:
		return false;
	}
}

static int to_errno(unsigned code)
{
	switch (code) {
	case CODE_DISK_FULL:
	case ER_RECORD_FILE_FULL:
		return -ENOSPC;
	case ER_OPTION_PREVENTS_STATEMENT:
	case ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION:
	case ER_READ_ONLY_MODE:
		return -EROFS;
	case ER_TABLEACCESS_DENIED_ERROR:
	case ER_DBACCESS_DENIED_ERROR:
	case ER_ACCESS_DENIED_ERROR:
		return -EACCES;
	case CR_OUT_OF_MEMORY:
		return -ENOMEM;
	default:
		return -EIO;
	}
}

int mysql_error_of(struct mysql_conn *m, unsigned code, const char *text, const char *statement)
{
	if (is_lost(code, text)) {
		cfs_warn("connection lost: url=%s statement=%s error=%s", m->sql.db->where,
			 statement, text);
		return -ENOTCONN;
	}
	if (is_stopped(code)) {
		cfs_warn("statement stopped by the server, reconnecting: url=%s "
			 "statement=%s error=%s",
			 m->sql.db->where, statement, text);
		return -ENOTCONN;
	}
	if (is_conflict(code, text) || (code == ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION &&
					m->sql.certifies && !m->sql.db->read_only))
		return -EAGAIN;
	switch (code) {
	case ER_DUP_ENTRY:
		return -EEXIST;
	/* The column cannot hold the value: an id above 2^31, a text that is not UTF-8. */
	case ER_WARN_DATA_OUT_OF_RANGE:
	case ER_TRUNCATED_WRONG_VALUE:
	case ER_TRUNCATED_WRONG_VALUE_FOR_FIELD:
	case ER_INVALID_CHARACTER_STRING:
		return -EINVAL;
	case ER_DATA_TOO_LONG:
		return -ERANGE;
	/* Of a large extended attribute. The server closes the connection. */
	case ER_NET_PACKET_TOO_LARGE:
	case CR_NET_PACKET_TOO_LARGE:
		cfs_err("the server takes no packet of that length: raise its max_allowed_packet: "
			"url=%s statement=%s",
			m->sql.db->where, statement);
		m->sql.broken = true;
		return -E2BIG;
	/* The limit is server-wide; closing this connection frees its statements. */
	case ER_MAX_PREPARED_STMT_COUNT_REACHED:
		cfs_warn("the server has reached its max_prepared_stmt_count, reconnecting: raise "
			 "the limit: url=%s",
			 m->sql.db->where);
		m->sql.broken = true;
		return -EAGAIN;
	}
	cfs_err("mysql: url=%s statement=%s code=%u error=%s", m->sql.db->where, statement, code,
		text);
	return to_errno(code);
}

int mysql_run(struct mysql_conn *m, const char *text)
{
	m->sql.round_trips++;
	if (!mysql_query(m->handle, text))
		return 0;
	return mysql_error_of(m, mysql_errno(m->handle), mysql_error(m->handle), text);
}

int mysql_query_rows(struct mysql_conn *m, const char *text, MYSQL_RES **ret)
{
	int r = mysql_run(m, text);

	if (r)
		return r;
	*ret = mysql_store_result(m->handle);
	return *ret ? 0 : mysql_error_of(m, mysql_errno(m->handle), mysql_error(m->handle), text);
}

int mysql_start_txn(struct mysql_conn *m)
{
	return mysql_run(m,
			 m->sql.certifies ? "START TRANSACTION READ WRITE" : "START TRANSACTION");
}

int mysql_check_txn(const struct mysql_conn *m)
{
	bool there = m->handle->server_status & SERVER_STATUS_IN_TRANS;

	return m->in_txn && m->sql.certifies && !there ? -EAGAIN : 0;
}

/* ---- connecting ---- */

static int connect_error(const struct mysql_db *db, MYSQL *handle, char err[256])
{
	unsigned code = mysql_errno(handle);

	snprintf(err, 256, "%s: %s", db->sql.where, mysql_error(handle));
	switch (code) {
	case ER_ACCESS_DENIED_ERROR:
		return cfs_fail(err, -EACCES, "%s: wrong user name or password%s: %.100s",
				db->sql.where,
				db->password ? "" : " (no password in the URL or META_PASSWORD)",
				mysql_error(handle));
	case ER_DBACCESS_DENIED_ERROR:
		return cfs_fail(err, -EACCES, "%s: the user may not use this database: %.100s",
				db->sql.where, mysql_error(handle));
	case ER_BAD_DB_ERROR:
		return cfs_fail(err, -ENOENT,
				"%s: there is no such database: create it on the server",
				db->sql.where);
	case ER_CON_COUNT_ERROR:
	case ER_TOO_MANY_USER_CONNECTIONS:
	case CODE_TOO_MANY_RESOURCES:
		return cfs_fail(err, -EAGAIN,
				"%s: the server has no connection left for this mount: raise its "
				"max_connections, or set max_open_conns in the URL: %.80s",
				db->sql.where, mysql_error(handle));
	default:
		return is_lost(code, err) || is_stopped(code) ? -ENOTCONN : -EIO;
	}
}

#ifdef MARIADB_PACKAGE_VERSION
static int socket_of(MYSQL *handle)
{
	return (int)mysql_get_socket(handle);
}

/* Without verification, MariaDB's library falls back to plain text when the server has no TLS. */
static void set_tls_mode(MYSQL *handle, enum mysql_tls tls)
{
	my_bool on = 1, verify = tls == MYSQL_TLS_VERIFIED;

	if (tls >= MYSQL_TLS_PREFERRED)
		mysql_options(handle, MYSQL_OPT_SSL_ENFORCE, &on);
	mysql_options(handle, MYSQL_OPT_SSL_VERIFY_SERVER_CERT, &verify);
}
#else
static int socket_of(MYSQL *handle)
{
	return (int)handle->net.fd;
}

static void set_tls_mode(MYSQL *handle, enum mysql_tls tls)
{
	static const unsigned modes[] = {
		[MYSQL_TLS_OFF] = SSL_MODE_DISABLED,
		[MYSQL_TLS_PREFERRED] = SSL_MODE_PREFERRED,
		[MYSQL_TLS_UNVERIFIED] = SSL_MODE_REQUIRED,
		[MYSQL_TLS_VERIFIED] = SSL_MODE_VERIFY_IDENTITY,
	};
	const bool get_key = true;

	mysql_options(handle, MYSQL_OPT_SSL_MODE, &modes[tls]);
	/* Without TLS the password is encrypted for the server, as MariaDB's library does. */
	mysql_options(handle, MYSQL_OPT_GET_SERVER_PUBLIC_KEY, &get_key);
}
#endif

static void set_tls(const struct mysql_db *db, MYSQL *handle)
{
	set_tls_mode(handle, db->tls);
	if (db->tls_ca)
		mysql_options(handle, MYSQL_OPT_SSL_CA, db->tls_ca);
	if (db->tls_cert)
		mysql_options(handle, MYSQL_OPT_SSL_CERT, db->tls_cert);
	if (db->tls_key)
		mysql_options(handle, MYSQL_OPT_SSL_KEY, db->tls_key);
}

static int check_tls(const struct mysql_db *db, MYSQL *handle, char err[256])
{
	if (db->tls < MYSQL_TLS_UNVERIFIED || mysql_get_ssl_cipher(handle))
		return 0;
	return cfs_fail(err, -EIO, "%s: the server does not support TLS, which the URL asks for",
			db->sql.where);
}

/*
 * Sets up the session, once, whatever the server's defaults are. READ COMMITTED: no gap locks, no
 * snapshot to be refreshed. PIPES_AS_CONCAT: || concatenates, as in other databases.
 * sql_select_limit: a scan that ended early would lose files.
 */
static void set_session(const struct mysql_db *db, MYSQL *handle)
{
	char text[384];

	mysql_options(handle, MYSQL_SET_CHARSET_NAME, "utf8mb4");
	snprintf(text, sizeof(text),
		 "SET SESSION autocommit=1,completion_type=0,sql_safe_updates=0,"
		 "sql_select_limit=18446744073709551615,innodb_lock_wait_timeout=%d,sql_mode="
		 "'STRICT_ALL_TABLES,PIPES_AS_CONCAT,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION'",
		 LOCK_WAIT_S);
	mysql_options(handle, MYSQL_INIT_COMMAND, text);
	mysql_options(handle, MYSQL_INIT_COMMAND,
		      "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED");
}

static void set_timeouts(const struct mysql_db *db, MYSQL *handle, unsigned connect_s)
{
	unsigned io_s = (unsigned)CFS_MAX(db->sql.timeout_ms / 1000, LOCK_WAIT_S + 1);

	mysql_options(handle, MYSQL_OPT_CONNECT_TIMEOUT, &connect_s);
	mysql_options(handle, MYSQL_OPT_READ_TIMEOUT, &io_s);
	mysql_options(handle, MYSQL_OPT_WRITE_TIMEOUT, &io_s);
}

void mysql_disconnect(struct sql_conn *c)
{
	struct mysql_conn *m = mysql_conn(c);

	/* mysql_close() must not wait for the server. */
	if (c->broken && m->handle)
		shutdown(socket_of(m->handle), SHUT_RDWR);
	mysql_close_stmts(m);
	mysql_bulk_drop(m);
	mysql_text_free(&m->text);
	if (m->handle)
		mysql_close(m->handle);
	free(m);
}

/*
 * Enables multiple statements only for MYSQL_MULTI, so that no other text can execute more than one
 * statement.
 */
static int choose_way(const struct mysql_db *db, struct mysql_conn *m, char err[256])
{
	m->way = MYSQL_GENERIC;
	if (strstr(mysql_get_server_info(m->handle), "MariaDB"))
		m->way = MYSQL_COMPOUND;
	else if (db->sql.read_only || db->sql.missing)
		return 0;
	else if (!mysql_set_server_option(m->handle, MYSQL_OPTION_MULTI_STATEMENTS_ON))
		m->way = MYSQL_MULTI;
	else if (is_lost(mysql_errno(m->handle), mysql_error(m->handle)))
		return connect_error(db, m->handle, err);
	return 0;
}

/* 1: a node of a Galera cluster, whose nodes do not share locks. */
static int is_in_galera(struct mysql_conn *m)
{
	MYSQL_RES *rows;
	MYSQL_ROW row;
	int r = mysql_query_rows(m, "SHOW VARIABLES LIKE 'wsrep_on'", &rows);

	if (r)
		return r;
	row = mysql_fetch_row(rows);
	r = row && row[1] && !strcmp(row[1], "ON");
	mysql_free_result(rows);
	return r;
}

/*
 * Sets the session up for a cluster. wsrep_sync_wait: reads on this node include the changes that
 * other nodes have acknowledged, unless the URL says otherwise.
 */
static int join_galera(const struct mysql_db *db, struct mysql_conn *m)
{
	char text[64] = "SET SESSION wsrep_sync_wait=@@wsrep_sync_wait|1";
	int r = is_in_galera(m);

	if (r <= 0)
		return r;
	m->sql.certifies = true;
	m->sql.certification_row = (unsigned)(mysql_thread_id(m->handle) % SQL_CERTIFICATION_ROWS);
	if (db->sync_wait >= 0)
		snprintf(text, sizeof(text), "SET SESSION wsrep_sync_wait=%d", db->sync_wait);
	return mysql_run(m, text);
}

static int open_at(const struct mysql_db *db, const char *host, unsigned connect_s, MYSQL **ret,
		   char err[256])
{
	MYSQL *handle = mysql_init(NULL);
	int r;

	if (!handle)
		return -ENOMEM;
	set_timeouts(db, handle, connect_s);
	set_tls(db, handle);
	set_session(db, handle);
	if (!mysql_real_connect(handle, host, db->user, db->password,
				db->sql.missing ? NULL : db->database, db->port, db->socket,
				CLIENT_FOUND_ROWS))
		r = connect_error(db, handle, err);
	else
		r = check_tls(db, handle, err);
	if (r)
		mysql_close(handle);
	else
		*ret = handle;
	return r;
}

/*
 * Tries the addresses one by one: the library applies its timeout to each address (that of MariaDB
 * to the first one only).
 */
static int open_any(const struct mysql_db *db, MYSQL **ret, char err[256])
{
	cfs_deadline_t deadline = cfs_deadline_in(CONNECT_TIMEOUT_S * 1000);
	struct cfs_addresses list;
	char host[NI_MAXHOST];
	unsigned i;
	int r = cfs_resolve(db->host, db->port, "the MySQL server", deadline, &list, err);

	if (r)
		return r;
	r = -ENOTCONN;
	/*
	 * Each address gets an equal share of the time, so that a silent one does not use it all.
	 */
	for (i = 0; i < list.n && r == -ENOTCONN; i++) {
		uint64_t share_s = cfs_deadline_left_ms(deadline) / (list.n - i) / 1000;

		if (!getnameinfo((struct sockaddr *)&list.at[i].addr, list.at[i].len, host,
				 sizeof(host), NULL, 0, NI_NUMERICHOST))
			r = open_at(db, host, (unsigned)CFS_MAX(share_s, 1), ret, err);
	}
	return r;
}

/*
 * The library needs the host's name in two cases: "localhost" means its unix socket, and a
 * certificate is verified for the name.
 */
static int open_handle(const struct mysql_db *db, MYSQL **ret, char err[256])
{
	struct cfs_addresses list;
	int r;

	if (db->socket || !strcmp(db->host, "localhost"))
		return open_at(db, "localhost", CONNECT_TIMEOUT_S, ret, err);
	if (db->tls != MYSQL_TLS_VERIFIED)
		return open_any(db, ret, err);
	/* The library looks the name up without a deadline. */
	r = cfs_resolve(db->host, db->port, "the MySQL server",
			cfs_deadline_in(CONNECT_TIMEOUT_S * 1000), &list, err);
	return r ? r : open_at(db, db->host, CONNECT_TIMEOUT_S, ret, err);
}

/*
 * Takes a named lock, by which the session can be found until its end. TiDB keeps a transaction open
 * for one; some clusters refuse it: such a session has no name.
 */
static int name_session(struct mysql_conn *m)
{
	char text[SQL_SESSION_MAX + 32], name[SQL_SESSION_MAX];
	unsigned code;

	if (m->tidb)
		return 0;
	snprintf(name, sizeof(name), "cachefs %016llx", (unsigned long long)cfs_random_u64());
	snprintf(text, sizeof(text), "DO GET_LOCK('%s',0)", name);
	if (!mysql_query(m->handle, text)) {
		memcpy(m->sql.session, name, sizeof(name));
		return 0;
	}
	code = mysql_errno(m->handle);
	return is_lost(code, mysql_error(m->handle)) ? -ENOTCONN : 0;
}

int mysql_connect_to(struct sql_db *sql, bool writer, struct sql_conn **ret, char err[256])
{
	const struct mysql_db *db = (const struct mysql_db *)sql;
	struct mysql_conn *m = calloc(1, sizeof(*m));
	int r;

	if (!m)
		return -ENOMEM;
	r = open_handle(db, &m->handle, err);
	if (!r)
		r = choose_way(db, m, err);
	if (r) {
		mysql_disconnect(&m->sql);
		return r;
	}
	m->tidb = strstr(mysql_get_server_info(m->handle), "TiDB");
	m->sql.db = sql;
	r = join_galera(db, m);
	if (m->sql.certifies)
		atomic_store(&sql->in_txn_only, true);
	/* The nodes of these share what they have acknowledged. */
	if (!m->sql.certifies && !m->tidb)
		m->sql.server = SERVER;
	/* Multi-statement queries do not write certification rows. */
	if (m->sql.certifies && m->way == MYSQL_MULTI)
		m->way = MYSQL_GENERIC;
	if (!r)
		r = name_session(m);
	if (!r)
		r = mysql_stops(&m->sql, &m->sql.stops);
	/*
	 * TiDB has no read-only transactions; the core refuses changes of a read-only mount anyway.
	 */
	if (!r && (sql->read_only || m->sql.certifies) && !m->tidb)
		r = mysql_run(m, "SET SESSION TRANSACTION READ ONLY");
	if (r) {
		connect_error(db, m->handle, err);
		mysql_disconnect(&m->sql);
		return r;
	}
	*ret = &m->sql;
	return 0;
}
