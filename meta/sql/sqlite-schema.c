/* SPDX-License-Identifier: Apache-2.0 */
/* The list of schema.c as SQLite tables and indexes, written as the other client writes them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "meta/sql/sqlite-internal.h"

static const char *const types[] = {
	[SQL_KIND_I32] = "INTEGER", [SQL_KIND_I64] = "INTEGER", [SQL_KIND_STRING] = "TEXT",
	[SQL_KIND_TEXT] = "TEXT",   [SQL_KIND_BLOB] = "BLOB",
};

static sqlite3 *handle(struct sql_conn *c)
{
	return ((struct sqlite_conn *)c)->handle;
}

static void full_name(struct sql_conn *c, const char *table, char buf[128])
{
	snprintf(buf, 128, "%s%s", c->db->prefix, table);
}

static void index_name(struct sql_conn *c, const struct sql_table *t, const struct sql_index *x,
		       char buf[192])
{
	snprintf(buf, 192, "%s_%s%s_%s", x->unique ? "UQE" : "IDX", c->db->prefix, t->name,
		 x->name);
}

bool sqlite_has_column(struct sql_conn *c, const char *table, const char *column)
{
	char name[128];

	full_name(c, table, name);
	return !sqlite3_table_column_metadata(handle(c), NULL, name, column, NULL, NULL, NULL, NULL,
					      NULL);
}

/* 1, 0 or negative. */
static int has_index(struct sql_conn *c, const char *name)
{
	sqlite3_stmt *stmt = NULL;
	int rc = sqlite3_prepare_v2(handle(c),
				    "SELECT 1 FROM sqlite_master WHERE type='index' AND name=?", -1,
				    &stmt, NULL);

	if (!rc)
		rc = sqlite3_bind_text(stmt, 1, name, -1, SQLITE_STATIC);
	if (!rc)
		rc = sqlite3_step(stmt);
	sqlite3_finalize(stmt);
	return rc == SQLITE_ROW ? 1 : sqlite_error(handle(c), rc, "index list");
}

static unsigned count_keys(const struct sql_table *t)
{
	unsigned n = 0;

	for (const struct sql_column *col = t->columns; col->name; col++)
		n += col->key;
	return n;
}

static void put_column(FILE *f, const struct sql_column *col, bool alone)
{
	fprintf(f, "`%s` %s", col->name, types[col->kind]);
	if (col->key && alone)
		fprintf(f, " PRIMARY KEY%s", col->auto_id ? " AUTOINCREMENT" : "");
	if (col->zero)
		fprintf(f, " DEFAULT 0");
	fprintf(f, col->null ? " NULL" : " NOT NULL");
}

static void put_table(struct sql_conn *c, FILE *f, const struct sql_table *t)
{
	bool alone = count_keys(t) == 1;
	const char *comma = "";

	fprintf(f, "CREATE TABLE IF NOT EXISTS `%s%s` (", c->db->prefix, t->name);
	for (const struct sql_column *col = t->columns; col->name; col++) {
		fprintf(f, "%s", comma);
		put_column(f, col, alone);
		comma = ", ";
	}
	if (!alone) {
		fprintf(f, ", PRIMARY KEY (");
		comma = "";
		for (const struct sql_column *col = t->columns; col->name; col++) {
			if (!col->key)
				continue;
			fprintf(f, "%s`%s`", comma, col->name);
			comma = ",";
		}
		fprintf(f, ")");
	}
	fprintf(f, ")");
}

static int run_memstream(struct sql_conn *c, FILE *f, char **text)
{
	int r = fclose(f) ? -ENOMEM : sqlite_run(handle(c), "%s", *text);

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
	fprintf(f, "ALTER TABLE `%s%s` ADD COLUMN ", c->db->prefix, t->name);
	put_column(f, col, false);
	return run_memstream(c, f, &text);
}

int sqlite_check_schema(struct sql_conn *c)
{
	for (const struct sql_table *t = sql_tables; t->name; t++) {
		for (const struct sql_column *col = t->columns; col->name; col++)
			if (!sqlite_has_column(c, t->name, col->name))
				return 1;
		for (const struct sql_index *x = t->indexes; x->name; x++) {
			char name[192];
			int r;

			index_name(c, t, x, name);
			r = has_index(c, name);
			if (r <= 0)
				return r ? r : 1;
		}
	}
	return 0;
}

int sqlite_create_schema(struct sql_conn *c)
{
	int r = 0;

	for (const struct sql_table *t = sql_tables; t->name && !r; t++) {
		r = create_table(c, t);
		for (const struct sql_column *col = t->columns; col->name && !r; col++)
			if (!sqlite_has_column(c, t->name, col->name))
				r = add_column(c, t, col);
		for (const struct sql_index *x = t->indexes; x->name && !r; x++) {
			char name[192];

			index_name(c, t, x, name);
			r = sqlite_run(handle(c),
				       "CREATE %sINDEX IF NOT EXISTS `%s` ON `%s%s` (%s)",
				       x->unique ? "UNIQUE " : "", name, c->db->prefix, t->name,
				       x->columns);
		}
	}
	return r;
}

int sqlite_drop_schema(struct sql_conn *c)
{
	int r = 0;

	for (const struct sql_table *t = sql_tables; t->name && !r; t++)
		r = sqlite_run(handle(c), "DROP TABLE IF EXISTS `%s%s`", c->db->prefix, t->name);
	return r;
}
