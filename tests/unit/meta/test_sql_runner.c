/* SPDX-License-Identifier: Apache-2.0 */
/* The SQL runner, the SQLite dialect, and the operations on names, on a real database file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "meta/sql/sql.h"
#include "sql_fixture.h"

static const struct cfs_engine_ops *ops(struct fixture *f)
{
	return f->e->ops;
}

static struct cfs_ctx ctx_in(struct fixture *f, uint64_t timeout_ms)
{
	struct cfs_ctx ctx = f->ctx;

	ctx.deadline = cfs_deadline_in(timeout_ms);
	return ctx;
}

static int make(struct fixture *f, const struct cfs_ctx *ctx, const char *name, cfs_ino_t ino,
		struct cfs_entry *ret)
{
	const struct cfs_mknod req = {
		.parent = CFS_ROOT_INO,
		.name = name,
		.name_len = strlen(name),
		.type = CFS_TYPE_FILE,
		.mode = 0644,
	};
	struct cfs_usage usage;

	return ops(f)->mknod(f->e, ctx, &req, ino, ret, &usage);
}

/* ---- another process ---- */

/* "hold PATH MS": takes the write lock, says so, and keeps it for MS or until its input ends. */
static int hold(const char *path, const char *ms)
{
	struct timespec t = {.tv_sec = atoi(ms) / 1000, .tv_nsec = atoi(ms) % 1000 * 1000000L};
	char byte;
	sqlite3 *db;

	if (sqlite3_open(path, &db) || sqlite3_exec(db, "BEGIN EXCLUSIVE", NULL, NULL, NULL))
		return 1;
	if (write(STDOUT_FILENO, "h", 1) != 1)
		return 1;
	if (t.tv_sec || t.tv_nsec)
		nanosleep(&t, NULL);
	else if (read(STDIN_FILENO, &byte, 1) < 0)
		return 1;
	return sqlite3_exec(db, "COMMIT", NULL, NULL, NULL) || sqlite3_close(db);
}

struct holder {
	pid_t pid;
	int to;
};

static struct holder start_holder(struct fixture *f, const char *ms)
{
	char path[64], self[] = "test", what[] = "hold";
	char *argv[] = {self, what, path, (char *)ms, NULL};
	posix_spawn_file_actions_t actions;
	struct holder h;
	int in[2], out[2];
	char byte;

	snprintf(path, sizeof(path), "%s/meta.db", f->dir);
	assert_int_equal(pipe2(in, O_CLOEXEC), 0);
	assert_int_equal(pipe2(out, O_CLOEXEC), 0);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
	posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
	assert_int_equal(posix_spawn(&h.pid, "/proc/self/exe", &actions, NULL, argv, environ), 0);
	posix_spawn_file_actions_destroy(&actions);
	close(in[0]);
	close(out[1]);
	assert_int_equal(read(out[0], &byte, 1), 1);
	close(out[0]);
	h.to = in[1];
	return h;
}

static void end_holder(struct holder *h)
{
	int status;

	close(h->to);
	assert_int_equal(waitpid(h->pid, &status, 0), h->pid);
	assert_int_equal(status, 0);
}

/* While a backup holds the database, programs must wait, not fail; reads must not even wait. */
static void test_busy(void **state)
{
	struct fixture *f = *state;
	struct holder h = start_holder(f, "300");
	struct cfs_ctx ctx = ctx_in(f, 20000);
	struct cfs_entry entry;

	assert_int_equal(fixture_attr(f, CFS_ROOT_INO).type, CFS_TYPE_DIR);
	assert_int_equal(make(f, &ctx, "waited", f->next_ino++, &entry), 0);
	end_holder(&h);
	assert_int_equal(fixture_number(f, "SELECT COUNT(*) FROM jfs_edge"), 1);
}

/* A request must come back when its time is over, whoever holds the database. */
static void test_busy_for_ever(void **state)
{
	struct fixture *f = *state;
	struct holder h = start_holder(f, "0");
	struct cfs_ctx ctx = ctx_in(f, 50);
	struct cfs_entry entry;
	uint64_t start_ms = cfs_now_ms();

	assert_int_equal(make(f, &ctx, "never", f->next_ino++, &entry), -ETIMEDOUT);
	assert_true(cfs_now_ms() - start_ms < 5000);
	end_holder(&h);
	ctx = ctx_in(f, 20000);
	assert_int_equal(make(f, &ctx, "later", f->next_ino++, &entry), 0);
	assert_int_equal(fixture_number(f, "SELECT COUNT(*) FROM jfs_edge"), 1);
}

/* ---- transactions ---- */

struct attempt {
	unsigned calls;
	int result;
};

static int insert_and_return(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct attempt *a = arg;
	int r = sql_exec(c, SQL_put_edge, "ibii", (int64_t)1, "half", (size_t)4, (int64_t)99,
			 (int64_t)1);

	a->calls++;
	return r < 0 ? r : a->result;
}

/* A half-done operation must leave nothing behind; a lock conflict must not be retried as busy. */
static void test_rollback(void **state)
{
	static const int results[] = {-EIO, -EAGAIN, -ENOENT};
	struct fixture *f = *state;

	for (size_t i = 0; i < CFS_ARRAY_SIZE(results); i++) {
		struct attempt a = {.result = results[i]};

		assert_int_equal(
			sql_txn(sql_db(f->e), &f->ctx, CFS_META_OP_other, insert_and_return, &a),
			results[i]);
		assert_int_equal(a.calls, 1);
		assert_int_equal(fixture_number(f, "SELECT COUNT(*) FROM jfs_edge"), 0);
	}
}

static int leave_query_open(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	return sql_row(c, SQL_get_usage, "") > 0 ? 0 : -EIO;
}

/* A query that is left open must not pin an old view of the volume. */
static void test_open_query(void **state)
{
	struct fixture *f = *state;
	struct cfs_entry entry;

	for (int i = 0; i < 3; i++) {
		assert_int_equal(sql_read(sql_db(f->e), &f->ctx, CFS_META_OP_readdir,
					  leave_query_open, NULL),
				 0);
		assert_int_equal(
			sql_txn(sql_db(f->e), &f->ctx, CFS_META_OP_other, leave_query_open, NULL),
			0);
	}
	assert_int_equal(make(f, &f->ctx, "x", f->next_ino++, &entry), 0);
	assert_int_equal(sqlite3_exec(f->db, "PRAGMA wal_checkpoint(TRUNCATE)", NULL, NULL, NULL),
			 SQLITE_OK);
	assert_int_equal(fixture_number(f, "PRAGMA wal_checkpoint(TRUNCATE)"), 0);
}

#define BIG_ROWS 20000

/* More than the page cache holds, so that pages go to the log, are read back and written again. */
static int big(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct cfs_attr attr = {.type = CFS_TYPE_FILE, .nlink = 1};
	int r = 0;

	for (int64_t i = 0; i < BIG_ROWS && !r; i++) {
		char name[64];
		int len = snprintf(name, sizeof(name), "%" PRIu64 "-some-longer-name",
				   (uint64_t)i * 7919 % BIG_ROWS);

		r = sql_exec(c, SQL_put_edge, "ibii", (int64_t)1, name, (size_t)len, 1000 + i,
			     (int64_t)1);
		r = r < 0 ? r : sql_put_node(c, (cfs_ino_t)(1000 + i), &attr);
		if (!r && i > 100)
			r = sql_touch_parent(c, ctx, (cfs_ino_t)(1000 + i * 31 % i), 1);
	}
	return r < 0 ? r : *(int *)arg;
}

static void check_integrity(struct fixture *f)
{
	assert_string_equal(fixture_hex(f, "PRAGMA integrity_check"), "6f6b"); /* "ok" */
}

/* A volume must survive its largest transactions, and what follows them. */
static void test_big_transaction(void **state)
{
	struct fixture *f = *state;
	struct cfs_entry entry;
	int result = -EIO;

	assert_int_equal(sql_txn(sql_db(f->e), &f->ctx, CFS_META_OP_other, big, &result), -EIO);
	assert_int_equal(fixture_number(f, "SELECT COUNT(*) FROM jfs_edge"), 0);
	result = 0;
	for (int i = 0; i < 3; i++)
		assert_int_equal(
			make(f, &f->ctx, (char[]){(char)('a' + i), 0}, f->next_ino++, &entry), 0);
	check_integrity(f);
	assert_int_equal(sql_txn(sql_db(f->e), &f->ctx, CFS_META_OP_other, big, &result), 0);
	check_integrity(f);
	assert_int_equal(fixture_number(f, "SELECT COUNT(*) FROM jfs_edge"), BIG_ROWS + 3);
	assert_int_equal(make(f, &f->ctx, "after", f->next_ino++, &entry), 0);
	check_integrity(f);
}

static void copy_file(const char *from, const char *to)
{
	cfs_auto_close int in = open(from, O_RDONLY);
	cfs_auto_close int out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	char buf[65536];
	ssize_t n;

	assert_true(in >= 0 && out >= 0);
	while ((n = read(in, buf, sizeof(buf))) > 0)
		assert_int_equal(write(out, buf, (size_t)n), n);
	assert_int_equal(n, 0);
}

/* Acknowledged changes are there after the client was killed: files as kill -9 leaves them. */
static void test_crash(void **state)
{
	struct fixture *f = *state;
	char from[64], to[64];
	struct cfs_entry entry;
	sqlite3_stmt *stmt;
	sqlite3 *db;

	for (int i = 0; i < 500; i++) {
		char name[16];

		snprintf(name, sizeof(name), "f%d", i);
		assert_int_equal(make(f, &f->ctx, name, f->next_ino++, &entry), 0);
	}
	for (int wal = 0; wal < 2; wal++) {
		snprintf(from, sizeof(from), "%s/meta.db%s", f->dir, wal ? "-wal" : "");
		snprintf(to, sizeof(to), "%s/copy.db%s", f->dir, wal ? "-wal" : "");
		copy_file(from, to);
	}
	snprintf(to, sizeof(to), "%s/copy.db", f->dir);
	assert_int_equal(sqlite3_open(to, &db), SQLITE_OK);
	assert_int_equal(sqlite3_prepare_v2(db,
					    "SELECT COUNT(*),(SELECT value FROM jfs_counter WHERE "
					    "name='totalInodes') FROM jfs_edge",
					    -1, &stmt, NULL),
			 SQLITE_OK);
	assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
	assert_int_equal(sqlite3_column_int(stmt, 0), 500);
	assert_int_equal(sqlite3_column_int(stmt, 1), 500);
	sqlite3_finalize(stmt);
	sqlite3_close(db);
	unlink(to);
}

/* The log must not fill the disk while somebody writes without pause. */
static void test_log_is_bounded(void **state)
{
	struct fixture *f = *state;
	char path[64];
	struct cfs_entry entry;
	struct stat st;

	for (int i = 0; i < 20000; i++) {
		char name[16];

		snprintf(name, sizeof(name), "f%d", i);
		assert_int_equal(make(f, &f->ctx, name, f->next_ino++, &entry), 0);
	}
	snprintf(path, sizeof(path), "%s/meta.db-wal", f->dir);
	assert_int_equal(stat(path, &st), 0);
	assert_true(st.st_size < 80 << 20);
	assert_int_equal(ops(f)->sync(f->e, &f->ctx), 0);
	check_integrity(f);
}

/* ---- threads ---- */

#define THREADS	    4
#define PER_THREAD  200
#define COMMON_NAME "common"

struct racer {
	struct fixture *f;
	unsigned id;
	pthread_t thread;
	unsigned won;
	const char *failed;
};

static const char *race(struct racer *r)
{
	struct cfs_entry entry;
	char name[32];

	for (unsigned i = 0; i < PER_THREAD; i++) {
		cfs_ino_t ino = 1000 + r->id * PER_THREAD + i;
		struct cfs_ctx ctx = ctx_in(r->f, 60000);
		int err;

		snprintf(name, sizeof(name), "%s-%u", COMMON_NAME, i);
		err = make(r->f, &ctx, name, ino, &entry);
		if (!err)
			r->won++;
		else if (err != -EEXIST || entry.attr.type != CFS_TYPE_FILE)
			return "create";
		if (ops(r->f)->lookup(r->f->e, &ctx, CFS_ROOT_INO, name, strlen(name), &entry))
			return "lookup";
		if (ops(r->f)->getattr(r->f->e, &ctx, entry.ino, &entry.attr))
			return "getattr";
	}
	return NULL;
}

static void *run_race(void *arg)
{
	struct racer *r = arg;

	r->failed = race(r);
	return NULL;
}

/* Two programs that create the same name: one wins, the other learns who; nothing is counted twice.
 */
static void test_races(void **state)
{
	struct racer racers[THREADS];
	unsigned won = 0;

	for (unsigned i = 0; i < THREADS; i++) {
		racers[i] = (struct racer){.f = *state, .id = i};
		assert_int_equal(pthread_create(&racers[i].thread, NULL, run_race, &racers[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++) {
		assert_int_equal(pthread_join(racers[i].thread, NULL), 0);
		assert_null(racers[i].failed);
		won += racers[i].won;
	}
	assert_int_equal(won, PER_THREAD);
	assert_int_equal(
		fixture_number(*state, "SELECT value FROM jfs_counter WHERE name='totalInodes'"),
		PER_THREAD);
	assert_int_equal(
		fixture_number(*state, "SELECT value FROM jfs_counter WHERE name='usedSpace'"),
		PER_THREAD * 4096);
	assert_int_equal(fixture_number(*state, "SELECT COUNT(*) FROM jfs_node WHERE type=1"),
			 PER_THREAD);
}

/* ---- values ---- */

static int read_slices(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const void *v;
	size_t len;
	int r = sql_row(c, SQL_get_chunk, "ii", (int64_t)5, (int64_t)0);

	assert_int_equal(r, 1);
	v = sql_blob(c, SQL_get_chunk, 0, &len);
	assert_int_equal(len, 6);
	assert_memory_equal(v, "\0ab\0\xff\x01", 6);
	return 0;
}

/* Files that JuiceFS appended to hold their slices as TEXT: no byte of it may get lost. */
static void test_text_column(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(sqlite3_exec(f->db,
				      "INSERT INTO jfs_chunk(inode,indx,slices) "
				      "VALUES(5,0,x'006162'||x'00ff01')",
				      NULL, NULL, NULL),
			 SQLITE_OK);
	assert_int_equal(fixture_number(f, "SELECT typeof(slices)='text' FROM jfs_chunk"), 1);
	assert_int_equal(sql_read(sql_db(f->e), &f->ctx, CFS_META_OP_read_chunk, read_slices, NULL),
			 0);
}

/* Any byte but '/' and NUL is a name: none may be taken for SQL, a pattern or text. */
static void test_odd_names(void **state)
{
	static const char *const names[] = {
		"'; DROP TABLE jfs_node; --",
		"\"",
		"%",
		"_",
		"?",
		"{node}",
		"\xff\xfe",
		"a\nb",
		"\xc3\xa9",
		"1",
		"-",
		"NULL",
	};
	struct fixture *f = *state;
	char longest[CFS_NAME_MAX + 1];
	struct cfs_entry entry;

	memset(longest, 0xfe, CFS_NAME_MAX);
	longest[CFS_NAME_MAX] = '\0';
	assert_int_equal(make(f, &f->ctx, longest, f->next_ino++, &entry), 0);
	for (size_t i = 0; i < CFS_ARRAY_SIZE(names); i++)
		assert_int_equal(make(f, &f->ctx, names[i], 100 + i, &entry), 0);
	for (size_t i = 0; i < CFS_ARRAY_SIZE(names); i++) {
		assert_int_equal(ops(f)->lookup(f->e, &f->ctx, CFS_ROOT_INO, names[i],
						strlen(names[i]), &entry),
				 0);
		assert_int_equal(entry.ino, 100 + i);
		assert_int_equal(make(f, &f->ctx, names[i], f->next_ino, &entry), -EEXIST);
		assert_int_equal(entry.ino, 100 + i);
	}
	assert_int_equal(ops(f)->lookup(f->e, &f->ctx, CFS_ROOT_INO, longest, CFS_NAME_MAX, &entry),
			 0);
	assert_int_equal(ops(f)->lookup(f->e, &f->ctx, CFS_ROOT_INO, "A", 1, &entry), -ENOENT);
	assert_int_equal(
		fixture_number(f, "SELECT COUNT(*) FROM jfs_edge WHERE typeof(name)!='blob'"), 0);
}

/* Times before 1970 and below the microsecond must come back as they were set. */
static void test_times(void **state)
{
	static const struct timespec times[] = {
		{0, 0}, {1234567890, 987654321}, {-1, 999999999}, {-2, 0}, {-1, 1}, {0, 999},
	};
	struct fixture *f = *state;
	cfs_ino_t ino = fixture_make(f, CFS_ROOT_INO, "t", CFS_TYPE_FILE);

	for (size_t i = 0; i < CFS_ARRAY_SIZE(times); i++) {
		struct cfs_attr attr;

		assert_int_equal(ops(f)->touch_atime(f->e, &f->ctx, ino, times[i]), 0);
		attr = fixture_attr(f, ino);
		assert_int_equal(attr.atime.tv_sec, times[i].tv_sec);
		assert_int_equal(attr.atime.tv_nsec, times[i].tv_nsec);
	}
	assert_int_equal(ops(f)->touch_atime(f->e, &f->ctx, ino, times[1]), 0);
	assert_int_equal(fixture_number(f, "SELECT atime FROM jfs_node WHERE inode=%d", (int)ino),
			 1234567890987654);
	assert_int_equal(
		fixture_number(f, "SELECT atimensec FROM jfs_node WHERE inode=%d", (int)ino), 321);
	assert_int_equal(ops(f)->touch_atime(f->e, &f->ctx, 4711, times[1]), -ENOENT);
}

/* ---- opening ---- */

static int open_url(const char *text, bool create, bool read_only, struct cfs_engine **ret,
		    char err[256])
{
	static struct cfs_engine_host host;
	struct cfs_meta_conf meta = {.create = create, .read_only = read_only, .timeout_ms = 10000};
	struct cfs_url url;
	struct cfs_engine_conf conf = {.url = &url, .meta = &meta, .host = &host};
	int r;

	assert_int_equal(cfs_url_parse(text, &url, err), 0);
	r = cfs_engine_sqlite.open(&conf, ret, err);
	cfs_url_free(&url);
	return r;
}

/* A mistyped path must be an error, not a fresh empty database. */
static void test_open_errors(void **state)
{
	struct fixture *f = *state;
	char url[128], path[64], err[256];
	struct cfs_engine *e;
	int fd;

	snprintf(url, sizeof(url), "sqlite3://%s/none.db", f->dir);
	snprintf(path, sizeof(path), "%s/none.db", f->dir);
	assert_int_equal(open_url(url, false, false, &e, err), -ENOENT);
	assert_non_null(strstr(err, "none.db"));
	assert_int_equal(access(path, F_OK), -1);
	snprintf(url, sizeof(url), "sqlite3://%s", f->dir);
	assert_int_equal(open_url(url, false, false, &e, err), -EINVAL);

	snprintf(url, sizeof(url), "sqlite3://%s/none.db", f->dir);
	fd = open(path, O_CREAT | O_WRONLY, 0600);
	for (int i = 0; i < 100; i++)
		assert_int_equal(write(fd, "this is not a database\n", 23), 23);
	close(fd);
	assert_int_equal(open_url(url, false, false, &e, err), -EINVAL);
	assert_int_equal(open_url(url, false, true, &e, err), -EINVAL);
	unlink(path);
	snprintf(url, sizeof(url), "sqlite3://%s/meta.db?table_prefix=a;b", f->dir);
	assert_int_equal(open_url(url, false, false, &e, err), -EINVAL);
}

/* The database holds the names of every file and the keys of the bucket: for its owner only. */
static void test_create(void **state)
{
	struct fixture *f = *state;
	char url[128], path[64], err[256];
	struct cfs_engine *e;
	struct stat st;
	char *setting;

	snprintf(url, sizeof(url), "sqlite3://%s/b.db?table_prefix=two", f->dir);
	snprintf(path, sizeof(path), "%s/b.db", f->dir);
	assert_int_equal(open_url(url, true, false, &e, err), 0);
	assert_int_equal(access(path, F_OK), -1);
	assert_int_equal(e->ops->create(e, &f->ctx, "{\"Name\":\"b\"}", false), 0);
	assert_int_equal(e->ops->create(e, &f->ctx, "{}", false), -EEXIST);
	assert_int_equal(e->ops->get_setting(e, &f->ctx, &setting), 0);
	assert_string_equal(setting, "{\"Name\":\"b\"}");
	free(setting);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_int_equal(e->ops->destroy(e, &f->ctx), 0);
	assert_int_equal(e->ops->get_setting(e, &f->ctx, &setting), -ENODATA);
	e->ops->close(e);
	unlink(path);
}

/* A read-only mount must not change the volume, and must see what others change. */
static void test_read_only(void **state)
{
	struct fixture *f = *state;
	char url[128], err[256];
	struct cfs_entry entry;
	struct cfs_engine *e;

	snprintf(url, sizeof(url), "sqlite3://%s/meta.db", f->dir);
	assert_int_equal(open_url(url, false, true, &e, err), 0);
	assert_int_equal(e->ops->lookup(e, &f->ctx, CFS_ROOT_INO, "x", 1, &entry), -ENOENT);
	assert_int_equal(make(f, &f->ctx, "x", f->next_ino++, &entry), 0);
	assert_int_equal(e->ops->lookup(e, &f->ctx, CFS_ROOT_INO, "x", 1, &entry), 0);
	assert_int_equal(e->ops->touch_atime(e, &f->ctx, entry.ino, f->ctx.now), -EROFS);
	assert_int_equal(e->ops->create(e, &f->ctx, "{}", false), -EROFS);
	e->ops->close(e);
}

/* ---- old volumes ---- */

static const char make_old[] = "ALTER TABLE jfs_node DROP COLUMN tier_id;"
			       "ALTER TABLE jfs_node DROP COLUMN access_acl_id;"
			       "ALTER TABLE jfs_node DROP COLUMN atimensec;"
			       "DROP TABLE jfs_change_log; DROP TABLE jfs_user_group_quota;"
			       "DROP INDEX IDX_jfs_chunk_ref_refs;"
			       "CREATE INDEX mine ON jfs_chunk_ref(refs)";

/* A volume of an older client mounts read-only as it is, and read-write after the upgrade. */
static void test_upgrade(void **state)
{
	struct fixture *f = *state;
	cfs_ino_t ino = fixture_make(f, CFS_ROOT_INO, "old", CFS_TYPE_FILE);
	char url[128], err[256];
	struct cfs_entry entry;
	struct cfs_engine *e;
	struct cfs_attr attr;

	assert_int_equal(sqlite3_exec(f->db, make_old, NULL, NULL, NULL), SQLITE_OK);
	snprintf(url, sizeof(url), "sqlite3://%s/meta.db", f->dir);
	assert_int_equal(open_url(url, false, true, &e, err), 0);
	assert_int_equal(e->ops->getattr(e, &f->ctx, ino, &attr), 0);
	assert_int_equal(attr.mode, 0644);
	assert_int_equal(attr.tier, 0);
	e->ops->close(e);

	assert_int_equal(open_url(url, false, false, &e, err), 0);
	assert_int_equal(e->ops->getattr(e, &f->ctx, ino, &attr), 0);
	assert_int_equal(e->ops->upgrade(e, &f->ctx), 0);
	assert_int_equal(sqlite3_exec(f->db, "UPDATE jfs_node SET tier_id=2", NULL, NULL, NULL),
			 SQLITE_OK);
	assert_int_equal(e->ops->getattr(e, &f->ctx, ino, &attr), 0);
	assert_int_equal(attr.tier, 2);
	assert_int_equal(e->ops->lookup(e, &f->ctx, CFS_ROOT_INO, "old", 3, &entry), 0);
	assert_int_equal(entry.attr.tier, 2);
	e->ops->close(e);
	assert_int_equal(fixture_number(f, "SELECT COUNT(*) FROM sqlite_master WHERE name IN "
					   "('jfs_change_log','jfs_user_group_quota',"
					   "'IDX_jfs_chunk_ref_refs')"),
			 3);
}

/* ---- listings ---- */

struct page {
	char seen[1000];
	unsigned n, stop_at;
};

static int take(void *arg, const struct cfs_dirent *e)
{
	struct page *p = arg;
	char name[16];

	if (p->n == p->stop_at)
		return 1;
	assert_in_range(e->name_len, 4, 4);
	memcpy(name, e->name, 4);
	name[4] = '\0';
	p->seen[atoi(name + 1)]++;
	p->n++;
	assert_int_equal(e->after->len, e->name_len);
	assert_memory_equal(e->after->key, e->name, e->name_len);
	return 0;
}

static void remove_name(struct fixture *f, unsigned i)
{
	char name[16];
	const struct cfs_engine_remove req = {.parent = CFS_ROOT_INO, .name = name, .name_len = 4};
	struct cfs_removed removed;
	struct cfs_usage usage;

	snprintf(name, sizeof(name), "f%03u", i);
	assert_int_equal(ops(f)->remove(f->e, &f->ctx, &req, &removed, &usage), 0);
}

/* A listing of a directory that changes shows what stays exactly once (rm -r, backups). */
static void test_readdir(void **state)
{
	struct fixture *f = *state;
	struct page p = {.stop_at = 7};
	struct cfs_cursor cursor = {0};
	struct cfs_entry entry;
	char name[16];
	unsigned turn = 0;
	int r;

	for (unsigned i = 0; i < 500; i++) {
		snprintf(name, sizeof(name), "f%03u", i * 2);
		assert_int_equal(make(f, &f->ctx, name, f->next_ino++, &entry), 0);
	}
	do {
		unsigned before = p.n;

		r = ops(f)->readdir(f->e, &f->ctx, CFS_ROOT_INO, turn % 2, 10, &cursor, take, &p);
		assert_in_range(r, 0, 1);
		assert_true(p.n > before);
		p.stop_at = p.n + 7;
		/* Behind, at and before the position. */
		if (turn < 5) {
			remove_name(f, turn * 2);
			remove_name(f, 998 - turn * 2);
			remove_name(f, (p.n - 1) * 2);
			snprintf(name, sizeof(name), "f%03u", 990 - turn * 2 - 1);
			assert_int_equal(make(f, &f->ctx, name, f->next_ino++, &entry), 0);
		}
		turn++;
	} while (!r);
	for (unsigned i = 0; i < 1000; i++)
		assert_in_range(p.seen[i], 0, 1);
	for (unsigned i = 100; i < 980; i += 2)
		assert_int_equal(p.seen[i], 1);
	assert_int_equal(p.seen[989], 1);
	assert_int_equal(p.seen[998], 0);
	cursor.len = 0;
	assert_int_equal(ops(f)->readdir(f->e, &f->ctx, 4711, true, 10, &cursor, take, &p),
			 -ENOENT);
	assert_int_equal(ops(f)->readdir(f->e, &f->ctx, entry.ino, true, 10, &cursor, take, &p),
			 -ENOTDIR);
}

/* ---- counters, sessions, trash ---- */

/* Two clients must never be given the same inode numbers, nor run the same job twice an hour. */
static void test_counters(void **state)
{
	struct fixture *f = *state;
	int64_t old, space, inodes;

	assert_int_equal(ops(f)->add_counter(f->e, &f->ctx, "nextInode", 1024, &old), 0);
	assert_int_equal(old, 2);
	assert_int_equal(ops(f)->add_counter(f->e, &f->ctx, "nextInode", 1024, &old), 0);
	assert_int_equal(old, 1026);
	assert_int_equal(ops(f)->add_counter(f->e, &f->ctx, "fresh", 5, &old), 0);
	assert_int_equal(old, 0);
	assert_int_equal(ops(f)->claim_job(f->e, &f->ctx, "lastCleanupFiles", 10000, 3240), 1);
	assert_int_equal(ops(f)->claim_job(f->e, &f->ctx, "lastCleanupFiles", 13239, 3240), 0);
	assert_int_equal(ops(f)->claim_job(f->e, &f->ctx, "lastCleanupFiles", 13240, 3240), 1);
	fixture_make(f, CFS_ROOT_INO, "d", CFS_TYPE_DIR);
	assert_int_equal(ops(f)->get_counters(f->e, &f->ctx, &space, &inodes), 0);
	assert_int_equal(space, 4096);
	assert_int_equal(inodes, 1);
}

struct sessions {
	unsigned n;
	uint64_t sid[4];
	char info[4][32];
};

static int take_session(void *arg, const struct cfs_session *s)
{
	struct sessions *l = arg;

	assert_true(l->n < 4);
	l->sid[l->n] = s->sid;
	snprintf(l->info[l->n++], 32, "%s", s->info);
	return 0;
}

/* Status lists who is there; the session of a dead client is found, and goes with all it held. */
static void test_sessions(void **state)
{
	struct fixture *f = *state;
	struct sessions l = {0};
	uint64_t a, b;

	assert_int_equal(ops(f)->new_session(f->e, &f->ctx, "{\"a\":1}", 100, &a), 0);
	assert_int_equal(ops(f)->new_session(f->e, &f->ctx, "{\"b\":2}", 200, &b), 0);
	assert_int_equal(b, a + 1);
	assert_int_equal(ops(f)->each_session(f->e, &f->ctx, 0, 10, take_session, &l), 0);
	assert_int_equal(l.n, 2);
	assert_string_equal(l.info[1], "{\"b\":2}");
	l.n = 0;
	assert_int_equal(ops(f)->each_session(f->e, &f->ctx, 150, 10, take_session, &l), 0);
	assert_int_equal(l.n, 1);
	assert_int_equal(l.sid[0], a);
	assert_int_equal(ops(f)->clean_session(f->e, &f->ctx, a, INT64_MAX), 0);
	assert_int_equal(fixture_number(f, "SELECT COUNT(*) FROM jfs_session2"), 1);
	assert_int_equal(ops(f)->refresh_session(f->e, &f->ctx, b, "{}", 300), 0);
	assert_int_equal(ops(f)->refresh_session(f->e, &f->ctx, a, "{}", 400), 1);
	assert_int_equal(fixture_number(f, "SELECT SUM(expire) FROM jfs_session2"), 700);
	assert_int_equal(fixture_number(f, "SELECT typeof(info)='blob' FROM jfs_session2"), 1);
}

/* Hour directories are counted, numbered and found again; the trash root stays as it was. */
static void test_trash_dir(void **state)
{
	struct fixture *f = *state;
	struct cfs_attr before = fixture_attr(f, CFS_TRASH_INO), after;
	cfs_ino_t ino = fixture_hour(f), other;
	struct cfs_usage usage = {0};

	assert_int_equal(ino, CFS_TRASH_INO + 1);
	assert_int_equal(fixture_hour(f), ino);
	assert_int_equal(ops(f)->trash_dir(f->e, &f->ctx, "2026-11-21-06", &other, &usage), 0);
	assert_int_equal(other, CFS_TRASH_INO + 2);
	assert_int_equal(usage.owner_inodes, 1);
	assert_int_equal(usage.owner_space, 4096);
	usage = (struct cfs_usage){0};
	assert_int_equal(ops(f)->trash_dir(f->e, &f->ctx, "2026-11-21-06", &other, &usage), 0);
	assert_int_equal(usage.owner_inodes, 0);
	assert_int_equal(fixture_attr(f, ino).mode, 0555);
	assert_int_equal(fixture_attr(f, ino).parent, CFS_TRASH_INO);
	after = fixture_attr(f, CFS_TRASH_INO);
	assert_int_equal(after.nlink, before.nlink);
	assert_int_equal(cfs_timespec_cmp(after.mtime, before.mtime), 0);
	assert_int_equal(cfs_timespec_cmp(after.ctime, before.ctime), 0);
	assert_int_equal(
		fixture_number(f, "SELECT value FROM jfs_counter WHERE name='totalInodes'"), 2);
	assert_int_equal(fixture_number(f, "SELECT COUNT(*) FROM jfs_dir_stats"), 2);
}

static void check_line(struct fixture *f, size_t id, const char *want)
{
	sqlite3_stmt *stmt;

	assert_int_equal(sqlite3_prepare_v2(f->db, "SELECT entry FROM jfs_change_log WHERE id=?",
					    -1, &stmt, NULL),
			 SQLITE_OK);
	sqlite3_bind_int64(stmt, 1, (sqlite3_int64)id);
	assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
	assert_string_equal((const char *)sqlite3_column_text(stmt, 0), want);
	sqlite3_finalize(stmt);
}

/* A mirror that follows the changelog must find every change in it, and old lines must go. */
static void test_changelog(void **state)
{
	static const char *const want[] = {
		"CREATE(1,a%2C%0A,0,0,1,420,18,,linux,false):90|(7,1)",
		"CREATE(1,ln,0,0,3,511,0,to,linux,false):91|(7,2)",
		"LINK(90,1,b,false):2|(7,3)",
		"SETATTR(1,96,0,0,0,511,0,1700000000,1700000010,123456789,123456789,1700000010,"
		"123456789,0)|(7,4)",
		"ACCESS(90)|(7,5)",
		"INCR_COUNTER(nextInode,1024)|(7,6)",
	};
	struct fixture *f = *state;
	struct cfs_mknod req = {
		.parent = 1, .name = "a,\n", .name_len = 3, .type = 1, .mode = 0644, .umask = 022};
	const struct cfs_engine_link link = {.ino = 90, .parent = 1, .name = "b", .len = 1};
	struct cfs_entry entry;
	struct cfs_usage usage;
	struct cfs_dir_time names_changed = {.dir = 1};
	int64_t old;

	f->host.changelog = true;
	f->ctx.now.tv_sec += 10;
	names_changed.time = names_changed.until = f->ctx.now;
	assert_int_equal(ops(f)->mknod(f->e, &f->ctx, &req, 90, &entry, &usage), 0);
	req = (struct cfs_mknod){.parent = 1,
				 .name = "ln",
				 .name_len = 2,
				 .type = 3,
				 .mode = 0777,
				 .target = "to",
				 .target_len = 2};
	assert_int_equal(ops(f)->mknod(f->e, &f->ctx, &req, 91, &entry, &usage), 0);
	assert_int_equal(ops(f)->link(f->e, &f->ctx, &link, &entry.attr, &usage), 0);
	assert_int_equal(ops(f)->touch_dirs(f->e, &f->ctx, &names_changed, 1), 0);
	assert_int_equal(ops(f)->touch_atime(f->e, &f->ctx, 90, f->ctx.now), 0);
	assert_int_equal(ops(f)->add_counter(f->e, &f->ctx, "nextInode", 1024, &old), 0);
	for (size_t i = 0; i < CFS_ARRAY_SIZE(want); i++) {
		char line[256];

		snprintf(line, sizeof(line), "1700000010.123456789|%s", want[i]);
		check_line(f, i + 1, line);
	}
	assert_int_equal(ops(f)->trim_changelog(f->e, &f->ctx, f->ctx.now.tv_sec, 3), 0);
	assert_int_equal(fixture_number(f, "SELECT COUNT(*) FROM jfs_change_log"), 3);
	assert_int_equal(ops(f)->trim_changelog(f->e, &f->ctx, f->ctx.now.tv_sec + 1, 0), 0);
	assert_int_equal(fixture_number(f, "SELECT COUNT(*) FROM jfs_change_log"), 0);
}

/* ---- the pool ---- */

enum { READERS = 12, TURNS = 200 };

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned inside, most;
	bool open; /* who is inside may leave */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void come_in(void)
{
	pool.inside++;
	pool.most = CFS_MAX(pool.most, pool.inside);
	pthread_cond_broadcast(&pool.changed);
}

static bool has_come(void)
{
	bool come;

	pthread_mutex_lock(&pool.lock);
	come = pool.inside > 0;
	pthread_mutex_unlock(&pool.lock);
	return come;
}

static int pass_through(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	pthread_mutex_lock(&pool.lock);
	come_in();
	pthread_mutex_unlock(&pool.lock);
	sched_yield();
	pthread_mutex_lock(&pool.lock);
	pool.inside--;
	pthread_mutex_unlock(&pool.lock);
	return 0;
}

static int stay(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	pthread_mutex_lock(&pool.lock);
	come_in();
	while (!pool.open)
		pthread_cond_wait(&pool.changed, &pool.lock);
	pool.inside--;
	pthread_mutex_unlock(&pool.lock);
	return 0;
}

struct reader {
	pthread_t thread;
	struct fixture *f;
	sql_fn fn;
	unsigned turns;
	bool writes; /* has the connection for writing, which a quick read may borrow */
	int r;
};

static void *run_reader(void *arg)
{
	struct reader *rd = arg;

	for (unsigned i = 0; i < rd->turns && !rd->r; i++) {
		struct cfs_ctx ctx = ctx_in(rd->f, 20000);

		rd->r = (rd->writes ? sql_txn : sql_read)(sql_db(rd->f->e), &ctx,
							  CFS_META_OP_lookup, rd->fn, NULL);
	}
	return NULL;
}

static void start_readers(struct reader rd[READERS], struct fixture *f, sql_fn fn, unsigned turns)
{
	pool.most = 0;
	pool.open = false;
	for (unsigned i = 0; i < READERS; i++) {
		rd[i] = (struct reader){.f = f, .fn = fn, .turns = turns, .writes = i == 0};
		assert_int_equal(pthread_create(&rd[i].thread, NULL, run_reader, &rd[i]), 0);
		while (fn == stay && i == 0 && !has_come())
			usleep(1000);
	}
}

static void join_readers(struct reader rd[READERS])
{
	for (unsigned i = 0; i < READERS; i++) {
		pthread_join(rd[i].thread, NULL);
		assert_int_equal(rd[i].r, 0);
	}
	assert_int_equal(pool.inside, 0);
}

/* More threads than connections: each comes to its turn, and gives up at its deadline. */
static void test_waiting_for_connections(void **state)
{
	struct fixture *f = *state;
	struct reader rd[READERS];
	struct cfs_ctx ctx;
	unsigned conns;
	int r;

	start_readers(rd, f, stay, 1);
	do { /* until they have them all */
		ctx = ctx_in(f, 300);
		r = sql_read(sql_db(f->e), &ctx, CFS_META_OP_lookup, pass_through, NULL);
	} while (r == 0);
	assert_int_equal(r, -ETIMEDOUT);
	pthread_mutex_lock(&pool.lock);
	conns = pool.inside;
	pool.open = true;
	pthread_cond_broadcast(&pool.changed);
	pthread_mutex_unlock(&pool.lock);
	join_readers(rd);
	assert_in_range(conns, 1, READERS - 1);
	assert_int_equal(pool.most, conns);

	start_readers(rd, f, pass_through, TURNS);
	join_readers(rd);
	assert_in_range(pool.most, 1, conns);
}

#define T(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		T(test_busy),		T(test_busy_for_ever),	 T(test_rollback),
		T(test_open_query),	T(test_big_transaction), T(test_crash),
		T(test_log_is_bounded), T(test_races),		 T(test_text_column),
		T(test_odd_names),	T(test_times),		 T(test_open_errors),
		T(test_create),		T(test_read_only),	 T(test_upgrade),
		T(test_readdir),	T(test_counters),	 T(test_sessions),
		T(test_trash_dir),	T(test_changelog),	 T(test_waiting_for_connections),
	};

	if (argc == 4 && !strcmp(argv[1], "hold"))
		return hold(argv[2], argv[3]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
