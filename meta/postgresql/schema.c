/* SPDX-License-Identifier: Apache-2.0 */
/* The list of meta/sql/schema.c as PostgreSQL tables and indexes, as the other client makes them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "meta/postgresql/pg-internal.h"

static const char *const types[] = {
	[SQL_KIND_I32] = "INTEGER", [SQL_KIND_I64] = "BIGINT", [SQL_KIND_STRING] = "VARCHAR(255)",
	[SQL_KIND_TEXT] = "TEXT",   [SQL_KIND_BLOB] = "BYTEA",
};

static size_t count_tables(void)
{
	size_t n = 0;

	while (sql_tables[n].name)
		n++;
	return n;
}

static const char *bare_prefix(struct sql_conn *c)
{
	struct pg_db *db = pg_db(c->db);

	return db->bare_prefix ? db->bare_prefix : db->sql.prefix;
}

static int ask(struct pg_conn *s, int id)
{
	int r = pg_queue(s, id, true);

	return r ? r : pg_exchange(s);
}

/* ---- what is there ---- */

/* Is there a relation of that name (a column NULL), or a column of it? 1, 0 or negative. */
static int exists(struct sql_conn *c, const char *relation, const char *column)
{
	struct pg_conn *s = pg_conn(c);
	const char *schema = pg_db(c->db)->schema;
	struct pg_stmt *st;
	int r = pg_prepare(s, PG_EXISTS,
			   "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid=c.relnamespace "
			   "LEFT JOIN pg_attribute a ON a.attrelid=c.oid AND a.attname=? "
			   "AND NOT a.attisdropped WHERE c.relname=? "
			   "AND CASE WHEN ?='' THEN pg_table_is_visible(c.oid) "
			   "ELSE n.nspname=? END AND (?='' OR a.attname IS NOT NULL)");

	if (r < 0)
		return r;
	if (!column)
		column = "";
	if (!schema)
		schema = "";
	st = s->stmt[PG_EXISTS];
	pg_bind_bytes(st, 1, column, strlen(column), true);
	pg_bind_bytes(st, 2, relation, strlen(relation), true);
	pg_bind_bytes(st, 3, schema, strlen(schema), true);
	pg_bind_bytes(st, 4, schema, strlen(schema), true);
	pg_bind_bytes(st, 5, column, strlen(column), true);
	r = ask(s, PG_EXISTS);
	if (!r)
		r = PQntuples(st->result) > 0;
	PQclear(st->result);
	st->result = NULL;
	return r;
}

/* Bits of the columns that each table has. */
static int read_columns(struct sql_conn *c, uint32_t *have)
{
	struct pg_conn *s = pg_conn(c);
	const char *schema = pg_db(c->db)->schema, *prefix = bare_prefix(c);
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
	for (int row = 0; !r && row < PQntuples(st->result); row++) {
		const char *table = PQgetvalue(st->result, row, 0) + strlen(prefix);
		const char *column = PQgetvalue(st->result, row, 1);

		for (size_t t = 0; sql_tables[t].name; t++) {
			if (strcmp(sql_tables[t].name, table) != 0)
				continue;
			for (unsigned i = 0; sql_tables[t].columns[i].name; i++)
				if (!strcmp(sql_tables[t].columns[i].name, column))
					have[t] |= 1U << i;
		}
	}
	PQclear(st->result);
	st->result = NULL;
	return r;
}

static void forget_columns(struct pg_db *db)
{
	pthread_mutex_lock(&db->columns.lock);
	free(db->columns.have);
	db->columns.have = NULL;
	pthread_mutex_unlock(&db->columns.lock);
}

static bool is_known(struct pg_db *db, size_t table, unsigned column)
{
	bool known;

	pthread_mutex_lock(&db->columns.lock);
	known = db->columns.have && db->columns.have[table] >> column & 1;
	pthread_mutex_unlock(&db->columns.lock);
	return known;
}

/*
 * Columns come and do not go: only those that are missing are asked for again. Where there is no
 * answer the column is taken to be there, and the operation is tried again when that was wrong.
 */
bool pg_has_column(struct sql_conn *c, const char *table, const char *column)
{
	struct pg_db *db = pg_db(c->db);
	char name[128];
	uint32_t *have;
	size_t t = 0;
	unsigned i = 0;
	int r;

	while (sql_tables[t].name && strcmp(sql_tables[t].name, table) != 0)
		t++;
	if (!sql_tables[t].name) {
		snprintf(name, sizeof(name), "%s%s", bare_prefix(c), table);
		r = exists(c, name, column);
		c->conflict = c->conflict || r < 0;
		return r != 0;
	}
	while (sql_tables[t].columns[i].name && strcmp(sql_tables[t].columns[i].name, column) != 0)
		i++;
	if (is_known(db, t, i))
		return true;
	have = calloc(count_tables(), sizeof(*have));
	if (!have || read_columns(c, have)) {
		c->conflict = true;
		free(have);
		return true;
	}
	pthread_mutex_lock(&db->columns.lock);
	free(db->columns.have);
	db->columns.have = have;
	pthread_mutex_unlock(&db->columns.lock);
	return is_known(db, t, i);
}

static void index_name(struct sql_conn *c, const struct sql_table *t, const struct sql_index *x,
		       char buf[192])
{
	snprintf(buf, 192, "%s_%s%s_%s", x->unique ? "UQE" : "IDX", bare_prefix(c), t->name,
		 x->name);
}

int pg_check_schema(struct sql_conn *c)
{
	for (const struct sql_table *t = sql_tables; t->name; t++) {
		for (const struct sql_column *col = t->columns; col->name; col++)
			if (!pg_has_column(c, t->name, col->name))
				return 1;
		for (const struct sql_index *x = t->indexes; x->name; x++) {
			char name[192];
			int r;

			index_name(c, t, x, name);
			r = exists(c, name, NULL);
			if (r <= 0)
				return r ? r : 1;
		}
	}
	return 0;
}

/* ---- creation ---- */

static void put_column(FILE *f, const struct sql_column *col)
{
	const char *type = types[col->kind];

	if (col->auto_id)
		type = col->kind == SQL_KIND_I32 ? "SERIAL" : "BIGSERIAL";
	fprintf(f, "`%s` %s", col->name, type);
	if (col->zero)
		fprintf(f, " DEFAULT 0");
	fprintf(f, col->null ? " NULL" : " NOT NULL");
}

static void put_table(struct sql_conn *c, FILE *f, const struct sql_table *t)
{
	const char *comma = "";

	fprintf(f, "CREATE TABLE IF NOT EXISTS `%s%s` (", c->db->prefix, t->name);
	for (const struct sql_column *col = t->columns; col->name; col++) {
		put_column(f, col);
		fprintf(f, ", ");
	}
	fprintf(f, "PRIMARY KEY (");
	for (const struct sql_column *col = t->columns; col->name; col++) {
		if (!col->key)
			continue;
		fprintf(f, "%s`%s`", comma, col->name);
		comma = ",";
	}
	fprintf(f, "))");
}

static int run_memstream(struct sql_conn *c, FILE *f, char **text)
{
	int r = fclose(f) ? -ENOMEM : pg_run(pg_conn(c), *text);

	free(*text);
	*text = NULL;
	return r;
}

static int create_table(struct sql_conn *c, const struct sql_table *t)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);

	if (!f)
		return -ENOMEM;
	put_table(c, f, t);
	return run_memstream(c, f, &text);
}

/* A column that came with a later version is NULL or has a default: old rows are valid. */
static int add_column(struct sql_conn *c, const struct sql_table *t, const struct sql_column *col)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);

	if (!f)
		return -ENOMEM;
	fprintf(f, "ALTER TABLE `%s%s` ADD COLUMN IF NOT EXISTS ", c->db->prefix, t->name);
	put_column(f, col);
	return run_memstream(c, f, &text);
}

static int create_index(struct sql_conn *c, const struct sql_table *t, const struct sql_index *x)
{
	char name[192], text[512];

	index_name(c, t, x, name);
	snprintf(text, sizeof(text), "CREATE %sINDEX IF NOT EXISTS `%s` ON `%s%s` (%s)",
		 x->unique ? "UNIQUE " : "", name, c->db->prefix, t->name, x->columns);
	return pg_run(pg_conn(c), text);
}

/* Two mounts that start at once do this one after the other. */
int pg_create_schema(struct sql_conn *c)
{
	int r = pg_run(pg_conn(c), "SELECT pg_advisory_xact_lock(hashtext('cachefs schema'))");

	for (const struct sql_table *t = sql_tables; t->name && !r; t++) {
		r = create_table(c, t);
		for (const struct sql_column *col = t->columns; col->name && !r; col++)
			if (!pg_has_column(c, t->name, col->name))
				r = add_column(c, t, col);
		for (const struct sql_index *x = t->indexes; x->name && !r; x++)
			r = create_index(c, t, x);
	}
	/* What was seen inside this transaction may be rolled back. */
	forget_columns(pg_db(c->db));
	return r;
}

int pg_drop_schema(struct sql_conn *c)
{
	char text[512];
	int r = 0;

	for (const struct sql_table *t = sql_tables; t->name && !r; t++) {
		snprintf(text, sizeof(text), "DROP TABLE IF EXISTS `%s%s`", c->db->prefix, t->name);
		r = pg_run(pg_conn(c), text);
	}
	forget_columns(pg_db(c->db));
	return r;
}
