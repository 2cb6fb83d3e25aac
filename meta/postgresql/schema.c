/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of meta/sql/schema.c in PostgreSQL, in the form of JuiceFS. */
#include <string.h>

#include "meta/postgresql/pg-internal.h"

/* ---- existing tables ---- */

/* The condition of a query on pg_class c and pg_namespace n. */
#define IN_SCHEMA "CASE WHEN $2='' THEN pg_table_is_visible(c.oid) ELSE n.nspname=$2 END"

/* Runs a query with $1 and IN_SCHEMA, as pg_ask. */
static int ask(struct sql_conn *c, int id, const char *query, const char *param)
{
	const char *schema = pg_db(c->db)->schema ?: "";

	return pg_ask(c, id, query, SQL_PARAMS(SQL_T(param), SQL_T(schema)));
}

int pg_has_index(struct sql_conn *c, const char *table, const char *name)
{
	int r = ask(c, PG_HAS_INDEX,
		    "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid=c.relnamespace "
		    "WHERE c.relname=$1 AND " IN_SCHEMA,
		    name);

	if (!r)
		r = PQntuples(pg_result(c, PG_HAS_INDEX)) > 0;
	pg_close_stmt(c, PG_HAS_INDEX);
	return r;
}

int pg_each_column(struct sql_conn *c, sql_column_fn see, void *arg)
{
	const char *prefix = sql_bare_prefix(c->db);
	const PGresult *rows;
	int r = ask(c, PG_COLUMNS,
		    "SELECT c.relname,a.attname FROM pg_class c "
		    "JOIN pg_namespace n ON n.oid=c.relnamespace "
		    "JOIN pg_attribute a ON a.attrelid=c.oid AND a.attnum>0 "
		    "AND NOT a.attisdropped WHERE c.relkind IN ('r','p') "
		    "AND starts_with(c.relname,$1) AND " IN_SCHEMA,
		    prefix);

	if (!r) {
		rows = pg_result(c, PG_COLUMNS);
		for (int i = 0; i < PQntuples(rows); i++)
			see(arg, PQgetvalue(rows, i, 0) + strlen(prefix), PQgetvalue(rows, i, 1));
	}
	pg_close_stmt(c, PG_COLUMNS);
	return r;
}

/* ---- creating ---- */

void pg_put_type(FILE *f, const struct sql_column *col)
{
	static const char *const types[] = {
		[SQL_KIND_I32] = "INTEGER",	    [SQL_KIND_I64] = "BIGINT",
		[SQL_KIND_STRING] = "VARCHAR(255)", [SQL_KIND_TEXT] = "TEXT",
		[SQL_KIND_BLOB] = "BYTEA",
	};

	if (col->auto_id)
		fputs(col->kind == SQL_KIND_I32 ? "SERIAL" : "BIGSERIAL", f);
	else
		fputs(types[col->kind], f);
}

int pg_run_ddl(struct sql_conn *c, const char *text)
{
	return pg_run(pg_conn(c), text);
}

/* Serialises the schema changes of mounts that start at the same time. */
int pg_begin_ddl(struct sql_conn *c)
{
	return pg_run(pg_conn(c), "SELECT pg_advisory_xact_lock(hashtext('cachefs schema'))");
}
