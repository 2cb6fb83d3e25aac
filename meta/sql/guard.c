/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Locks for servers that see none of each other's. A cluster (Galera) certifies a transaction by
 * the keys of the rows that it changes: what it has only locked, or set to what it was, is no key.
 * So a row is written that nobody ever sees, as it goes before its transaction ends.
 *
 * A directory has SQL_GUARDS of them, locks of no session. Who makes a name in it writes one, so
 * that two that make names rarely meet; who has found it empty writes all.
 */
#include <string.h>

#include "meta/sql/sql-internal.h"

int sql_hold_dir(struct sql_conn *c, cfs_ino_t dir)
{
	int64_t ino = (int64_t)dir, guard = c->guard;
	int r;

	if (!c->guards)
		return 0;
	r = sql_exec(c, SQL_put_guard, "ii", ino, guard);
	if (r >= 0)
		r = sql_exec(c, SQL_del_guard, "ii", ino, guard);
	return r < 0 ? r : 0;
}

int sql_close_dir(struct sql_conn *c, cfs_ino_t dir)
{
	int64_t ino = (int64_t)dir;
	int r;

	if (!c->guards)
		return 0;
	r = sql_exec(c, SQL_put_guards, "iiiiiiiiiiiiiiii", ino, ino, ino, ino, ino, ino, ino, ino,
		     ino, ino, ino, ino, ino, ino, ino, ino);
	if (r >= 0)
		r = sql_exec(c, SQL_del_guards, "i", ino);
	return r < 0 ? r : 1;
}

/* By its own row, whose key is that of every other change of it. */
int sql_claim_node(struct sql_conn *c, cfs_ino_t ino)
{
	int r;

	if (!c->guards)
		return 0;
	r = sql_exec(c, SQL_bump_node, "ii", (int64_t)1, (int64_t)ino);
	if (r >= 0)
		r = sql_exec(c, SQL_bump_node, "ii", (int64_t)-1, (int64_t)ino);
	return r < 0 ? r : 0;
}

/* By a row that every volume has, and that is written when a mount begins. */
int sql_lock_tree(struct sql_conn *c)
{
	static const char row[] = "nextSession";
	int r = sql_row(c, SQL_get_counter, "t", row, strlen(row));

	if (r < 0)
		return r;
	sql_done(c, SQL_get_counter);
	if (!c->guards)
		return 0;
	r = sql_exec(c, SQL_add_counter, "it", (int64_t)1, row, strlen(row));
	if (r >= 0)
		r = sql_exec(c, SQL_add_counter, "it", (int64_t)-1, row, strlen(row));
	return r < 0 ? r : 0;
}
