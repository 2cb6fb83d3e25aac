/* SPDX-License-Identifier: Apache-2.0 */
/* Finds, creates and drops the tables of schema.c in a database. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "meta/sql/sql-internal.h"

#define NAME_MAX_LEN 192

/* ---- existing columns ---- */

/* The tables of the list, and sql_record_table behind them. */
static size_t count_tables(void)
{
	size_t n = 0;

	while (sql_tables[n].name)
		n++;
	return n + 1;
}

static const struct sql_table *table_at(size_t i)
{
	return sql_tables[i].name ? &sql_tables[i] : &sql_record_table;
}

/* False: the list has no such column. */
static bool find_column(const char *table, const char *column, size_t *ret_table, unsigned *ret_bit)
{
	size_t n = count_tables(), t;
	unsigned i;

	for (t = 0; t < n; t++) {
		const struct sql_table *at = table_at(t);

		if (strcmp(at->name, table) != 0)
			continue;
		for (i = 0; at->columns[i].name; i++) {
			if (strcmp(at->columns[i].name, column) != 0)
				continue;
			*ret_table = t;
			*ret_bit = i;
			return true;
		}
	}
	return false;
}

static void note_column(void *arg, const char *table, const char *column)
{
	uint32_t *have = arg;
	unsigned bit;
	size_t t;

	if (find_column(table, column, &t, &bit))
		have[t] |= 1U << bit;
}

static void remember_columns(struct sql_db *db, uint32_t *have)
{
	pthread_mutex_lock(&db->columns.lock);
	free(db->columns.have);
	db->columns.have = have;
	pthread_mutex_unlock(&db->columns.lock);
}

static bool is_known(struct sql_db *db, size_t table, unsigned bit)
{
	CFS_LOCK_GUARD(&db->columns.lock);

	return db->columns.have && db->columns.have[table] >> bit & 1;
}

int sql_has_column(struct sql_conn *c, const char *table, const char *column)
{
	const struct sql_dialect *d = sql_dialect(c);
	uint32_t *have;
	unsigned bit;
	bool known;
	size_t t;
	int r;

	if (d->has_column)
		return d->has_column(c, table, column);
	if (!find_column(table, column, &t, &bit))
		return 0;
	/* Columns are only added, never dropped: only missing ones are looked up again. */
	if (is_known(c->db, t, bit))
		return 1;
	have = calloc(count_tables(), sizeof(*have));
	r = have ? d->each_column(c, note_column, have) : -ENOMEM;
	if (r < 0) {
		c->conflict = true;
		free(have);
		return r;
	}
	/* Read before remember_columns(): another thread may then free the list. */
	known = have[t] >> bit & 1;
	remember_columns(c->db, have);
	return known;
}

/* ---- missing parts ---- */

static void index_name(struct sql_conn *c, const struct sql_table *t, const struct sql_index *x,
		       char buf[NAME_MAX_LEN])
{
	snprintf(buf, NAME_MAX_LEN, "%s_%s%s_%s", x->unique ? "UQE" : "IDX", sql_bare_prefix(c->db),
		 t->name, x->name);
}

int sql_check_schema(struct sql_conn *c)
{
	char name[NAME_MAX_LEN];
	int r;

	for (const struct sql_table *t = sql_tables; t->name; t++) {
		for (const struct sql_column *col = t->columns; col->name; col++) {
			r = sql_has_column(c, t->name, col->name);
			if (r <= 0)
				return r ? r : 1;
		}
		for (const struct sql_index *x = t->indexes; x->name; x++) {
			index_name(c, t, x, name);
			r = sql_dialect(c)->has_index(c, t->name, name);
			if (r <= 0)
				return r ? r : 1;
		}
	}
	return 0;
}

/* ---- creating ---- */

static unsigned count_keys(const struct sql_table *t)
{
	unsigned n = 0;

	for (const struct sql_column *col = t->columns; col->name; col++)
		n += col->key;
	return n;
}

static void put_column(struct sql_conn *c, FILE *f, const struct sql_column *col, bool only_key)
{
	const struct sql_dialect *d = sql_dialect(c);

	fprintf(f, "`%s` ", col->name);
	d->put_type(f, col);
	if (only_key && d->only_key)
		fprintf(f, " %s", d->only_key(col));
	if (col->zero)
		fputs(" DEFAULT 0", f);
	fputs(col->null ? " NULL" : " NOT NULL", f);
	if (col->auto_id && d->auto_id)
		fprintf(f, " %s", d->auto_id);
}

static void put_table(struct sql_conn *c, FILE *f, const struct sql_table *t)
{
	const struct sql_dialect *d = sql_dialect(c);
	bool inline_key = d->only_key && count_keys(t) == 1;
	const char *comma = "";

	fprintf(f, "CREATE TABLE IF NOT EXISTS `%s%s` (", c->db->prefix, t->name);
	for (const struct sql_column *col = t->columns; col->name; col++) {
		fputs(comma, f);
		put_column(c, f, col, inline_key && col->key);
		comma = ", ";
	}
	if (!inline_key) {
		fputs(", PRIMARY KEY (", f);
		comma = "";
		for (const struct sql_column *col = t->columns; col->name; col++) {
			if (!col->key)
				continue;
			fprintf(f, "%s`%s`", comma, col->name);
			comma = ",";
		}
		fputc(')', f);
	}
	fputc(')', f);
	if (d->put_table_options)
		d->put_table_options(c, f);
}

static int run_memstream(struct sql_conn *c, FILE *f, char **text)
{
	int r = fclose(f) ? -ENOMEM : sql_dialect(c)->run(c, *text);

	free(*text);
	*text = NULL;
	return r;
}

int sql_create_table(struct sql_conn *c, const struct sql_table *t)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);

	if (!f)
		return -ENOMEM;
	put_table(c, f, t);
	return run_memstream(c, f, &text);
}

/* A column of a later version is NULL or has a default, so old rows stay valid. */
static int add_column(struct sql_conn *c, const struct sql_table *t, const struct sql_column *col)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);

	if (!f)
		return -ENOMEM;
	fprintf(f, "ALTER TABLE `%s%s` ADD COLUMN ", c->db->prefix, t->name);
	put_column(c, f, col, false);
	return run_memstream(c, f, &text);
}

static int add_index(struct sql_conn *c, const struct sql_table *t, const struct sql_index *x)
{
	char name[NAME_MAX_LEN], text[512];
	int r;

	index_name(c, t, x, name);
	r = sql_dialect(c)->has_index(c, t->name, name);
	if (r)
		return r < 0 ? r : 0;
	snprintf(text, sizeof(text), "CREATE %sINDEX `%s` ON `%s%s` (%s)",
		 x->unique ? "UNIQUE " : "", name, c->db->prefix, t->name, x->columns);
	return sql_dialect(c)->run(c, text);
}

/* Forgets the known columns: this transaction may have dropped them, or may be rolled back. */
static int end_change(struct sql_conn *c, int r)
{
	int r2 = sql_dialect(c)->end_ddl ? sql_dialect(c)->end_ddl(c) : 0;

	remember_columns(c->db, NULL);
	return r ? r : r2;
}

int sql_create_schema(struct sql_conn *c)
{
	int r = sql_dialect(c)->begin_ddl ? sql_dialect(c)->begin_ddl(c) : 0;

	for (const struct sql_table *t = sql_tables; t->name && !r; t++)
		r = sql_create_table(c, t);
	for (const struct sql_table *t = sql_tables; t->name && !r; t++) {
		for (const struct sql_column *col = t->columns; col->name && !r; col++) {
			r = sql_has_column(c, t->name, col->name);
			r = r ? CFS_MIN(r, 0) : add_column(c, t, col);
		}
		for (const struct sql_index *x = t->indexes; x->name && !r; x++)
			r = add_index(c, t, x);
	}
	return end_change(c, r);
}

int sql_drop_schema(struct sql_conn *c)
{
	size_t i, n = count_tables();
	char text[512];
	int r = 0;

	for (i = 0; i < n && !r; i++) {
		snprintf(text, sizeof(text), "DROP TABLE IF EXISTS `%s%s`", c->db->prefix,
			 table_at(i)->name);
		r = sql_dialect(c)->run(c, text);
	}
	return end_change(c, r);
}
