/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inserts many rows with one INSERT. Its text contains all values, because a prepared statement has
 * a fixed number of rows.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "mysql-internal.h"

/* A longer text is sent before the next row; far below any max_allowed_packet. */
#define TEXT_MAX   (512u << 10)
#define MAX_PARAMS 24

static int put_row(struct mysql_bulk *b, const struct mysql_stmt *s)
{
	unsigned i;
	int r;

	for (i = 0; i < s->n_params; i++) {
		const MYSQL_BIND *v = &s->bind[i];

		r = mysql_text_put(&b->text, i ? "," : "(", 1);
		if (!r && v->length)
			r = mysql_text_put_bytes(&b->text, v->buffer, *v->length,
						 v->buffer_type == MYSQL_TYPE_STRING);
		else if (!r)
			r = mysql_text_put_int(&b->text, s->values[i].num);
		if (r)
			return r;
	}
	return mysql_text_put(&b->text, ")", 1);
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

static int set_params(struct mysql_stmt *s, const char *fmt, va_list ap)
{
	int n, r = 0;

	for (n = 1; *fmt && !r; fmt++, n++) {
		if (*fmt == 'i') {
			r = mysql_set_int(s, n, va_arg(ap, int64_t));
		} else {
			const void *v = va_arg(ap, const void *);
			size_t len = va_arg(ap, size_t);

			r = mysql_set_bytes(s, n, v, len, *fmt == 't');
		}
	}
	return r;
}

int mysql_bulk_add(struct sql_conn *c, enum sql_stmt_id id, const char *fmt, va_list ap)
{
	struct mysql_conn *m = mysql_conn(c);
	struct mysql_bulk *b = &m->bulk;
	MYSQL_BIND bind[MAX_PARAMS] = {0};
	struct mysql_value values[MAX_PARAMS] = {0};
	struct mysql_stmt row = {.bind = bind, .values = values, .n_params = (unsigned)strlen(fmt)};
	int r = row.n_params > MAX_PARAMS ? -EINVAL : set_params(&row, fmt, ap);

	if (!r && b->rows && (b->id != id || b->text.len > TEXT_MAX))
		r = mysql_bulk_flush(m);
	if (!r && !b->rows)
		r = begin(m, id);
	if (!r && b->rows)
		r = mysql_text_put(&b->text, ",", 1);
	if (!r)
		r = put_row(b, &row);
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
