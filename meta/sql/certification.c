/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Certification rows detect conflicts between servers that do not share locks. A cluster (Galera)
 * certifies a transaction by the keys of the rows that it changes. A row that is only locked, or
 * set to its old value, contributes no key. Therefore the transaction inserts a row and deletes it
 * before the commit: other transactions never see the row.
 *
 * A directory has SQL_CERTIFICATION_ROWS such rows, in the table of BSD locks, without a session. A
 * transaction that creates a name writes one of them, so that two creations rarely conflict. A
 * transaction that removes an empty directory writes all of them.
 */
#include <string.h>

#include "meta/sql/sql-internal.h"

int sql_certify_dir(struct sql_conn *c, cfs_ino_t dir)
{
	int64_t ino = (int64_t)dir, row = c->certification_row;
	int r;

	if (!c->certifies)
		return 0;
	r = sql_exec(c, SQL_put_certification, "ii", ino, row);
	if (r >= 0)
		r = sql_exec(c, SQL_del_certification, "ii", ino, row);
	return r < 0 ? r : 0;
}

int sql_close_dir(struct sql_conn *c, cfs_ino_t dir)
{
	int64_t ino = (int64_t)dir;
	int r;

	if (!c->certifies)
		return 0;
	r = sql_exec(c, SQL_put_certifications, "iiiiiiiiiiiiiiii", ino, ino, ino, ino, ino, ino,
		     ino, ino, ino, ino, ino, ino, ino, ino, ino, ino);
	if (r >= 0)
		r = sql_exec(c, SQL_del_certifications, "i", ino);
	return r < 0 ? r : 1;
}

/* Changes the node's row back and forth: every other change of the node has the same key. */
int sql_claim_node(struct sql_conn *c, cfs_ino_t ino)
{
	int r;

	if (!c->certifies)
		return 0;
	r = sql_exec(c, SQL_bump_node, "ii", (int64_t)1, (int64_t)ino);
	if (r >= 0)
		r = sql_exec(c, SQL_bump_node, "ii", (int64_t)-1, (int64_t)ino);
	return r < 0 ? r : 0;
}

/* Locks the row of a counter that every volume has and that only a starting mount writes. */
int sql_lock_tree(struct sql_conn *c)
{
	static const char row[] = "nextSession";
	int r = sql_row(c, SQL_get_counter, "t", row, strlen(row));

	if (r < 0)
		return r;
	sql_done(c, SQL_get_counter);
	if (!c->certifies)
		return 0;
	r = sql_exec(c, SQL_add_counter, "it", (int64_t)1, row, strlen(row));
	if (r >= 0)
		r = sql_exec(c, SQL_add_counter, "it", (int64_t)-1, row, strlen(row));
	return r < 0 ? r : 0;
}
