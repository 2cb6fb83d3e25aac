/* SPDX-License-Identifier: Apache-2.0 */
/*
 * floor_mysql PORT/USER/DATABASE COUNT CONNECTIONS: see floor.h. MariaDB only; the password is
 * META_PASSWORD.
 *
 * A create and an unlink are each one prepared compound statement with a transaction, without
 * result: a create inserts into edge and node and moves the directory's times when they are due, an
 * unlink looks up the inode and deletes the two rows likewise; a stat is a prepared join of them.
 * Usage counters and directory statistics are batched by the engine and so are not here; nor is the
 * lock against the directory's removal. Of the ways measured in docs/engines.md a compound statement
 * is the fastest.
 */
#include <mysql.h>
#include <mysqld_error.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "floor.h"

#define NODE                                                                                       \
	"inode,type,flags,mode,uid,gid,atime,mtime,ctime,atimensec,mtimensec,ctimensec,nlink,"     \
	"length,rdev,parent,access_acl_id,default_acl_id,tier_id"
#define MAX_COLUMNS 32
#define TOUCH                                                                                      \
	"IF ? THEN UPDATE jfs_node SET mtime=?,ctime=?,mtimensec=0,ctimensec=0 WHERE inode=1; "    \
	"END IF; "

enum { CREATE, STAT, UNLINK, N_STMTS };

/* Every parameter that is not a number is the name. */
static const struct {
	const char *text;
	unsigned name_at, n_params;
} stmts[N_STMTS] = {
	[CREATE] = {"BEGIN NOT ATOMIC DECLARE i BIGINT DEFAULT ?; START TRANSACTION; "
		    "INSERT INTO jfs_edge(parent,name,inode,type) VALUES(1,?,i,1); "
		    "INSERT INTO jfs_node(" NODE ") "
		    "VALUES(i,1,0,420,0,0,?,?,?,0,0,0,1,0,0,1,0,0,0); " TOUCH "COMMIT; END",
		    1, 8},
	[STAT] = {"SELECT n.* FROM jfs_edge e JOIN jfs_node n ON n.inode=e.inode "
		  "WHERE e.name=? AND e.parent=?",
		  0, 2},
	[UNLINK] = {"BEGIN NOT ATOMIC DECLARE w VARBINARY(255) DEFAULT ?; DECLARE i BIGINT; "
		    "START TRANSACTION; "
		    "SELECT inode INTO i FROM jfs_edge WHERE parent=1 AND name=w; "
		    "DELETE FROM jfs_edge WHERE parent=1 AND name=w; "
		    "DELETE FROM jfs_node WHERE inode=i; " TOUCH "COMMIT; END",
		    0, 4},
};

#define MAX_PARAMS 8

struct conn {
	MYSQL *handle;
	MYSQL_STMT *stmts[N_STMTS];
	int64_t columns[MAX_COLUMNS];
};

static void check(MYSQL_STMT *stmt, int failed)
{
	if (failed)
		floor_fail("%s", mysql_stmt_error(stmt));
}

static void bind_columns(struct conn *c, MYSQL_STMT *stmt)
{
	MYSQL_BIND bind[MAX_COLUMNS] = {0};
	unsigned n = mysql_stmt_field_count(stmt);

	if (n > MAX_COLUMNS)
		floor_fail("%u columns", n);
	for (unsigned i = 0; i < n; i++) {
		bind[i].buffer_type = MYSQL_TYPE_LONGLONG;
		bind[i].buffer = &c->columns[i];
	}
	if (n)
		check(stmt, mysql_stmt_bind_result(stmt, bind));
}

static void *open_conn(const char *where)
{
	struct conn *c = calloc(1, sizeof(*c));
	const char *password = getenv("META_PASSWORD");
	char user[64], database[64];
	unsigned port;

	if (!c || sscanf(where, "%u/%63[^/]/%63s", &port, user, database) != 3)
		floor_fail("bad arguments");
	c->handle = mysql_init(NULL);
	if (!mysql_real_connect(c->handle, "127.0.0.1", user, password, database, port, NULL, 0) ||
	    mysql_query(c->handle, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"))
		floor_fail("%s", mysql_error(c->handle));
	for (unsigned i = 0; i < N_STMTS; i++) {
		const char *text = stmts[i].text;

		c->stmts[i] = mysql_stmt_init(c->handle);
		check(c->stmts[i], mysql_stmt_prepare(c->stmts[i], text, strlen(text)));
		bind_columns(c, c->stmts[i]);
	}
	return c;
}

static void close_conn(void *conn)
{
	struct conn *c = conn;

	for (unsigned i = 0; i < N_STMTS; i++)
		mysql_stmt_close(c->stmts[i]);
	mysql_close(c->handle);
	free(c);
}

/* numbers: the parameters without the name */
static MYSQL_STMT *run(struct conn *c, unsigned id, int64_t file, int64_t *numbers)
{
	MYSQL_BIND bind[MAX_PARAMS] = {0};
	MYSQL_STMT *stmt = c->stmts[id];
	char name[32];
	unsigned long len = (unsigned long)floor_name(file, name);

	for (unsigned i = 0; i < stmts[id].n_params; i++) {
		bind[i].buffer_type =
			i == stmts[id].name_at ? MYSQL_TYPE_BLOB : MYSQL_TYPE_LONGLONG;
		bind[i].buffer = i == stmts[id].name_at ? (void *)name : numbers++;
		bind[i].buffer_length = len;
		bind[i].length = &len;
	}
	check(stmt, mysql_stmt_bind_param(stmt, bind));
	while (mysql_stmt_execute(stmt))
		check(stmt, mysql_stmt_errno(stmt) != ER_LOCK_DEADLOCK); /* all is undone */
	return stmt;
}

static void create(void *conn, int64_t file, bool touch)
{
	int64_t us = floor_us(file);

	run(conn, CREATE, file, (int64_t[]){floor_ino(file), us, us, us, touch, us, us});
}

static void stat_file(void *conn, int64_t file)
{
	MYSQL_STMT *stmt = run(conn, STAT, file, (int64_t[]){FLOOR_ROOT});

	check(stmt, mysql_stmt_store_result(stmt));
	if (mysql_stmt_fetch(stmt))
		floor_fail("no row");
	mysql_stmt_free_result(stmt);
}

static void unlink_file(void *conn, int64_t file, bool touch)
{
	int64_t us = floor_us(file);

	run(conn, UNLINK, file, (int64_t[]){touch, us, us});
}

int main(int argc, char **argv)
{
	static const struct floor_server server = {
		"mysql", open_conn, close_conn, create, stat_file, unlink_file,
	};

	return floor_main(argc, argv, &server);
}
