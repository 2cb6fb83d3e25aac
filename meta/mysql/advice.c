/* SPDX-License-Identifier: Apache-2.0 */
/* Advice on the server's settings for a volume. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "meta/mysql/mysql-internal.h"

/* A packet must hold the slice list of a chunk with many writes. */
#define PACKET_MIN (16LL << 20)

static void advise_isolation(const struct cfs_adviser *to, const char *level)
{
	if (!strcmp(level, "READ-COMMITTED"))
		cfs_advise(to, CFS_ADVICE_OK, "isolation", "read committed, which cachefs sets");
	else
		cfs_advise(to, CFS_ADVICE_CHANGE, "isolation",
			   "%s, although cachefs sets read committed: a proxy in front of the "
			   "server changes it",
			   level);
}

static void advise_flush(const struct cfs_adviser *to, const char *value)
{
	if (strcmp(value, "1") != 0)
		cfs_advise(to, CFS_ADVICE_CHANGE, "durability",
			   "a crash can lose acknowledged changes: SET GLOBAL "
			   "innodb_flush_log_at_trx_commit=1");
	else
		cfs_advise(to, CFS_ADVICE_OK, "durability", "each transaction is flushed");
}

static int advise_variables(struct mysql_conn *m, const struct cfs_adviser *to)
{
	static const char text[] =
		"SHOW VARIABLES WHERE Variable_name IN ('max_connections','tx_isolation',"
		"'transaction_isolation','innodb_flush_log_at_trx_commit','max_allowed_packet')";
	int64_t max = 0, used = 0;
	MYSQL_RES *rows;
	bool isolation = false;
	MYSQL_ROW row;
	int r = mysql_query_rows(m, text, &rows);

	if (r)
		return r;
	while ((row = mysql_fetch_row(rows))) {
		if (!strcmp(row[0], "max_connections"))
			max = strtoll(row[1], NULL, 10);
		else if (!strcmp(row[0], "innodb_flush_log_at_trx_commit"))
			advise_flush(to, row[1]);
		else if (!strcmp(row[0], "max_allowed_packet") &&
			 strtoll(row[1], NULL, 10) < PACKET_MIN)
			cfs_advise(to, CFS_ADVICE_CHANGE, "packets",
				   "at most %s bytes: SET GLOBAL max_allowed_packet=%lld", row[1],
				   PACKET_MIN);
		else if (strstr(row[0], "isolation") && !isolation) {
			isolation = true; /* MariaDB has two names for it */
			advise_isolation(to, row[1]);
		}
	}
	mysql_free_result(rows);
	r = mysql_query_rows(m, "SHOW STATUS LIKE 'Threads_connected'", &rows);
	if (r)
		return r;
	row = mysql_fetch_row(rows);
	if (row)
		used = strtoll(row[1], NULL, 10);
	mysql_free_result(rows);
	cfs_advise_connections(to, used, max);
	return 0;
}

static int advise_names(struct mysql_conn *m, const struct cfs_adviser *to)
{
	char text[512];
	MYSQL_RES *rows;
	MYSQL_ROW row;
	size_t len;
	int r;

	snprintf(text, sizeof(text),
		 "SELECT COLLATION_NAME FROM information_schema.COLUMNS WHERE "
		 "TABLE_SCHEMA=DATABASE() AND TABLE_NAME='%sedge' AND COLUMN_NAME='name'",
		 m->sql.db->prefix);
	r = mysql_query_rows(m, text, &rows);
	if (r)
		return r;
	row = mysql_fetch_row(rows);
	len = row && row[0] ? strlen(row[0]) : 0;
	if (len && (len < 4 || strcmp(row[0] + len - 4, "_bin") != 0))
		cfs_advise(
			to, CFS_ADVICE_CHANGE, "comparison of names",
			"%s treats some different names as equal: ALTER TABLE %sedge MODIFY name "
			"VARBINARY(255) NOT NULL",
			row[0], m->sql.db->prefix);
	else if (row)
		cfs_advise(to, CFS_ADVICE_OK, "comparison of names", "byte by byte");
	mysql_free_result(rows);
	return 0;
}

static int advise_clock(struct mysql_conn *m, const struct cfs_adviser *to)
{
	MYSQL_RES *rows;
	MYSQL_ROW row;
	struct timespec before = cfs_wall();
	int r = mysql_query_rows(m, "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6))*1000000 AS SIGNED)",
				 &rows);
	if (r)
		return r;
	row = mysql_fetch_row(rows);
	if (row && row[0])
		cfs_advise_clock(to, strtoll(row[0], NULL, 10), before);
	mysql_free_result(rows);
	return 0;
}

static int advise(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct mysql_conn *m = mysql_conn(c);
	int r = advise_clock(m, arg);

	if (!r)
		r = advise_variables(m, arg);
	return r ? r : advise_names(m, arg);
}

int mysql_op_advise(struct cfs_engine *e, const struct cfs_ctx *ctx, const struct cfs_adviser *to)
{
	return sql_read(sql_db(e), ctx, CFS_META_OP_other, advise, (void *)to);
}
