/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of meta/sql/schema.c in PostgreSQL, in the form of JuiceFS. */
#include <string.h>

#include "meta/postgresql/pg-internal.h"

static int ask(struct pg_conn *s, int id)
{
	int r = pg_queue(s, id, true);

	return r ? r : pg_exchange(s);
}

/* ---- existing tables ---- */

int pg_has_index(struct sql_conn *c, const char *table, const char *name)
{
	struct pg_conn *s = pg_conn(c);
	const char *schema = pg_db(c->db)->schema;
	struct pg_stmt *st;
	int r = pg_prepare(s, PG_HAS_INDEX,
			   "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid=c.relnamespace "
			   "WHERE c.relname=? AND CASE WHEN ?='' THEN pg_table_is_visible(c.oid) "
			   "ELSE n.nspname=? END");

	if (r < 0)
		return r;
	if (!schema)
		schema = "";
	st = s->stmt[PG_HAS_INDEX];
	pg_bind_bytes(st, 1, name, strlen(name), true);
	pg_bind_bytes(st, 2, schema, strlen(schema), true);
	pg_bind_bytes(st, 3, schema, strlen(schema), true);
	r = ask(s, PG_HAS_INDEX);
	if (!r)
		r = PQntuples(st->result) > 0;
	PQclear(st->result);
	st->result = NULL;
	return r;
}

int pg_each_column(struct sql_conn *c, sql_column_fn see, void *arg)
{
	struct pg_conn *s = pg_conn(c);
	const char *schema = pg_db(c->db)->schema, *prefix = sql_bare_prefix(c->db);
	struct pg_stmt *st;
	int r = pg_prepare(s, PG_COLUMNS,
			   "SELECT c.relname,a.attname FROM pg_class c "
			   "JOIN pg_namespace n ON n.oid=c.relnamespace "
			   "JOIN pg_attribute a ON a.attrelid=c.oid AND a.attnum>0 "
			   "AND NOT a.attisdropped WHERE c.relkind IN ('r','p') "
			   "AND starts_with(c.relname,?) "
			   "AND CASE WHEN ?='' THEN pg_table_is_visible(c.oid) "
			   "ELSE n.nspname=? END");

	if (r < 0)
		return r;
	if (!schema)
		schema = "";
	st = s->stmt[PG_COLUMNS];
	pg_bind_bytes(st, 1, prefix, strlen(prefix), true);
	pg_bind_bytes(st, 2, schema, strlen(schema), true);
	pg_bind_bytes(st, 3, schema, strlen(schema), true);
	r = ask(s, PG_COLUMNS);
	for (int row = 0; !r && row < PQntuples(st->result); row++)
		see(arg, PQgetvalue(st->result, row, 0) + strlen(prefix),
		    PQgetvalue(st->result, row, 1));
	PQclear(st->result);
	st->result = NULL;
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
