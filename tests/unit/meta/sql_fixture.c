/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "sql_fixture.h"

static bool is_open(void *arg, cfs_ino_t ino)
{
	const struct fixture *f = arg;

	return f->open_ino == ino;
}

/* ---- the volume ---- */

int fixture_setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	const struct cfs_meta_conf meta = {.timeout_ms = 10000, .create = true};
	struct cfs_engine_conf conf = {.meta = &meta};
	struct cfs_url url;
	char text[64], err[256];

	assert_non_null(f);
	strncpy(f->dir, "/tmp/cfs-sql-XXXXXX", sizeof(f->dir) - 1);
	assert_non_null(mkdtemp(f->dir));
	snprintf(text, sizeof(text), "sqlite3://%s/meta.db", f->dir);
	assert_int_equal(cfs_url_parse(text, &url, err), 0);
	conf.url = &url;
	f->host = (struct cfs_engine_host){
		.is_open = is_open,
		.is_open_arg = f,
		.opens = true,
		.dir_stats = true,
		.sid = FIXTURE_SID,
	};
	conf.host = &f->host;
	assert_true(cfs_engine_sqlite.open(&conf, &f->e, err) >= 0);
	cfs_url_free(&url);
	f->ctx = (struct cfs_ctx){
		.now = {.tv_sec = 1700000000, .tv_nsec = 123456789},
		.deadline = cfs_deadline_in(60000),
	};
	f->next_ino = 2;
	assert_int_equal(f->e->ops->create(f->e, &f->ctx, "{}", true), 0);
	assert_int_equal(sqlite3_open(text + strlen("sqlite3://"), &f->db), SQLITE_OK);
	*state = f;
	return 0;
}

int fixture_teardown(void **state)
{
	static const char *const files[] = {"", "-wal", "-shm"};
	struct fixture *f = *state;
	char path[64];
	size_t i;

	sqlite3_close(f->db);
	f->e->ops->close(f->e);
	for (i = 0; i < CFS_ARRAY_SIZE(files); i++) {
		snprintf(path, sizeof(path), "%s/meta.db%s", f->dir, files[i]);
		unlink(path);
	}
	rmdir(f->dir);
	free(f);
	return 0;
}

static sqlite3_stmt *query(struct fixture *f, const char *fmt, va_list ap)
{
	char *sql = sqlite3_vmprintf(fmt, ap);
	sqlite3_stmt *stmt;

	assert_int_equal(sqlite3_prepare_v2(f->db, sql, -1, &stmt, NULL), SQLITE_OK);
	sqlite3_free(sql);
	return stmt;
}

int64_t fixture_number(struct fixture *f, const char *fmt, ...)
{
	sqlite3_stmt *stmt;
	int64_t v = 0;
	va_list ap;

	va_start(ap, fmt);
	stmt = query(f, fmt, ap);
	va_end(ap);
	if (sqlite3_step(stmt) == SQLITE_ROW)
		v = sqlite3_column_int64(stmt, 0);
	sqlite3_finalize(stmt);
	return v;
}

const char *fixture_hex(struct fixture *f, const char *fmt, ...)
{
	static char out[4096];
	sqlite3_stmt *stmt;
	const uint8_t *p;
	int i, n = 0;
	va_list ap;

	va_start(ap, fmt);
	stmt = query(f, fmt, ap);
	va_end(ap);
	if (sqlite3_step(stmt) == SQLITE_ROW) {
		p = sqlite3_column_blob(stmt, 0);
		n = sqlite3_column_bytes(stmt, 0);
		assert_true(n < 2000);
		for (i = 0; i < n; i++)
			snprintf(out + 2 * i, 3, "%02x", p[i]);
	}
	out[2 * n] = '\0';
	sqlite3_finalize(stmt);
	return out;
}

cfs_ino_t fixture_make(struct fixture *f, cfs_ino_t parent, const char *name, uint8_t type)
{
	const struct cfs_mknod req = {
		.parent = parent,
		.name = name,
		.name_len = strlen(name),
		.type = type,
		.mode = type == CFS_TYPE_DIR ? 0755 : 0644,
		.target = "target",
		.target_len = type == CFS_TYPE_SYMLINK ? 6 : 0,
	};
	struct cfs_entry entry;
	struct cfs_usage usage;

	assert_int_equal(f->e->ops->mknod(f->e, &f->ctx, &req, f->next_ino++, &entry, &usage), 0);
	return entry.ino;
}

struct cfs_attr fixture_attr(struct fixture *f, cfs_ino_t ino)
{
	struct cfs_attr attr;

	assert_int_equal(f->e->ops->getattr(f->e, &f->ctx, ino, &attr), 0);
	return attr;
}

cfs_ino_t fixture_hour(struct fixture *f)
{
	struct cfs_usage usage = {0};
	cfs_ino_t ino;

	assert_int_equal(f->e->ops->trash_dir(f->e, &f->ctx, "2026-11-21-05", &ino, &usage), 0);
	return ino;
}
