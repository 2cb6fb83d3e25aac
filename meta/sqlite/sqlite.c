/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The SQLite dialect: one write connection, several read connections, write-ahead log. There is no
 * busy handler: a busy database is -EAGAIN, and the runner retries until the deadline.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "meta/sqlite/sqlite-internal.h"

/* Page cache; mapped pages do not count. */
#define WRITER_CACHE_KIB 1024
#define READER_CACHE_KIB 512
#define MMAP_BYTES	 (256 << 20)

/*
 * Page size of a new database. Small pages are cheap: a create changes six pages, and the log
 * contains whole pages. An index page must hold the longest name without an overflow page.
 */
#define PAGE_BYTES "2048"

static struct sqlite_conn *conn(struct sql_conn *c)
{
	return (struct sqlite_conn *)c;
}

/* ---- results ---- */

static const char *file_of(sqlite3 *handle)
{
	const char *file = handle ? sqlite3_db_filename(handle, "main") : NULL;

	return file && *file ? file : "-";
}

int sqlite_error(sqlite3 *handle, int rc, const char *statement)
{
	switch (rc & 0xff) {
	case SQLITE_OK:
	case SQLITE_DONE:
		return 0;
	case SQLITE_BUSY:
	case SQLITE_LOCKED:
	case SQLITE_PROTOCOL: /* too much contention for the locks of the log */
		return -EAGAIN;
	case SQLITE_CONSTRAINT:
		if (rc == SQLITE_CONSTRAINT_UNIQUE || rc == SQLITE_CONSTRAINT_PRIMARYKEY ||
		    rc == SQLITE_CONSTRAINT_ROWID)
			return -EEXIST;
		break;
	}
	cfs_err("sqlite: file=%s statement=%s code=%d error=%s", file_of(handle),
		statement ? statement : "-", rc,
		handle ? sqlite3_errmsg(handle) : sqlite3_errstr(rc));
	switch (rc & 0xff) {
	case SQLITE_NOMEM:
		return -ENOMEM;
	case SQLITE_FULL:
		return -ENOSPC;
	case SQLITE_READONLY:
		return -EROFS;
	case SQLITE_PERM:
	case SQLITE_AUTH:
		return -EACCES;
	default:
		return -EIO;
	}
}

int sqlite_run(sqlite3 *handle, const char *fmt, ...)
{
	va_list ap;
	char *text;
	int rc;

	va_start(ap, fmt);
	text = sqlite3_vmprintf(fmt, ap);
	va_end(ap);
	if (!text)
		return -ENOMEM;
	rc = sqlite3_exec(handle, text, NULL, NULL, NULL);
	rc = sqlite_error(handle, rc, text);
	sqlite3_free(text);
	return rc;
}

/* ---- connections ---- */

static void configure(void)
{
	/* Each connection is used by one thread at a time; memory is not counted. */
	sqlite3_config(SQLITE_CONFIG_MULTITHREAD);
	sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
	sqlite3_initialize();
}

/* A "file:" URI, with special characters escaped. */
static char *immutable_uri(const char *path)
{
	char *uri = malloc(3 * strlen(path) + sizeof("file:?immutable=1")), *p = uri;

	if (!uri)
		return NULL;
	p = stpcpy(p, "file:");
	for (; *path; path++) {
		if (strchr("%?#", *path))
			p += snprintf(p, 4, "%%%02X", (unsigned char)*path);
		else
			*p++ = *path;
	}
	stpcpy(p, "?immutable=1");
	return uri;
}

int sqlite_open_handle(struct sqlite_db *db, int flags, sqlite3 **ret)
{
	char *uri = NULL;
	int rc;

	if (atomic_load(&db->immutable)) {
		uri = immutable_uri(db->path);
		if (!uri)
			return SQLITE_NOMEM;
		flags |= SQLITE_OPEN_URI;
	}
	rc = sqlite3_open_v2(uri ? uri : db->path, ret, flags | SQLITE_OPEN_NOMUTEX, NULL);
	free(uri);
	if (*ret)
		sqlite3_extended_result_codes(*ret, 1);
	return rc;
}

int sqlite_probe(sqlite3 *handle)
{
	return sqlite3_exec(handle, "SELECT 1 FROM sqlite_master LIMIT 1", NULL, NULL, NULL);
}

static int tune(sqlite3 *handle, bool writer)
{
	return sqlite_run(handle,
			  "PRAGMA cache_size=-%d; PRAGMA mmap_size=%d; PRAGMA temp_store=MEMORY; "
			  "PRAGMA synchronous=NORMAL",
			  writer ? WRITER_CACHE_KIB : READER_CACHE_KIB, MMAP_BYTES);
}

/* *arg: whether the database has a write-ahead log. */
static int is_wal(void *arg, int n, char **values, char **columns)
{
	*(bool *)arg = n == 1 && values[0] && !strcmp(values[0], "wal");
	return 0;
}

static int use_log(struct sqlite_db *db, sqlite3 *handle, char err[256])
{
	bool wal = false;
	int rc = sqlite3_exec(handle, "PRAGMA page_size=" PAGE_BYTES "; PRAGMA journal_mode=WAL",
			      is_wal, &wal, NULL);

	if (rc)
		return sqlite_error(handle, rc, "PRAGMA journal_mode");
	if (!wal)
		return cfs_fail(err, -ENOTSUP, "%s: the file system cannot hold a write-ahead log",
				db->sql.where);
	sqlite_checkpointer_watch(db, handle);
	return 0;
}

/*
 * True when a read-only mount cannot open the log: it may not create the log's files, or the log
 * needs recovery.
 */
static bool needs_immutable(const struct sqlite_db *db, int rc)
{
	return db->sql.read_only && !atomic_load(&db->immutable) &&
	       ((rc & 0xff) == SQLITE_CANTOPEN || (rc & 0xff) == SQLITE_READONLY) &&
	       !access(db->path, R_OK);
}

static int open_error(struct sqlite_db *db, sqlite3 *handle, int rc, char err[256])
{
	int saved = rc;

	if ((rc & 0xff) == SQLITE_BUSY || (rc & 0xff) == SQLITE_LOCKED)
		return -EAGAIN;
	if ((rc & 0xff) == SQLITE_CANTOPEN &&
	    access(db->path, R_OK | (db->sql.read_only ? 0 : W_OK)))
		saved = -errno;
	snprintf(err, 256, "%s: %s", db->sql.where,
		 saved < 0 ? strerror(-saved) : sqlite3_errmsg(handle));
	if (saved < 0)
		return saved;
	return (rc & 0xff) == SQLITE_NOTADB ? -EINVAL : -EIO;
}

static void sqlite_disconnect(struct sql_conn *c)
{
	struct sqlite_conn *s = conn(c);

	sqlite3_finalize(s->begin);
	sqlite3_finalize(s->commit);
	sqlite3_finalize(s->rollback);
	for (unsigned i = 0; i < SQL_STMT_COUNT; i++)
		sqlite3_finalize(s->stmt[i]);
	if (s->completes_database)
		sqlite_move_log(s->handle);
	sqlite3_close(s->handle);
	free(s);
}

/*
 * For a replicated volume (src/replica): a connection that closes must not remove the log, because
 * replication continues from its position in the log. This includes commands without a mount. The
 * connection that writes copies the log into the database, so that the file is complete without the
 * log. src/cmd/access writes the record.
 */
static int keep_log(struct sqlite_db *db, struct sqlite_conn *s, bool writer)
{
	char *text = sqlite3_mprintf("SELECT 1 FROM \"%w%s\" WHERE name=CAST('%q' AS BLOB)",
				     sql_bare_prefix(&db->sql), sql_record_table.name,
				     CFS_REPLICATION_RECORD);
	sqlite3_stmt *stmt = NULL;
	int rc;

	if (!text)
		return -ENOMEM;
	rc = sqlite3_prepare_v2(s->handle, text, -1, &stmt, NULL);
	if (!rc)
		rc = sqlite3_step(stmt);
	else if (rc == SQLITE_ERROR)
		rc = SQLITE_DONE; /* the volume has no records, and so no table */
	if (rc == SQLITE_ROW) {
		s->completes_database = writer;
		rc = sqlite3_db_config(s->handle, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
	}
	rc = sqlite_error(s->handle, rc, "replication record");
	sqlite3_finalize(stmt);
	sqlite3_free(text);
	return rc;
}

static int sqlite_connect(struct sql_db *sql, bool writer, struct sql_conn **ret, char err[256])
{
	struct sqlite_db *db = (struct sqlite_db *)sql;
	struct sqlite_conn *s = calloc(1, sizeof(*s));
	int flags = sql->read_only ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE;
	int r = 0, rc;

	if (!s)
		return -ENOMEM;
	/* A connection to a file in the place of ours would mix two volumes. */
	if (sqlite_check_file(db)) {
		snprintf(err, 256, "%s: another file, or none", sql->where);
		free(s);
		return -EIO;
	}
	rc = sqlite_open_handle(db, flags, &s->handle);
	if (!rc)
		rc = sqlite_probe(s->handle);
	if (needs_immutable(db, rc)) {
		cfs_warn("write-ahead log cannot be opened, reading the database file alone: "
			 "changes of others are not seen: url=%s error=%s",
			 sql->where, sqlite3_errmsg(s->handle));
		atomic_store(&db->immutable, true);
		sqlite3_close(s->handle);
		s->handle = NULL;
		rc = sqlite_open_handle(db, flags, &s->handle);
		if (!rc)
			rc = sqlite_probe(s->handle);
	}
	if (rc)
		r = open_error(db, s->handle, rc, err);
	if (!r && writer)
		r = use_log(db, s->handle, err);
	if (!r)
		r = tune(s->handle, writer);
	if (!r && !sql->read_only)
		r = keep_log(db, s, writer);
	if (r) {
		sqlite_disconnect(&s->sql);
		return r;
	}
	if (writer)
		sqlite_remember_file(db);
	*ret = &s->sql;
	return 0;
}

/* SQLite gives the log the mode of the database file. */
static int sqlite_create_database(struct sql_db *sql)
{
	struct sqlite_db *db = (struct sqlite_db *)sql;
	int fd = open(db->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

	if (fd < 0)
		return errno == EEXIST ? 0 : -errno;
	close(fd);
	return 0;
}

/* ---- transactions and statements ---- */

static int control(struct sql_conn *c, sqlite3_stmt **stmt, const char *text)
{
	struct sqlite_conn *s = conn(c);
	int rc = SQLITE_OK;

	if (!*stmt)
		rc = sqlite3_prepare_v3(s->handle, text, -1, SQLITE_PREPARE_PERSISTENT, stmt, NULL);
	if (!rc) {
		rc = sqlite3_step(*stmt);
		sqlite3_reset(*stmt);
	}
	return sqlite_error(s->handle, rc, text);
}

static int sqlite_begin(struct sql_conn *c)
{
	int r = sqlite_check_file_often((struct sqlite_db *)c->db);

	return r ? r : control(c, &conn(c)->begin, "BEGIN IMMEDIATE");
}

static int sqlite_commit(struct sql_conn *c)
{
	return control(c, &conn(c)->commit, "COMMIT");
}

static int sqlite_rollback(struct sql_conn *c)
{
	/* After some errors SQLite has rolled back already. */
	if (sqlite3_get_autocommit(conn(c)->handle))
		return 0;
	return control(c, &conn(c)->rollback, "ROLLBACK");
}

static int sqlite_prepare(struct sql_conn *c, enum sql_stmt_id id, const char *text)
{
	struct sqlite_conn *s = conn(c);
	int rc = sqlite3_prepare_v3(s->handle, text, -1, SQLITE_PREPARE_PERSISTENT, &s->stmt[id],
				    NULL);

	return sqlite_error(s->handle, rc, sql_stmt_name(id));
}

static int sqlite_bind(struct sql_conn *c, enum sql_stmt_id id, int n, const struct sql_param *p)
{
	sqlite3_stmt *stmt = conn(c)->stmt[id];
	/* A NULL pointer would bind NULL, not an empty value. */
	const void *v = p->len ? p->bytes : "";
	int rc;

	if (!p->is_bytes)
		rc = sqlite3_bind_int64(stmt, n, p->num);
	else if (p->is_text)
		rc = sqlite3_bind_text64(stmt, n, v, p->len, SQLITE_STATIC, SQLITE_UTF8);
	else
		rc = sqlite3_bind_blob64(stmt, n, v, p->len, SQLITE_STATIC);
	return rc ? sqlite_error(conn(c)->handle, rc, sql_stmt_name(id)) : 0;
}

static int sqlite_step(struct sql_conn *c, enum sql_stmt_id id)
{
	int rc = sqlite3_step(conn(c)->stmt[id]);

	if (rc == SQLITE_ROW)
		return 1;
	return rc == SQLITE_DONE ? 0 : sqlite_error(conn(c)->handle, rc, sql_stmt_name(id));
}

static void sqlite_reset(struct sql_conn *c, enum sql_stmt_id id)
{
	sqlite3_reset(conn(c)->stmt[id]);
}

static int sqlite_changes(struct sql_conn *c, enum sql_stmt_id id)
{
	return sqlite3_changes(conn(c)->handle);
}

static int64_t sqlite_insert_id(struct sql_conn *c, enum sql_stmt_id id)
{
	return sqlite3_last_insert_rowid(conn(c)->handle);
}

static int64_t sqlite_col_int(struct sql_conn *c, enum sql_stmt_id id, int col)
{
	return sqlite3_column_int64(conn(c)->stmt[id], col);
}

/* Also returns the bytes of TEXT values, which "slices || ?" makes (volume-format section 3). */
static const void *sqlite_col_bytes(struct sql_conn *c, enum sql_stmt_id id, int col,
				    size_t *ret_len)
{
	sqlite3_stmt *stmt = conn(c)->stmt[id];
	const void *v = sqlite3_column_blob(stmt, col);

	*ret_len = (size_t)sqlite3_column_bytes(stmt, col);
	return v;
}

const struct sql_dialect sql_sqlite = {
	.name = "sqlite3",
	.for_update = "",
	.or_ignore = "OR IGNORE ",
	.else_ignore = "",
	.single_writer = true,
	.create_database = sqlite_create_database,
	.connect = sqlite_connect,
	.disconnect = sqlite_disconnect,
	.begin = sqlite_begin,
	.commit = sqlite_commit,
	.rollback = sqlite_rollback,
	.prepare = sqlite_prepare,
	.bind = sqlite_bind,
	.step = sqlite_step,
	.reset = sqlite_reset,
	.changes = sqlite_changes,
	.insert_id = sqlite_insert_id,
	.col_int = sqlite_col_int,
	.col_bytes = sqlite_col_bytes,
	.put_type = sqlite_put_type,
	.only_key = sqlite_only_key,
	.has_column = sqlite_has_column,
	.has_index = sqlite_has_index,
	.run = sqlite_run_ddl,
	.sync = sqlite_sync,
};

/* ---- the engine ---- */

/* 1: the file does not exist, and format will create it. */
static int check_exists(const struct sqlite_db *db, const struct cfs_meta_conf *conf, char err[256])
{
	struct stat st;

	if (stat(db->path, &st)) {
		if (errno == ENOENT && conf->create)
			return 1;
		return cfs_fail(err, -errno, "%s: %s", db->sql.where, strerror(errno));
	}
	if (!S_ISREG(st.st_mode))
		return cfs_fail(err, -EINVAL, "%s: not a regular file", db->sql.where);
	return 0;
}

int sql_sqlite_open(const struct cfs_engine_conf *conf, struct cfs_engine **ret, char err[256])
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct sqlite_db *db = calloc(1, sizeof(*db));
	int r;

	if (!db)
		return -ENOMEM;
	pthread_once(&once, configure);
	sqlite_checkpointer_init(db);
	snprintf(err, 256, "sqlite3://: bad value of max_open_conns or table_prefix");
	r = sql_db_init(&db->sql, conf, &cfs_engine_sqlite, &sql_sqlite);
	if (!r && (!conf->url->path || !*conf->url->path))
		r = cfs_fail(err, -EINVAL, "sqlite3://: the path of the database is missing");
	if (!r) {
		db->path = realpath(conf->url->path, NULL);
		if (!db->path)
			db->path = strdup(conf->url->path);
		if (!db->path || asprintf(&db->sql.where, "sqlite3://%s", db->path) < 0)
			r = -ENOMEM;
	}
	if (!r) {
		r = check_exists(db, conf->meta, err);
		db->sql.missing = r > 0;
		if (!r)
			r = sql_db_probe(&db->sql, cfs_deadline_in(db->sql.timeout_ms), err);
	}
	if (r < 0) {
		sql_sqlite_close(&db->sql.engine);
		return r;
	}
	*ret = &db->sql.engine;
	return 0;
}

void sql_sqlite_close(struct cfs_engine *e)
{
	struct sqlite_db *db = (struct sqlite_db *)sql_db(e);

	sqlite_checkpointer_stop(db);
	sql_db_deinit(&db->sql);
	free(db->path);
	free(db);
}
