/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of meta/sql/schema.c in MySQL, with the column types of JuiceFS. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "mysql-internal.h"

/* MySQL has a collation without padding from this version on; TiDB reports an older version. */
#define NO_PAD_SINCE 80017

void mysql_put_type(FILE *f, const struct sql_column *col)
{
	switch (col->kind) {
	case SQL_KIND_I32:
		fputs("INT", f);
		break;
	case SQL_KIND_I64:
		fputs("BIGINT", f);
		break;
	case SQL_KIND_STRING:
		fputs("VARCHAR(255)", f);
		break;
	case SQL_KIND_TEXT:
		fputs("TEXT", f);
		break;
	case SQL_KIND_BLOB:
		if (col->size)
			fprintf(f, "VARBINARY(%u)", col->size);
		else
			fputs("BLOB", f);
		break;
	}
}

/* ---- existing tables ---- */

/*
 * When KILL QUERY or max_statement_time stops a statement during planning, MariaDB may report that
 * no row was found. The server counts both kinds of stops.
 */
int mysql_stops(struct sql_conn *c, uint64_t *ret)
{
	struct mysql_conn *m = mysql_conn(c);
	uint64_t sum = 0;
	unsigned n = 0;
	MYSQL_RES *rows;
	MYSQL_ROW row;
	int r;

	if (m->way != MYSQL_COMPOUND)
		return 0;
	r = mysql_query_rows(m,
			     "SHOW GLOBAL STATUS WHERE Variable_name IN "
			     "('Com_kill','Max_statement_time_exceeded')",
			     &rows);
	if (r)
		return r;
	for (; (row = mysql_fetch_row(rows)); n++)
		sum += row[1] ? strtoull(row[1], NULL, 10) : 0;
	mysql_free_result(rows);
	if (n != 2)
		return -EAGAIN;
	*ret = sum;
	return 0;
}

int mysql_each_column(struct sql_conn *c, sql_column_fn see, void *arg)
{
	const char *prefix = c->db->prefix;
	size_t len = strlen(prefix);
	MYSQL_RES *rows;
	MYSQL_ROW row;
	int r;

	r = mysql_query_rows(mysql_conn(c),
			     "SELECT TABLE_NAME,COLUMN_NAME FROM information_schema.COLUMNS "
			     "WHERE TABLE_SCHEMA=DATABASE()",
			     &rows);
	if (r)
		return r;
	while ((row = mysql_fetch_row(rows))) {
		if (strncmp(row[0], prefix, len) == 0)
			see(arg, row[0] + len, row[1]);
	}
	mysql_free_result(rows);
	return 0;
}

int mysql_has_index(struct sql_conn *c, const char *table, const char *name)
{
	char text[512];
	MYSQL_RES *rows;
	int r;

	snprintf(text, sizeof(text),
		 "SELECT 1 FROM information_schema.STATISTICS WHERE TABLE_SCHEMA=DATABASE() "
		 "AND TABLE_NAME='%s%s' AND INDEX_NAME='%s' LIMIT 1",
		 c->db->prefix, table, name);
	r = mysql_query_rows(mysql_conn(c), text, &rows);
	if (r)
		return r;
	r = mysql_num_rows(rows) > 0;
	mysql_free_result(rows);
	return r;
}

/* ---- creating ---- */

/* A collation that compares names byte by byte, whatever the default of the database is. */
static const char *collation(struct sql_conn *c)
{
	MYSQL *handle = mysql_conn(c)->handle;

	if (strstr(mysql_get_server_info(handle), "MariaDB"))
		return "utf8mb4_nopad_bin";
	return mysql_get_server_version(handle) >= NO_PAD_SINCE ? "utf8mb4_0900_bin"
								: "utf8mb4_bin";
}

void mysql_put_table_options(struct sql_conn *c, FILE *f)
{
	fprintf(f, " ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=%s", collation(c));
}

/* DDL ends the transaction and runs in one of its own. */
int mysql_run_ddl(struct sql_conn *c, const char *text)
{
	struct mysql_conn *m = mysql_conn(c);
	int r2, r = c->certifies ? mysql_run(m, "SET SESSION TRANSACTION READ WRITE") : 0;

	m->in_txn = false;
	if (r)
		return r;
	r = mysql_run(m, text);
	r2 = c->certifies ? mysql_run(m, "SET SESSION TRANSACTION READ ONLY") : 0;
	return r ? r : r2;
}

/* Each DDL statement has ended the transaction; the caller continues in another one. */
int mysql_end_ddl(struct sql_conn *c)
{
	mysql_conn(c)->in_txn = true;
	return mysql_start_txn(mysql_conn(c));
}
