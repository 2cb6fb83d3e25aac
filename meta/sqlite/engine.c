/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/sql/engine-ops.h"
#include "meta/sqlite/sqlite-internal.h"

const struct cfs_engine_ops cfs_engine_sqlite = {
	.name = "sqlite3",
	.inline_usage = true,
	.open = sql_sqlite_open,
	.close = sql_sqlite_close,
	.advise = sqlite_op_advise,
	.room = sqlite_op_room,
	SQL_ENGINE_OPS,
	.commit_group = sql_op_commit_group,
};
