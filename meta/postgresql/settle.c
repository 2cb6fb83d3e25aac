/* SPDX-License-Identifier: Apache-2.0 */
/* Before objects are deleted: changes that the server has acknowledged outlive its host. */
#include <string.h>

#include "meta/postgresql/pg-internal.h"

/*
 * With synchronous_commit=off a commit is acknowledged before its log is flushed. A commit that is
 * not so flushes the log up to its own record, which is behind those of all before it; it needs a
 * row to have a record of (https://www.postgresql.org/docs/current/wal-async-commit.html).
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
