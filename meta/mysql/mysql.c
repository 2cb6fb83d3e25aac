/* SPDX-License-Identifier: Apache-2.0 */
/* The MySQL dialect and engine. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/module.h"
#include "meta/sql/engine-ops.h"
#include "mysql-internal.h"

#define DEFAULT_PORT 3306
/* open() waits so long for a server that has no free connection. */
#define PROBE_MS 5000

/* ---- transactions ---- */

static int begin(struct sql_conn *c)
{
	struct mysql_conn *m = mysql_conn(c);
	int r = mysql_start_txn(m);

	m->in_txn = r == 0;
	return r;
}

static int commit(struct sql_conn *c)
{
	struct mysql_conn *m = mysql_conn(c);
	int r = mysql_bulk_flush(m);

	if (!r)
		r = mysql_check_txn(m);
	if (r)
		return r;
	m->in_txn = false;
	r = mysql_run(m, "COMMIT");
	if (r == -ENOTCONN) {
		c->unknown = true;
		c->txn = sql_probe_known();
	}
	return r;
}

/* The server does not record outcomes, so the commit probe searches for the changes. */
static int resolve(struct sql_conn *c, uint64_t txn)
{
	return sql_probe_ask(c);
}

/* A session has a named lock (mysql_connect_to), and users may end their own sessions. */
static int end_session(struct sql_conn *c, const char *session)
{
	struct mysql_conn *m = mysql_conn(c);
	unsigned long id;
	MYSQL_RES *rows;
	MYSQL_ROW row;
	char text[SQL_SESSION_MAX + 32];
	int r;

	snprintf(text, sizeof(text), "SELECT IS_USED_LOCK('%s')", session);
	r = mysql_query_rows(m, text, &rows);
	if (r)
		return r;
	row = mysql_fetch_row(rows);
	id = row && row[0] ? strtoul(row[0], NULL, 10) : 0;
	mysql_free_result(rows);
	if (!id)
		return 0;
	snprintf(text, sizeof(text), "KILL %lu", id);
	c->round_trips++;
	/* It may have ended by itself. The next look tells, also when the user may not do this. */
	mysql_query(m->handle, text);
	return -EAGAIN;
}

/* The server rolls back the transaction of a lost connection. */
static int rollback(struct sql_conn *c)
{
	int r;

	mysql_bulk_drop(mysql_conn(c));
	mysql_conn(c)->in_txn = false;
	if (c->broken)
		return 0;
	r = mysql_run(mysql_conn(c), "ROLLBACK");
	/* The transaction may still be open; the next START TRANSACTION would commit it. */
	if (r < 0)
		c->broken = true;
	return r;
}

/* ---- texts ---- */

#define UPSERT " ON DUPLICATE KEY UPDATE "

static const char *text(enum sql_stmt_id id)
{
	switch (id) {
	case SQL_append_chunk:
		return "INSERT INTO {chunk}(inode,indx,slices) VALUES(?,?,?)" UPSERT
		       "slices=slices||VALUES(slices)";
	case SQL_chunk_length:
		return "SELECT LENGTH(slices) FROM {chunk} WHERE inode=? AND indx=?";
	case SQL_chunk_lengths:
		return "SELECT indx,LENGTH(slices) FROM {chunk} WHERE inode=? AND indx>=? "
		       "ORDER BY indx LIMIT ?";
	case SQL_put_xattr:
		return "INSERT INTO {xattr}(inode,name,value) VALUES(?,?,?)" UPSERT
		       "value=VALUES(value)";
	case SQL_put_dir_stat:
		return "INSERT INTO {dir_stats}(inode,data_length,used_space,used_inodes) "
		       "VALUES(?,?,?,?)" UPSERT "data_length=VALUES(data_length),"
		       "used_space=VALUES(used_space),used_inodes=VALUES(used_inodes)";
	case SQL_put_dir_quota:
		return "INSERT INTO {dir_quota}(inode,max_space,max_inodes,used_space,used_inodes) "
		       "VALUES(?,?,?,?,?)" UPSERT "max_space=VALUES(max_space),"
		       "max_inodes=VALUES(max_inodes),used_space=VALUES(used_space),"
		       "used_inodes=VALUES(used_inodes)";
	case SQL_put_owner_quota:
		return "INSERT INTO {user_group_quota}"
		       "(qtype,qkey,max_space,max_inodes,used_space,used_inodes) "
		       "VALUES(?,?,?,?,?,?)" UPSERT "max_space=VALUES(max_space),"
		       "max_inodes=VALUES(max_inodes),used_space=VALUES(used_space),"
		       "used_inodes=VALUES(used_inodes)";
	case SQL_add_owner_quota:
		return "INSERT INTO {user_group_quota}"
		       "(qtype,qkey,max_space,max_inodes,used_space,used_inodes) "
		       "VALUES(?,?,-1,-1,?,?)" UPSERT "used_space=used_space+VALUES(used_space),"
		       "used_inodes=used_inodes+VALUES(used_inodes)";
	/*
	 * IN with a subquery would read and lock every node. LIMIT keeps the order of the subquery.
	 */
	case SQL_lock_nodes:
		return "SELECT {NODE},n.inode FROM (SELECT inode FROM {edge} WHERE parent=? AND "
		       "name=? "
		       "UNION ALL SELECT inode FROM {edge} WHERE parent=? AND name=? "
		       "ORDER BY inode LIMIT 2) e STRAIGHT_JOIN {node} n ON n.inode=e.inode"
		       "{FOR_UPDATE}";
	case SQL_load_ref:
		return "INSERT INTO {chunk_ref}(chunkid,size,refs) VALUES(?,?,?)" UPSERT
		       "refs=refs+VALUES(refs)";
	case SQL_clock:
		return "SELECT CAST(UNIX_TIMESTAMP(SYSDATE()) AS SIGNED)";
	default:
		return NULL;
	}
}

static bool is_word(const char *word, size_t len, const char *wanted)
{
	return len == strlen(wanted) && !memcmp(word, wanted, len);
}

static const char *word(const struct sql_conn *c, const char *word, size_t len)
{
	/* sql_certify_dir and sql_close_dir in a batch (batch-texts.h). */
	if (is_word(word, len, "CERTIFY_DIR"))
		return c->certifies ? "INSERT INTO {flock}(inode,sid,owner,ltype) "
				      "VALUES(p_dir,0,CONNECTION_ID() MOD 16,0); "
				      "DELETE FROM {flock} WHERE inode=p_dir AND sid=0 AND "
				      "owner=CONNECTION_ID() MOD 16; "
				    : "";
	if (is_word(word, len, "CLOSE_DIR"))
		return c->certifies
			       ? "INSERT INTO {flock}(inode,sid,owner,ltype) "
				 "VALUES" SQL_CERTIFICATION_VALUES(
					 "p_ino") "; DELETE FROM {flock} WHERE inode=p_ino AND "
						  "sid=0; "
			       : "";
	/* mysql_check_txn() in a batch, before COMMIT. */
	if (is_word(word, len, "STILL_IN"))
		return c->certifies ? "IF @@in_transaction=0 THEN SIGNAL SQLSTATE '45000'; END IF; "
				    : "";
	/* TiDB has no shared locks, and rejects the syntax. */
	if (is_word(word, len, "KEEP_LATE"))
		return ((const struct mysql_conn *)c)->tidb ? " FOR UPDATE" : NULL;
	return NULL;
}

/* ---- the database ---- */

static int create_database(struct sql_db *sql)
{
	struct mysql_db *db = (struct mysql_db *)sql;
	struct sql_conn *c;
	char err[256] = "", *statement;
	int r;

	if (!sql->missing)
		return 0;
	r = mysql_connect_to(sql, true, &c, err);
	if (r) {
		cfs_err("connection failed: url=%s error=%s", sql->where, err);
		return r;
	}
	c->db = sql;
	if (asprintf(&statement,
		     "CREATE DATABASE IF NOT EXISTS `%s` CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
		     db->database) < 0) {
		mysql_disconnect(c);
		return -ENOMEM;
	}
	r = mysql_run_ddl(c, statement);
	free(statement);
	mysql_disconnect(c);
	return r;
}

static const struct sql_dialect dialect = {
	.name = "mysql",
	.for_update = " FOR UPDATE",
	.keep_late = " LOCK IN SHARE MODE",
	.or_ignore = "IGNORE ",
	.else_ignore = "",
	.word = word,
	.create_database = create_database,
	.connect = mysql_connect_to,
	.disconnect = mysql_disconnect,
	.begin = begin,
	.commit = commit,
	.resolve = resolve,
	.end_session = end_session,
	.rollback = rollback,
	.text = text,
	.prepare = mysql_prepare_stmt,
	.bind = mysql_bind,
	.step = mysql_step,
	.load = mysql_bulk_add,
	.reset = mysql_reset_stmt,
	.changes = mysql_changes,
	.stops = mysql_stops,
	.insert_id = mysql_insert_id_of,
	.col_int = mysql_col_int,
	.col_bytes = mysql_col_bytes,
	.each_column = mysql_each_column,
	.has_index = mysql_has_index,
	.put_type = mysql_put_type,
	.auto_id = "AUTO_INCREMENT",
	.put_table_options = mysql_put_table_options,
	.run = mysql_run_ddl,
	.end_ddl = mysql_end_ddl,
};

/* ---- the engine ---- */

static int copy(const char *from, char **ret)
{
	if (!from)
		return 0;
	*ret = strdup(from);
	return *ret ? 0 : -ENOMEM;
}

/* "HOST", "HOST:PORT", "[ADDRESS]:PORT". */
static int parse_host(struct mysql_db *db, const char *text, char err[256])
{
	const char *end = *text == '[' ? strchr(text, ']') : NULL;
	const char *colon = strrchr(end ? end : text, ':');
	char *rest = NULL;
	unsigned long port;

	db->port = DEFAULT_PORT;
	if (colon) {
		port = strtoul(colon + 1, &rest, 10);
		if (!colon[1] || *rest || !port || port > 65535)
			return cfs_fail(err, -EINVAL,
					"mysql://: bad port in the server's address: %.100s", text);
		db->port = (unsigned)port;
	}
	if (end)
		db->host = strndup(text + 1, (size_t)(end - text - 1));
	else
		db->host = colon ? strndup(text, (size_t)(colon - text)) : strdup(text);
	return db->host ? 0 : -ENOMEM;
}

static int parse_tls(struct mysql_db *db, const struct cfs_url *url, char err[256])
{
	static const struct {
		const char *word;
		enum mysql_tls tls;
	} words[] = {
		{"false", MYSQL_TLS_OFF},
		{"true", MYSQL_TLS_VERIFIED},
		{"preferred", MYSQL_TLS_PREFERRED},
		{"skip-verify", MYSQL_TLS_UNVERIFIED},
	};
	const char *word = cfs_url_option(url, "tls");
	size_t i;
	int r;

	for (i = 0; word && i < CFS_ARRAY_SIZE(words); i++)
		if (strcmp(words[i].word, word) == 0)
			break;
	if (i == CFS_ARRAY_SIZE(words))
		return cfs_fail(err, -EINVAL,
				"mysql://: tls must be true, skip-verify, preferred or false");
	db->tls = word ? words[i].tls : MYSQL_TLS_OFF;
	r = copy(cfs_url_option(url, "tls-ca-cert-file"), &db->tls_ca);
	if (!r)
		r = copy(cfs_url_option(url, "tls-cert-file"), &db->tls_cert);
	return r ? r : copy(cfs_url_option(url, "tls-key-file"), &db->tls_key);
}

static int parse_sync_wait(struct mysql_db *db, const struct cfs_url *url, char err[256])
{
	const char *text = cfs_url_option(url, "wsrep_sync_wait");
	char *rest;

	db->sync_wait = -1;
	if (!text)
		return 0;
	db->sync_wait = (int)strtol(text, &rest, 10);
	if (*text && !*rest && db->sync_wait >= 0 && db->sync_wait <= 15)
		return 0;
	return cfs_fail(err, -EINVAL, "mysql://: wsrep_sync_wait must be 0 to 15");
}

static int describe(struct mysql_db *db)
{
	cfs_auto_free char *where = NULL;
	int r = db->socket
			? asprintf(&where, "mysql://unix(%s)/%s", db->socket, db->database)
			: asprintf(&where, "mysql://(%s:%u)/%s", db->host, db->port, db->database);

	if (r < 0) {
		where = NULL;
		return -ENOMEM;
	}
	/* The name of the database may be options with a password. */
	db->sql.where = cfs_url_masked(where);
	return db->sql.where ? 0 : -ENOMEM;
}

static int parse(struct mysql_db *db, const struct cfs_url *url, char err[256])
{
	int r;

	if (!url->path || !*url->path)
		return cfs_fail(err, -EINVAL, "mysql://: the name of the database is missing");
	if (strchr(url->path, '`'))
		return cfs_fail(err, -EINVAL, "mysql://: bad name of a database");
	r = copy(url->path, &db->database);
	if (!r)
		r = copy(url->user, &db->user);
	if (!r)
		r = url->password ? copy(url->password, &db->password)
				  : cfs_engine_password(&db->password, err);
	if (!r)
		r = copy(url->socket, &db->socket);
	if (!r && !db->socket)
		r = parse_host(db, url->hosts ? url->hosts : "127.0.0.1", err);
	if (!r)
		r = parse_tls(db, url, err);
	if (!r)
		r = parse_sync_wait(db, url, err);
	return r ? r : describe(db);
}

static void close_engine(struct cfs_engine *e)
{
	struct mysql_db *db = (struct mysql_db *)sql_db(e);

	sql_db_deinit(&db->sql);
	cfs_optimistic_destroy(&db->optimistic);
	free(db->user);
	free(db->password);
	free(db->host);
	free(db->socket);
	free(db->database);
	free(db->tls_ca);
	free(db->tls_cert);
	free(db->tls_key);
	free(db);
}

/*
 * -EROFS: the server is read-only, such as a replica, and the user has none of the privileges with
 * which a user may write nevertheless.
 */
static int check_writable(struct mysql_db *db, char err[256])
{
	cfs_deadline_t deadline = cfs_deadline_in(db->sql.timeout_ms);
	struct sql_conn *c;
	MYSQL_RES *rows;
	MYSQL_ROW row;
	bool refused;
	int r = sql_acquire_reader(&db->sql, deadline, false, &c);

	if (r)
		return r;
	r = mysql_query_rows(mysql_conn(c),
			     "SELECT @@global.read_only AND NOT EXISTS(SELECT 1 FROM "
			     "information_schema.USER_PRIVILEGES WHERE PRIVILEGE_TYPE IN "
			     "('SUPER','READ ONLY ADMIN','READ_ONLY ADMIN','CONNECTION_ADMIN') AND "
			     "GRANTEE=CONCAT('''',REPLACE(CURRENT_USER(),'@','''@'''),''''))",
			     &rows);
	if (r) {
		sql_release(c);
		return r;
	}
	row = mysql_fetch_row(rows);
	refused = row && row[0] && *row[0] == '1';
	mysql_free_result(rows);
	sql_release(c);
	if (!refused)
		return 0;
	return cfs_fail(err, -EROFS,
			"%s: the server is read-only: mount with ro, or name its primary",
			db->sql.where);
}

static const struct cfs_engine_ops engine;

static void init_library(void)
{
	mysql_library_init(0, NULL, NULL);
}

static int open_engine(const struct cfs_engine_conf *conf, struct cfs_engine **ret, char err[256])
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct mysql_db *db = calloc(1, sizeof(*db));
	int r;

	if (!db)
		return -ENOMEM;
	pthread_once(&once, init_library);
	cfs_optimistic_init(&db->optimistic);
	db->sql.optimistic = &db->optimistic;
	snprintf(err, 256, "mysql://: bad value of a pool option or of table_prefix");
	r = sql_db_init(&db->sql, conf, &engine, &dialect);
	if (!r)
		r = parse(db, conf->url, err);
	if (!r)
		r = sql_db_probe(&db->sql, cfs_deadline_in(CFS_MIN(db->sql.timeout_ms, PROBE_MS)),
				 err);
	if (!r && !db->sql.read_only) {
		snprintf(err, 256, "%s: connection lost while connecting", db->sql.where);
		r = check_writable(db, err);
	}
	/* create() will create the database. */
	if (r == -ENOENT && conf->meta->create) {
		db->sql.missing = true;
		r = 0;
	}
	if (r < 0) {
		close_engine(&db->sql.engine);
		return r;
	}
	*ret = &db->sql.engine;
	return 0;
}

static const struct cfs_engine_ops engine = {
	.name = "mysql",
	.open = open_engine,
	.close = close_engine,
	SQL_ENGINE_OPTIMISTIC_OPS(mysql),
	.rename = mysql_op_rename,
	.commit_group = mysql_op_commit_group,
};

CFS_MODULE_EXPORT(&engine);
