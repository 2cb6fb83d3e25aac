/* SPDX-License-Identifier: Apache-2.0 */
/*
 * floor_postgresql CONNECTION-STRING COUNT CONNECTIONS: see floor.h.
 *
 * One prepared statement for each operation, its changes in CTEs: a create inserts into edge and
 * node and moves the directory's times when they are due, an unlink deletes the two rows likewise,
 * a stat joins them. Usage counters and directory statistics are batched by the engine and so are
 * not here; nor is the lock against the directory's removal.
 */
#include <endian.h>
#include <libpq-fe.h>
#include <string.h>

#include "floor.h"

#define INT8  20
#define BYTEA 17

#define TOUCH(n)                                                                                   \
	" UPDATE jfs_node SET mtime=$" n ",ctime=$" n ",mtimensec=0,ctimensec=0 WHERE inode=$1 "   \
	"AND $" n ">0"

/* $1 directory, $2 name */
static const struct {
	const char *name, *text;
	int n_params;
} stmts[] = {
	/* $3 inode, $4 moment, $5 moment of the touch or 0 */
	{"create",
	 "WITH e AS (INSERT INTO jfs_edge(parent,name,inode,type) VALUES($1,$2,$3,1)),"
	 "n AS (INSERT INTO jfs_node(inode,type,flags,mode,uid,gid,atime,mtime,ctime,atimensec,"
	 "mtimensec,ctimensec,nlink,length,rdev,parent,access_acl_id,default_acl_id,tier_id) "
	 "VALUES($3,1,0,420,0,0,$4,$4,$4,0,0,0,1,0,0,$1,0,0,0))" TOUCH("5"),
	 5},
	{"stat",
	 "SELECT n.* FROM jfs_edge e JOIN jfs_node n ON n.inode=e.inode WHERE e.parent=$1 "
	 "AND e.name=$2",
	 2},
	/* $3 moment of the touch or 0 */
	{"unlink",
	 "WITH d AS (DELETE FROM jfs_edge WHERE parent=$1 AND name=$2 RETURNING inode),"
	 "n AS (DELETE FROM jfs_node n USING d WHERE n.inode=d.inode)" TOUCH("3"),
	 3},
};

static void *open_conn(const char *where)
{
	static const Oid types[] = {INT8, BYTEA, INT8, INT8, INT8};
	PGconn *conn = PQconnectdb(where);

	if (PQstatus(conn) != CONNECTION_OK)
		floor_fail("%s", PQerrorMessage(conn));
	for (unsigned i = 0; i < sizeof(stmts) / sizeof(*stmts); i++) {
		PGresult *r =
			PQprepare(conn, stmts[i].name, stmts[i].text, stmts[i].n_params, types);

		if (PQresultStatus(r) != PGRES_COMMAND_OK)
			floor_fail("%s", PQerrorMessage(conn));
		PQclear(r);
	}
	return conn;
}

static void close_conn(void *conn)
{
	PQfinish(conn);
}

/* more: the parameters behind the name */
static void run(PGconn *conn, int id, int64_t file, const int64_t *more, int rows)
{
	static const int formats[] = {1, 1, 1, 1, 1};
	uint64_t dir = htobe64(FLOOR_ROOT), ints[3];
	char name[32];
	int lengths[5] = {8, floor_name(file, name), 8, 8, 8};
	const char *values[5] = {(char *)&dir, name};
	PGresult *r;

	for (int i = 2; i < stmts[id].n_params; i++) {
		ints[i - 2] = htobe64((uint64_t)more[i - 2]);
		values[i] = (char *)&ints[i - 2];
	}
	r = PQexecPrepared(conn, stmts[id].name, stmts[id].n_params, values, lengths, formats, 1);
	if (PQresultStatus(r) != (rows ? PGRES_TUPLES_OK : PGRES_COMMAND_OK) ||
	    PQntuples(r) != rows)
		floor_fail("%s: %s", stmts[id].name, PQerrorMessage(conn));
	PQclear(r);
}

static void create(void *conn, int64_t file, bool touch)
{
	run(conn, 0, file, (int64_t[]){floor_ino(file), floor_us(file), touch ? floor_us(file) : 0},
	    0);
}

static void stat_file(void *conn, int64_t file)
{
	run(conn, 1, file, NULL, 1);
}

static void unlink_file(void *conn, int64_t file, bool touch)
{
	run(conn, 2, file, (int64_t[]){touch ? floor_us(file) : 0}, 0);
}

int main(int argc, char **argv)
{
	static const struct floor_server server = {
		"postgresql", open_conn, close_conn, create, stat_file, unlink_file,
	};

	return floor_main(argc, argv, &server);
}
