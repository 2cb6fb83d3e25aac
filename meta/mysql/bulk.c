/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many rows as one INSERT. Its text has all values in it: a statement that is prepared would be so
 * for one number of rows alone.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "mysql-internal.h"

/* Of the text, before the last row: far below any max_allowed_packet. */
#define TEXT_MAX   (512u << 10)
#define MAX_PARAMS 24

static int room(struct mysql_bulk *b, size_t n)
{
	size_t cap = b->cap ? b->cap : 64 << 10;
	char *text;

	while (cap - b->len < n)
		cap *= 2;
	if (cap == b->cap)
		return 0;
	text = realloc(b->text, cap);
	if (!text)
		return -ENOMEM;
	b->text = text;
	b->cap = cap;
	return 0;
}

static void put(struct mysql_bulk *b, const char *text, size_t len)
{
	memcpy(b->text + b->len, text, len);
	b->len += len;
}

/* Hexadecimal: no byte of it can be taken for anything else. */
static void put_bytes(struct mysql_bulk *b, const uint8_t *v, size_t len, bool text)
{
	static const char digits[] = "0123456789abcdef";
	size_t i;

	put(b, "_utf8mb4 x'", text ? 11 : 0);
	if (!text)
		put(b, "x'", 2);
	for (i = 0; i < len; i++) {
		b->text[b->len++] = digits[v[i] >> 4];
		b->text[b->len++] = digits[v[i] & 15];
	}
	put(b, "'", 1);
}

static int put_row(struct mysql_bulk *b, const struct mysql_stmt *s)
{
	unsigned i;
	int r;

	for (i = 0; i < s->n_params; i++) {
		const MYSQL_BIND *v = &s->bind[i];

		r = room(b, 32 + 2 * (v->length ? *v->length : 0));
		if (r)
			return r;
		put(b, i ? "," : "(", 1);
		if (v->length)
			put_bytes(b, v->buffer, *v->length, v->buffer_type == MYSQL_TYPE_STRING);
		else
			b->len += (size_t)snprintf(b->text + b->len, 24, "%" PRId64,
						   s->values[i].num);
	}
	put(b, ")", 1);
	return 0;
}

/* "INSERT ... VALUES(?,?) REST": what comes before and after the rows. */
static int begin(struct mysql_conn *m, enum sql_stmt_id id)
{
	const struct sql_dialect *d = m->sql.db->dialect;
	const char *text = d->text(id), *rows, *end;
	struct mysql_bulk *b = &m->bulk;
	int r;

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
	b->len = 0;
	rows += strlen("VALUES");
	r = room(b, (size_t)(rows - b->full) + 1);
	if (!r)
		put(b, b->full, (size_t)(rows - b->full));
	return r;
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

	if (!r && b->rows && (b->id != id || b->len > TEXT_MAX))
		r = mysql_bulk_flush(m);
	if (!r && !b->rows)
		r = begin(m, id);
	if (!r && b->rows)
		put(b, ",", 1);
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
	size_t len = strlen(b->rest ? b->rest : "");
	int r = b->rows ? room(b, len) : 0;

	if (!b->rows || r)
		return r;
	b->rows = 0;
	put(b, b->rest, len);
	m->sql.round_trips++;
	if (!mysql_real_query(m->handle, b->text, b->len))
		return 0;
	return mysql_error_of(m, mysql_errno(m->handle), mysql_error(m->handle),
			      sql_stmt_name(b->id));
}

void mysql_bulk_drop(struct mysql_conn *m)
{
	free(m->bulk.text);
	free(m->bulk.full);
	m->bulk = (struct mysql_bulk){0};
}
