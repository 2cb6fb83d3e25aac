/* SPDX-License-Identifier: Apache-2.0 */
/* Advice on the server's settings for a volume. */
#include "meta/postgresql/pg-internal.h"

/* The columns of the query, all of them numbers. */
enum { CLOCK_US, USED, MAX_CONNECTIONS, SYNC_COMMIT, FSYNC, FULL_PAGES, NAMES_BINARY };
static const char text[] =
	"SELECT (extract(epoch from clock_timestamp())*1000000)::bigint,"
	"(SELECT count(*) FROM pg_stat_activity WHERE datname IS NOT NULL)::bigint,"
	"current_setting('max_connections')::bigint,"
	"(current_setting('synchronous_commit')<>'off')::int::bigint,"
	"(current_setting('fsync')='on')::int::bigint,"
	"(current_setting('full_page_writes')='on')::int::bigint,"
	"(SELECT count(*) FROM pg_attribute WHERE attrelid='{edge}'::regclass AND "
	"attname='name' AND atttypid='bytea'::regtype)::bigint";

static void advise_durability(struct sql_conn *c, const struct cfs_adviser *to)
{
	static const struct {
		int column;
		const char *change;
	} settings[] = {
		{SYNC_COMMIT, "ALTER DATABASE ... SET synchronous_commit=on"},
		{FSYNC, "set fsync=on in postgresql.conf"},
		{FULL_PAGES, "set full_page_writes=on in postgresql.conf"},
	};
	bool good = true;
	size_t i;

	for (i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
		if (sql_int(c, (enum sql_stmt_id)PG_ADVICE, settings[i].column))
			continue;
		good = false;
		cfs_advise(to, CFS_ADVICE_CHANGE, "durability",
			   "a crash can lose acknowledged changes: %s", settings[i].change);
	}
	if (good)
		cfs_advise(to, CFS_ADVICE_OK, "durability", "each transaction is flushed");
}

static int advise(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	const enum sql_stmt_id id = (enum sql_stmt_id)PG_ADVICE;
	const struct cfs_adviser *to = arg;
	struct timespec before = cfs_wall();
	int r = pg_execute(c, PG_ADVICE, text, NULL, 0);

	if (r < 0)
		return r == PG_UNKNOWN ? -EAGAIN : r;
	cfs_advise_clock(to, sql_int(c, id, CLOCK_US), before);
	cfs_advise_connections(to, sql_int(c, id, USED), sql_int(c, id, MAX_CONNECTIONS));
	advise_durability(c, to);
	if (sql_int(c, id, NAMES_BINARY))
		cfs_advise(to, CFS_ADVICE_OK, "comparison of names", "byte by byte");
	else
		cfs_advise(to, CFS_ADVICE_CHANGE, "comparison of names",
			   "the column name of the edges is not bytea: load a dump of the volume "
			   "into an empty database");
	cfs_advise(to, CFS_ADVICE_OK, "isolation",
		   "read committed, which each transaction asks for");
	pg_close_stmt(c, PG_ADVICE);
	return 0;
}

int pg_op_advise(struct cfs_engine *e, const struct cfs_ctx *ctx, const struct cfs_adviser *to)
{
	return sql_read(sql_db(e), ctx, CFS_META_OP_other, advise, (void *)to);
}
