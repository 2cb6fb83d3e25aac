/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What became of a COMMIT whose answer was lost with the connection. The server keeps no record of
 * that, so each transaction remembers one of its changes that nobody else makes: a name with a
 * number that was given out once, the reference of a new slice, the ctime it gave an inode. The
 * thread that committed asks for it, on another connection.
 */
#include <errno.h>
#include <string.h>

#include "mysql-internal.h"

enum kind { NOTHING, NAME_IS, NAME_IS_NOT, SLICE, CTIME };

static _Thread_local struct {
	enum kind kind;
	cfs_ino_t ino; /* or the slice */
	cfs_ino_t parent;
	size_t len;
	char name[CFS_NAME_MAX + 1];
	struct timespec ctime;
} witness;

void mysql_witness_begin(void)
{
	witness.kind = NOTHING;
}

bool mysql_witness_known(void)
{
	return witness.kind != NOTHING;
}

static int64_t number(const struct mysql_stmt *s, int n)
{
	return s->values[n - 1].num;
}

static void see_name(const struct mysql_stmt *s, enum kind kind, int parent, int name, int ino)
{
	size_t len = s->values[name - 1].len;

	if (len > CFS_NAME_MAX)
		return;
	witness.kind = kind;
	witness.parent = (cfs_ino_t)number(s, parent);
	witness.ino = (cfs_ino_t)number(s, ino);
	witness.len = len;
	memcpy(witness.name, s->bind[name - 1].buffer, len);
}

static void see_ctime(const struct mysql_stmt *s, int us, int sub_us, int ino)
{
	witness.kind = CTIME;
	witness.ino = (cfs_ino_t)number(s, ino);
	witness.ctime = sql_time(number(s, us), number(s, sub_us));
}

/* The numbers are those of the parameters in statements.h. */
void mysql_witness_see(const struct mysql_stmt *s, enum sql_stmt_id id)
{
	if (witness.kind != NOTHING)
		return;
	switch (id) {
	case SQL_put_edge:
	case SQL_load_edge:
		see_name(s, NAME_IS, 1, 2, 3);
		break;
	case SQL_del_edge:
		see_name(s, NAME_IS_NOT, 1, 2, 3);
		break;
	case SQL_set_edge:
		see_name(s, NAME_IS, 3, 4, 1);
		break;
	case SQL_move_edge:
		see_name(s, NAME_IS, 1, 2, 5);
		break;
	case SQL_put_ref:
		witness.kind = SLICE;
		witness.ino = (cfs_ino_t)number(s, 1);
		break;
	case SQL_update_node:
		see_ctime(s, 8, 11, 19);
		break;
	case SQL_set_written:
		see_ctime(s, 4, 5, 6);
		break;
	case SQL_move_node:
		see_ctime(s, 3, 4, 5);
		break;
	default:
		break;
	}
}

static int look_at_name(struct sql_conn *c)
{
	struct sql_edge edge = {0};
	int r = sql_get_edge(c, witness.parent, witness.name, witness.len, &edge);

	if (r && r != -ENOENT)
		return r;
	return (edge.ino == witness.ino) == (witness.kind == NAME_IS);
}

/* An inode that somebody has changed since tells nothing. */
static int look_at_ctime(struct sql_conn *c)
{
	struct cfs_attr attr;
	int order, r = sql_get_node(c, witness.ino, false, &attr);

	if (r)
		return r == -ENOENT ? -EIO : r;
	order = cfs_timespec_cmp(attr.ctime, witness.ctime);
	return order > 0 ? -EIO : order == 0;
}

int mysql_resolve(struct sql_conn *c, uint64_t txn)
{
	int r;

	(void)txn;
	switch (witness.kind) {
	case NAME_IS:
	case NAME_IS_NOT:
		return look_at_name(c);
	case SLICE:
		r = sql_row(c, SQL_get_refs, "i", (int64_t)witness.ino);
		sql_done(c, SQL_get_refs);
		return r;
	case CTIME:
		return look_at_ctime(c);
	default:
		return -EIO;
	}
}
