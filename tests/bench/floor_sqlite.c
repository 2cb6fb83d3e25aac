/* SPDX-License-Identifier: Apache-2.0 */
/*
 * floor_sqlite DATABASE COUNT: what the rows of a create and of an unlink cost in SQLite alone.
 *
 * DATABASE is a volume that `cachefs format` has just made (tables and indexes are its), and is
 * useless as one afterwards. Every operation is one transaction with the rows, the statements and
 * the settings of meta/sql, without the reads, checks and locks around them: the least that any
 * client of this format could do. Prints microseconds per operation as one line of JSON.
 */
#include <inttypes.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* As in meta/sqlite/sqlite.c and sqlite-log.c; the checkpoint is inline here. */
#define CACHE_KIB	  1024
#define MMAP_BYTES	  (256 << 20)
#define CHECKPOINT_FRAMES 4000

#define ROOT	  1
#define TRASH	  0x7FFFFFFF10000001
#define FIRST_INO 1000000
#define NOW	  1700000000000000

static sqlite3 *db;

enum stmt {
	BEGIN,
	COMMIT,
	PUT_EDGE,
	DEL_EDGE,
	PUT_NODE,
	MOVE_NODE,
	DEL_NODE,
	TOUCH_PARENT,
	ADD_USAGE,
	ADD_DIR_STAT,
	N_STMTS
};

static const char *const texts[N_STMTS] = {
	[BEGIN] = "BEGIN IMMEDIATE",
	[COMMIT] = "COMMIT",
	[PUT_EDGE] = "INSERT INTO jfs_edge(parent,name,inode,type) VALUES(?,?,?,?)",
	[DEL_EDGE] = "DELETE FROM jfs_edge WHERE parent=? AND name=? AND inode=?",
	[PUT_NODE] = "INSERT INTO jfs_node(inode,type,flags,mode,uid,gid,atime,mtime,ctime,"
		     "atimensec,mtimensec,ctimensec,nlink,length,rdev,parent,access_acl_id,"
		     "default_acl_id,tier_id) VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
	[MOVE_NODE] = "UPDATE jfs_node SET nlink=?,parent=?,ctime=?,ctimensec=? WHERE inode=?",
	[DEL_NODE] = "DELETE FROM jfs_node WHERE inode=?",
	[TOUCH_PARENT] = "UPDATE jfs_node SET nlink=nlink+?,mtime=?,ctime=?,mtimensec=?,"
			 "ctimensec=? WHERE inode=?",
	[ADD_USAGE] = "UPDATE jfs_counter SET value=value+CASE name WHEN 'usedSpace' THEN ? "
		      "ELSE ? END WHERE name IN ('usedSpace','totalInodes')",
	[ADD_DIR_STAT] = "UPDATE jfs_dir_stats SET data_length=data_length+?,"
			 "used_space=used_space+?,used_inodes=used_inodes+? WHERE inode=?",
};

static sqlite3_stmt *stmts[N_STMTS];

static void check(int rc, const char *what)
{
	if (rc == SQLITE_OK || rc == SQLITE_DONE)
		return;
	fprintf(stderr, "floor_sqlite: %s: %s\n", what, sqlite3_errmsg(db));
	exit(1);
}

/* fmt: i int64_t, t name */
static void run(enum stmt id, const char *fmt, ...)
{
	sqlite3_stmt *s = stmts[id];
	va_list ap;

	va_start(ap, fmt);
	for (int n = 1; *fmt; fmt++, n++) {
		if (*fmt == 'i') {
			sqlite3_bind_int64(s, n, va_arg(ap, int64_t));
		} else {
			const char *name = va_arg(ap, const char *);

			sqlite3_bind_blob(s, n, name, (int)strlen(name), SQLITE_STATIC);
		}
	}
	va_end(ap);
	check(sqlite3_step(s), texts[id]);
	sqlite3_reset(s);
}

#define I(v) ((int64_t)(v))

static void create(int64_t n)
{
	int64_t ino = FIRST_INO + n, zero = 0;
	char name[32];

	snprintf(name, sizeof(name), "c00.%06" PRId64, n);
	run(BEGIN, "");
	run(PUT_EDGE, "itii", I(ROOT), name, ino, I(1));
	run(PUT_NODE, "iiiiiiiiiiiiiiiiiii", ino, I(1), zero, I(0644), zero, zero, I(NOW) + n,
	    I(NOW) + n, I(NOW) + n, n % 1000, n % 1000, n % 1000, I(1), zero, zero, I(ROOT), zero,
	    zero, zero);
	run(TOUCH_PARENT, "iiiiii", zero, I(NOW) + n, I(NOW) + n, n % 1000, n % 1000, I(ROOT));
	run(ADD_USAGE, "ii", I(4096), I(1));
	run(ADD_DIR_STAT, "iiii", zero, I(4096), I(1), I(ROOT));
	run(COMMIT, "");
}

/* The files have never been written: no row remembers data to be deleted. */
static void unlink_for_real(int64_t n)
{
	int64_t ino = FIRST_INO + n, zero = 0;
	char name[32];

	snprintf(name, sizeof(name), "c00.%06" PRId64, n);
	run(BEGIN, "");
	run(DEL_EDGE, "iti", I(ROOT), name, ino);
	run(DEL_NODE, "i", ino);
	run(TOUCH_PARENT, "iiiiii", zero, I(NOW) + n, I(NOW) + n, n % 1000, n % 1000, I(ROOT));
	run(ADD_USAGE, "ii", I(-4096), I(-1));
	run(ADD_DIR_STAT, "iiii", zero, I(-4096), I(-1), I(ROOT));
	run(COMMIT, "");
}

static void unlink_to_trash(int64_t n)
{
	int64_t ino = FIRST_INO + n, zero = 0;
	char name[32], trash_name[80];

	snprintf(name, sizeof(name), "c00.%06" PRId64, n);
	snprintf(trash_name, sizeof(trash_name), "%d-%" PRId64 "-%s", ROOT, ino, name);
	run(BEGIN, "");
	run(DEL_EDGE, "iti", I(ROOT), name, ino);
	run(PUT_EDGE, "itii", I(TRASH), trash_name, ino, I(1));
	run(MOVE_NODE, "iiiii", I(1), I(TRASH), I(NOW) + n, n % 1000, ino);
	run(TOUCH_PARENT, "iiiiii", zero, I(NOW) + n, I(NOW) + n, n % 1000, n % 1000, I(ROOT));
	run(ADD_DIR_STAT, "iiii", zero, I(-4096), I(-1), I(ROOT));
	run(ADD_DIR_STAT, "iiii", zero, I(4096), I(1), I(TRASH));
	run(COMMIT, "");
}

static double measure_us(void (*op)(int64_t n), int64_t first, int64_t count)
{
	struct timespec a, b;

	clock_gettime(CLOCK_MONOTONIC, &a);
	for (int64_t n = first; n < first + count; n++)
		op(n);
	clock_gettime(CLOCK_MONOTONIC, &b);
	return ((double)(b.tv_sec - a.tv_sec) * 1e6 + (double)(b.tv_nsec - a.tv_nsec) / 1e3) /
	       (double)count;
}

static void open_database(const char *path)
{
	char text[512];

	sqlite3_config(SQLITE_CONFIG_MULTITHREAD);
	sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
	check(sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL), path);
	snprintf(text, sizeof(text),
		 "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA temp_store=MEMORY; "
		 "PRAGMA cache_size=-%d; PRAGMA mmap_size=%d; PRAGMA wal_autocheckpoint=%d; "
		 "INSERT OR IGNORE INTO jfs_dir_stats VALUES(1,0,0,0); "
		 "INSERT OR IGNORE INTO jfs_dir_stats VALUES(%" PRId64 ",0,0,0)",
		 CACHE_KIB, MMAP_BYTES, CHECKPOINT_FRAMES, I(TRASH));
	check(sqlite3_exec(db, text, NULL, NULL, NULL), "settings");
	for (int i = 0; i < N_STMTS; i++)
		check(sqlite3_prepare_v3(db, texts[i], -1, SQLITE_PREPARE_PERSISTENT, &stmts[i],
					 NULL),
		      texts[i]);
}

int main(int argc, char **argv)
{
	int64_t count = argc == 3 ? strtoll(argv[2], NULL, 10) : 0;
	double create_us, unlink_us, trash_us;

	if (count <= 0) {
		fprintf(stderr, "usage: floor_sqlite DATABASE COUNT\n");
		return 2;
	}
	open_database(argv[1]);
	create_us = measure_us(create, 0, count);
	unlink_us = measure_us(unlink_for_real, 0, count);
	measure_us(create, count, count);
	trash_us = measure_us(unlink_to_trash, count, count);
	printf("{\"create_us\": %.2f, \"unlink_us\": %.2f, \"unlink_trash_us\": %.2f}\n", create_us,
	       unlink_us, trash_us);
	for (int i = 0; i < N_STMTS; i++)
		sqlite3_finalize(stmts[i]);
	sqlite3_close(db);
	return 0;
}
