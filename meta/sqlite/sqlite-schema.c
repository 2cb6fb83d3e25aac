/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of schema.c in SQLite, in the form of JuiceFS. */
#include "meta/sqlite/sqlite-internal.h"

static sqlite3 *handle(struct sql_conn *c)
{
	return ((struct sqlite_conn *)c)->handle;
}

void sqlite_put_type(FILE *f, const struct sql_column *col)
{
	static const char *const types[] = {
		[SQL_KIND_I32] = "INTEGER", [SQL_KIND_I64] = "INTEGER", [SQL_KIND_STRING] = "TEXT",
		[SQL_KIND_TEXT] = "TEXT",   [SQL_KIND_BLOB] = "BLOB",
	};

	fputs(types[col->kind], f);
}

/* Only PRIMARY KEY in the definition of the column makes the column the rowid. */
const char *sqlite_only_key(const struct sql_column *col)
{
	return col->auto_id ? "PRIMARY KEY AUTOINCREMENT" : "PRIMARY KEY";
}

int sqlite_has_column(struct sql_conn *c, const char *table, const char *column)
{
	char name[128];
	int i, rc = 1;

	snprintf(name, sizeof(name), "%s%s", c->db->prefix, table);
	for (i = 0; i < 2 && rc; i++) {
		/* Executing a statement detects tables that another connection has created. */
		if (i && sqlite_run(handle(c), "SELECT 1 FROM sqlite_master LIMIT 1"))
			break;
		rc = sqlite3_table_column_metadata(handle(c), NULL, name, column, NULL, NULL, NULL,
						   NULL, NULL);
	}
	return !rc;
}

int sqlite_has_index(struct sql_conn *c, const char *table, const char *name)
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

int sqlite_run_ddl(struct sql_conn *c, const char *text)
{
	return sqlite_run(handle(c), "%s", text);
}
