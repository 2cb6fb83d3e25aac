/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inserts many rows with one INSERT. Its text contains all values, because a prepared statement has
 * a fixed number of rows.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "mysql-internal.h"

/* A longer text is sent before the next row; far below any max_allowed_packet. */
#define TEXT_MAX (512u << 10)

static int put_row(struct mysql_bulk *b, const struct sql_param *v, size_t n)
{
	size_t i;
	int r = 0;

	for (i = 0; i < n && !r; i++) {
		r = mysql_text_put(&b->text, i ? "," : "(", 1);
		if (!r)
			r = mysql_text_put_param(&b->text, &v[i]);
	}
	return r ? r : mysql_text_put(&b->text, ")", 1);
}

/* Splits "INSERT ... VALUES(?,?) REST" into the parts before and after the rows. */
static int begin(struct mysql_conn *m, enum sql_stmt_id id)
{
	const struct sql_dialect *d = m->sql.db->dialect;
	const char *text = d->text(id), *rows, *end;
	struct mysql_bulk *b = &m->bulk;

	free(b->full);
	b->full = sql_expand(&m->sql, text ? text : sql_stmt_text(id));
	if (!b->full)
		return -ENOMEM;
	rows = strstr(b->full, "VALUES(?");
	end = rows ? strchr(rows, ')') : NULL;
	if (!end)
		return -EINVAL;
	b->rest = end + 1;
	b->id = id;
	b->text.len = 0;
	rows += strlen("VALUES");
	return mysql_text_put(&b->text, b->full, (size_t)(rows - b->full));
}

int mysql_bulk_add(struct sql_conn *c, enum sql_stmt_id id, const struct sql_param *v, size_t n)
{
	struct mysql_conn *m = mysql_conn(c);
	struct mysql_bulk *b = &m->bulk;
	int r = 0;

	if (b->rows && (b->id != id || b->text.len > TEXT_MAX))
		r = mysql_bulk_flush(m);
	if (!r && !b->rows)
		r = begin(m, id);
	if (!r && b->rows)
		r = mysql_text_put(&b->text, ",", 1);
	if (!r)
		r = put_row(b, v, n);
	if (r)
		return r;
	b->rows++;
	return 0;
}

int mysql_bulk_flush(struct mysql_conn *m)
{
	struct mysql_bulk *b = &m->bulk;
	int r = b->rows ? mysql_text_put(&b->text, b->rest, strlen(b->rest)) : 0;

	if (!b->rows || r)
		return r;
	b->rows = 0;
	m->sql.round_trips++;
	if (!mysql_real_query(m->handle, b->text.v, b->text.len))
		return 0;
	return mysql_error_of(m, mysql_errno(m->handle), mysql_error(m->handle),
			      sql_stmt_name(b->id));
}

void mysql_bulk_drop(struct mysql_conn *m)
{
	mysql_text_free(&m->bulk.text);
	free(m->bulk.full);
	m->bulk = (struct mysql_bulk){0};
}
