/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes sure, before objects are deleted, that acknowledged changes survive a crash of the server's
 * host.
 */
#include <string.h>

#include "meta/postgresql/pg-internal.h"

/*
 * With synchronous_commit=off a commit is acknowledged before its log is flushed. A synchronous
 * commit flushes the log up to its own record, which is behind those of all earlier commits. It
 * must change a row to have a record
 * (https://www.postgresql.org/docs/current/wal-async-commit.html).
 */
static int settle(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	static const char row[] = "nextCleanupSlices";
	int r = pg_run(pg_conn(c), "SELECT set_config('synchronous_commit','local',true) WHERE "
				   "current_setting('synchronous_commit')='off'");

	if (r)
		return r;
	r = sql_exec(c, SQL_add_counter, "it", (int64_t)0, row, strlen(row));
	return r < 0 ? r : 0;
}

int pg_op_settle(struct cfs_engine *e, const struct cfs_ctx *ctx)
{
	return sql_txn(sql_db(e), ctx, CFS_META_OP_delete, settle, NULL);
}
