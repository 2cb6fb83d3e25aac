/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/mounted.h"
#include "meta/sqlite/sqlite-internal.h"

#define FREE_MIN_BYTES (1ULL << 30)

static void advise_place(const struct sqlite_db *db, const struct cfs_adviser *to)
{
	struct cfs_fstype_info fs;

	if (cfs_fstype(db->path, &fs) < 0)
		return;
	if (fs.network)
		cfs_advise(to, CFS_ADVICE_CHANGE, "database file",
			   "it is on %s, where neither locks nor shared memory can be relied on: "
			   "move it to a local disk, or the volume to another engine (dump, load)",
			   fs.name);
	else if (fs.in_memory)
		cfs_advise(to, CFS_ADVICE_CHANGE, "database file",
			   "it is on %s and ends with the host: move it to a disk", fs.name);
	else
		cfs_advise(to, CFS_ADVICE_OK, "database file", "on a local %s", fs.name);
	if (fs.free_bytes < FREE_MIN_BYTES)
		cfs_advise(to, CFS_ADVICE_CHANGE, "database space",
			   "only %llu MiB are left beside the database",
			   (unsigned long long)(fs.free_bytes >> 20));
}

static int read_mode(void *arg, int n, char **values, char **columns)
{
	char *mode = arg;

	if (n == 1 && values[0])
		snprintf(mode, 16, "%s", values[0]);
	return 0;
}

static int advise(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const struct cfs_adviser *to = arg;
	char mode[16] = "";

	if (sqlite3_exec(((struct sqlite_conn *)c)->handle, "PRAGMA journal_mode", read_mode, mode,
			 NULL))
		return 0;
	if (strcmp(mode, "wal") != 0)
		cfs_advise(to, CFS_ADVICE_CHANGE, "journal mode",
			   "%s: readers wait for writers; a mount that may write changes it to wal",
			   mode);
	else
		cfs_advise(to, CFS_ADVICE_OK, "journal mode", "wal");
	return 0;
}

int sqlite_op_advise(struct cfs_engine *e, const struct cfs_ctx *ctx, const struct cfs_adviser *to)
{
	advise_place((struct sqlite_db *)sql_db(e), to);
	return sql_read(sql_db(e), ctx, CFS_META_OP_other, advise, (void *)to);
}
