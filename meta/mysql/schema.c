/* SPDX-License-Identifier: Apache-2.0 */
/* The list of meta/sql/schema.c as InnoDB tables, with the types the other client gives them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "mysql-internal.h"

/* MySQL has the collation without padding since this version; TiDB says that it is older. */
#define NO_PAD_SINCE 80017

static void put_type(FILE *f, const struct sql_column *col)
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

/* ---- which columns are there ---- */

static size_t column_number(const char *table, const char *column)
{
	size_t n = 0;

	for (const struct sql_table *t = sql_tables; t->name; t++)
		for (const struct sql_column *col = t->columns; col->name; col++, n++)
			if (strcmp(t->name, table) == 0 && strcmp(col->name, column) == 0)
				return n;
	return SIZE_MAX;
}

static bool is_there(const struct mysql_columns *known, size_t n)
{
	return n / 32 < sizeof(known->there) / sizeof(known->there[0]) &&
	       known->there[n / 32] >> (n % 32) & 1;
}

static int query(struct mysql_conn *m, const char *text, MYSQL_RES **ret)
{
	int r = mysql_run(m, text);

	if (r)
		return r;
	*ret = mysql_store_result(m->handle);
	if (!*ret)
		return mysql_error_of(m, mysql_errno(m->handle), mysql_error(m->handle), text);
	return 0;
}

/* Under columns.lock. */
static int load_columns(struct mysql_conn *m, struct mysql_columns *known)
{
	const char *prefix = m->sql.db->prefix;
	MYSQL_RES *rows;
	MYSQL_ROW row;
	size_t n;
	int r;

	r = query(m,
		  "SELECT TABLE_NAME,COLUMN_NAME FROM information_schema.COLUMNS "
		  "WHERE TABLE_SCHEMA=DATABASE()",
		  &rows);
	if (r)
		return r;
	memset(known->there, 0, sizeof(known->there));
	while ((row = mysql_fetch_row(rows))) {
		if (strncmp(row[0], prefix, strlen(prefix)) != 0)
			continue;
		n = column_number(row[0] + strlen(prefix), row[1]);
		if (n / 32 < sizeof(known->there) / sizeof(known->there[0]))
			known->there[n / 32] |= 1U << (n % 32);
	}
	mysql_free_result(rows);
	known->known = true;
	return 0;
}

/* Of a table that is not in the list. */
static bool has_other_column(struct sql_conn *c, const char *table, const char *column)
{
	char text[512];
	MYSQL_RES *rows;
	bool there;

	snprintf(text, sizeof(text),
		 "SELECT 1 FROM information_schema.COLUMNS WHERE TABLE_SCHEMA=DATABASE() "
		 "AND TABLE_NAME='%s%s' AND COLUMN_NAME='%s'",
		 c->db->prefix, table, column);
	if (query(mysql_conn(c), text, &rows))
		return false;
	there = mysql_num_rows(rows) > 0;
	mysql_free_result(rows);
	return there;
}

/* A column that is missing is looked for again: somebody may have added it. */
bool mysql_has_column(struct sql_conn *c, const char *table, const char *column)
{
	struct mysql_columns *known = &((struct mysql_db *)c->db)->columns;
	size_t n = column_number(table, column);
	bool there;

	if (n == SIZE_MAX)
		return has_other_column(c, table, column);
	pthread_mutex_lock(&known->lock);
	there = known->known && is_there(known, n);
	if (!there)
		there = !load_columns(mysql_conn(c), known) && is_there(known, n);
	pthread_mutex_unlock(&known->lock);
	return there;
}

static void forget_columns(struct sql_conn *c)
{
	struct mysql_columns *known = &((struct mysql_db *)c->db)->columns;

	pthread_mutex_lock(&known->lock);
	known->known = false;
	pthread_mutex_unlock(&known->lock);
}

/* ---- indexes ---- */

static void index_name(struct sql_conn *c, const struct sql_table *t, const struct sql_index *x,
		       char buf[192])
{
	snprintf(buf, 192, "%s_%s%s_%s", x->unique ? "UQE" : "IDX", c->db->prefix, t->name,
		 x->name);
}

/* 1, 0 or negative. */
static int has_index(struct sql_conn *c, const struct sql_table *t, const char *name)
{
	char text[512];
	MYSQL_RES *rows;
	int r;

	snprintf(text, sizeof(text),
		 "SELECT 1 FROM information_schema.STATISTICS WHERE TABLE_SCHEMA=DATABASE() "
		 "AND TABLE_NAME='%s%s' AND INDEX_NAME='%s' LIMIT 1",
		 c->db->prefix, t->name, name);
	r = query(mysql_conn(c), text, &rows);
	if (r)
		return r;
	r = mysql_num_rows(rows) > 0;
	mysql_free_result(rows);
	return r;
}

int mysql_check_schema(struct sql_conn *c)
{
	char name[192];
	int r;

	for (const struct sql_table *t = sql_tables; t->name; t++) {
		for (const struct sql_column *col = t->columns; col->name; col++)
			if (!mysql_has_column(c, t->name, col->name))
				return 1;
		for (const struct sql_index *x = t->indexes; x->name; x++) {
			index_name(c, t, x, name);
			r = has_index(c, t, name);
			if (r <= 0)
				return r ? r : 1;
		}
	}
	return 0;
}

/* ---- making ---- */

static void put_column(FILE *f, const struct sql_column *col)
{
	fprintf(f, "`%s` ", col->name);
	put_type(f, col);
	if (col->zero)
		fputs(" DEFAULT 0", f);
	fputs(col->null ? " NULL" : " NOT NULL", f);
	if (col->auto_id)
		fputs(" AUTO_INCREMENT", f);
}

/* Attribute names compare byte by byte, whatever the database's default is. */
static const char *collation(struct sql_conn *c)
{
	MYSQL *handle = mysql_conn(c)->handle;

	if (strstr(mysql_get_server_info(handle), "MariaDB"))
		return "utf8mb4_nopad_bin";
	return mysql_get_server_version(handle) >= NO_PAD_SINCE ? "utf8mb4_0900_bin"
								: "utf8mb4_bin";
}

static void put_table(struct sql_conn *c, FILE *f, const struct sql_table *t)
{
	const char *comma = "";
	char name[192];

	fprintf(f, "CREATE TABLE IF NOT EXISTS `%s%s` (", c->db->prefix, t->name);
	for (const struct sql_column *col = t->columns; col->name; col++) {
		put_column(f, col);
		fputs(", ", f);
	}
	fputs("PRIMARY KEY (", f);
	for (const struct sql_column *col = t->columns; col->name; col++) {
		if (!col->key)
			continue;
		fprintf(f, "%s`%s`", comma, col->name);
		comma = ",";
	}
	fputc(')', f);
	for (const struct sql_index *x = t->indexes; x->name; x++) {
		index_name(c, t, x, name);
		fprintf(f, ", %s `%s` (%s)", x->unique ? "UNIQUE KEY" : "KEY", name, x->columns);
	}
	fprintf(f, ") ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=%s", collation(c));
}

static int run_memstream(struct sql_conn *c, FILE *f, char **text)
{
	int r = fclose(f) ? -ENOMEM : mysql_run(mysql_conn(c), *text);

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
	put_column(f, col);
	return run_memstream(c, f, &text);
}

static int add_index(struct sql_conn *c, const struct sql_table *t, const struct sql_index *x)
{
	char name[192], text[512];
	int r;

	index_name(c, t, x, name);
	r = has_index(c, t, name);
	if (r)
		return r < 0 ? r : 0;
	snprintf(text, sizeof(text), "CREATE %sINDEX `%s` ON `%s%s` (%s)",
		 x->unique ? "UNIQUE " : "", name, c->db->prefix, t->name, x->columns);
	return mysql_run(mysql_conn(c), text);
}

/* Each statement about tables ends the transaction; the caller's goes on in another one. */
int mysql_create_schema(struct sql_conn *c)
{
	int r = 0;

	for (const struct sql_table *t = sql_tables; t->name && !r; t++)
		r = create_table(c, t);
	for (const struct sql_table *t = sql_tables; t->name && !r; t++) {
		for (const struct sql_column *col = t->columns; col->name && !r; col++)
			if (!mysql_has_column(c, t->name, col->name))
				r = add_column(c, t, col);
		for (const struct sql_index *x = t->indexes; x->name && !r; x++)
			r = add_index(c, t, x);
	}
	return r ? r : mysql_run(mysql_conn(c), "START TRANSACTION");
}

int mysql_drop_schema(struct sql_conn *c)
{
	char text[256];
	int r = 0;

	for (const struct sql_table *t = sql_tables; t->name && !r; t++) {
		snprintf(text, sizeof(text), "DROP TABLE IF EXISTS `%s%s`", c->db->prefix, t->name);
		r = mysql_run(mysql_conn(c), text);
	}
	forget_columns(c);
	return r;
}
