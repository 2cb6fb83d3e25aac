/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prepared statements. Results are stored at once, because a connection may have several queries.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "mysql-internal.h"

static struct mysql_stmt *stmt_of(struct sql_conn *c, enum sql_stmt_id id)
{
	return &mysql_conn(c)->stmt[id];
}

static int failure(struct mysql_conn *m, MYSQL_STMT *handle, const char *name)
{
	return mysql_error_of(m, mysql_stmt_errno(handle), mysql_stmt_error(handle), name);
}

static int failed(struct sql_conn *c, enum sql_stmt_id id)
{
	return failure(mysql_conn(c), stmt_of(c, id)->handle, sql_stmt_name(id));
}

static void close_stmt(struct mysql_stmt *s)
{
	unsigned i;

	if (s->handle)
		mysql_stmt_close(s->handle);
	for (i = 0; i < s->n_columns; i++)
		free(s->values[s->n_params + i].buf);
	free(s->bind);
	free(s->values);
	free(s->place);
	*s = (struct mysql_stmt){0};
}

void mysql_close_stmts(struct mysql_conn *m)
{
	unsigned i;

	for (i = 0; i < SQL_STMT_COUNT; i++)
		close_stmt(&m->stmt[i]);
	for (i = 0; i < MYSQL_BATCH_COUNT; i++) {
		close_stmt(&m->batch[i]);
		free(m->multi[i]);
		m->multi[i] = NULL;
	}
}

/* ---- preparing ---- */

static bool is_number(enum enum_field_types type)
{
	switch (type) {
	case MYSQL_TYPE_TINY:
	case MYSQL_TYPE_SHORT:
	case MYSQL_TYPE_INT24:
	case MYSQL_TYPE_LONG:
	case MYSQL_TYPE_LONGLONG:
	case MYSQL_TYPE_DECIMAL:
	case MYSQL_TYPE_NEWDECIMAL:
	case MYSQL_TYPE_FLOAT:
	case MYSQL_TYPE_DOUBLE:
	case MYSQL_TYPE_NULL:
		return true;
	default:
		return false;
	}
}

/* Binds no buffer for bytes: their length is only known with the row. */
static void bind_column(struct mysql_stmt *s, unsigned col, bool number)
{
	struct mysql_value *v = &s->values[s->n_params + col];
	MYSQL_BIND *b = &s->bind[s->n_params + col];

	b->is_null = &v->null;
	b->error = &v->truncated;
	b->length = &v->len;
	if (number) {
		b->buffer_type = MYSQL_TYPE_LONGLONG;
		b->buffer = &v->num;
		b->buffer_length = sizeof(v->num);
	} else {
		b->buffer_type = MYSQL_TYPE_BLOB;
	}
}

static int make_bindings(struct mysql_stmt *s)
{
	MYSQL_RES *meta;
	MYSQL_FIELD *fields;
	unsigned i;

	s->n_params = (unsigned)mysql_stmt_param_count(s->handle);
	s->n_columns = mysql_stmt_field_count(s->handle);
	s->bind = calloc(s->n_params + s->n_columns + 1, sizeof(*s->bind));
	s->values = calloc(s->n_params + s->n_columns + 1, sizeof(*s->values));
	if (!s->bind || !s->values) {
		s->n_columns = 0;
		return -ENOMEM;
	}
	if (!s->n_columns)
		return 0;
	meta = mysql_stmt_result_metadata(s->handle);
	if (!meta)
		return -ENOMEM;
	fields = mysql_fetch_fields(meta);
	for (i = 0; i < s->n_columns; i++)
		bind_column(s, i, is_number(fields[i].type));
	mysql_free_result(meta);
	return 0;
}

int mysql_open_stmt(struct mysql_conn *m, struct mysql_stmt *s, const char *text, const char *name)
{
	int r = 0;

	s->handle = mysql_stmt_init(m->handle);
	if (!s->handle)
		return -ENOMEM;
	m->sql.round_trips++;
	if (mysql_stmt_prepare(s->handle, text, (unsigned long)strlen(text)))
		r = failure(m, s->handle, name);
	if (!r)
		r = make_bindings(s);
	if (r)
		close_stmt(s);
	return r;
}

int mysql_prepare_stmt(struct sql_conn *c, enum sql_stmt_id id, const char *text)
{
	return mysql_open_stmt(mysql_conn(c), stmt_of(c, id), text, sql_stmt_name(id));
}

/* ---- parameters ---- */

int mysql_set_param(struct mysql_stmt *s, int n, const struct sql_param *p)
{
	MYSQL_BIND *b = &s->bind[n - 1];
	struct mysql_value *v = &s->values[n - 1];

	if (n < 1 || (unsigned)n > s->n_params)
		return -EINVAL;
	if (!p->is_bytes) {
		v->num = p->num;
		b->buffer_type = MYSQL_TYPE_LONGLONG;
		b->buffer = &v->num;
		b->buffer_length = sizeof(v->num);
		b->length = NULL;
		return 0;
	}
	v->len = (unsigned long)p->len;
	b->buffer_type = p->is_text ? MYSQL_TYPE_STRING : MYSQL_TYPE_BLOB;
	b->buffer = (void *)(p->len ? p->bytes : "");
	b->buffer_length = v->len;
	b->length = &v->len;
	return 0;
}

int mysql_bind(struct sql_conn *c, enum sql_stmt_id id, int n, const struct sql_param *p)
{
	return mysql_set_param(stmt_of(c, id), n, p);
}

/* ---- running ---- */

static int execute(struct sql_conn *c, enum sql_stmt_id id)
{
	struct mysql_stmt *s = stmt_of(c, id);
	int r = mysql_bulk_flush(mysql_conn(c));

	if (r)
		return r;
	if (s->n_params && mysql_stmt_bind_param(s->handle, s->bind))
		return failed(c, id);
	if (mysql_stmt_execute(s->handle))
		return failed(c, id);
	s->executed = true;
	if (!s->n_columns)
		return mysql_check_txn(mysql_conn(c));
	if (!mysql_stmt_bind_result(s->handle, s->bind + s->n_params) &&
	    !mysql_stmt_store_result(s->handle))
		return mysql_check_txn(mysql_conn(c));
	/*
	 * The server has sent an error instead of a row, such as a lock timeout. The library
	 * considers the result unfinished, and would wait for its end: the connection is closed.
	 */
	s->executed = false;
	c->broken = true;
	return failed(c, id);
}

/*
 * Fetches the byte columns of a row. Without memory the row fails: an empty chunk list would read
 * as a hole.
 */
static int fetch_bytes(struct sql_conn *c, enum sql_stmt_id id)
{
	struct mysql_stmt *s = stmt_of(c, id);
	struct mysql_value *v = s->values + s->n_params;
	my_bool null = 0, truncated = 0;
	unsigned i;
	void *buf;

	for (i = 0; i < s->n_columns; i++) {
		unsigned long len = v[i].len;
		MYSQL_BIND b = {.buffer_type = MYSQL_TYPE_BLOB};

		if (s->bind[s->n_params + i].buffer_type != MYSQL_TYPE_BLOB || v[i].null || !len)
			continue;
		if (len > v[i].cap) {
			buf = realloc(v[i].buf, len);
			if (!buf)
				return -ENOMEM;
			v[i].buf = buf;
			v[i].cap = len;
		}
		b.buffer = v[i].buf;
		b.buffer_length = len;
		b.length = &len;
		b.is_null = &null;
		b.error = &truncated;
		if (mysql_stmt_fetch_column(s->handle, &b, i, 0))
			return failed(c, id);
	}
	return 1;
}

int mysql_step(struct sql_conn *c, enum sql_stmt_id id)
{
	struct mysql_stmt *s = stmt_of(c, id);
	int r = s->executed ? 0 : execute(c, id);

	if (r || !s->n_columns)
		return r;
	switch (mysql_stmt_fetch(s->handle)) {
	case 0:
	case MYSQL_DATA_TRUNCATED:
		return fetch_bytes(c, id);
	case MYSQL_NO_DATA:
		return 0;
	default:
		return failed(c, id);
	}
}

void mysql_reset_stmt(struct sql_conn *c, enum sql_stmt_id id)
{
	struct mysql_stmt *s = stmt_of(c, id);

	if (s->executed && s->n_columns)
		mysql_stmt_free_result(s->handle);
	s->executed = false;
}

int mysql_changes(struct sql_conn *c, enum sql_stmt_id id)
{
	return (int)mysql_stmt_affected_rows(stmt_of(c, id)->handle);
}

int64_t mysql_insert_id_of(struct sql_conn *c, enum sql_stmt_id id)
{
	return (int64_t)mysql_stmt_insert_id(stmt_of(c, id)->handle);
}

/* ---- columns ---- */

int64_t mysql_col_int(struct sql_conn *c, enum sql_stmt_id id, int col)
{
	const struct mysql_stmt *s = stmt_of(c, id);
	const struct mysql_value *v = &s->values[s->n_params + (unsigned)col];

	return v->null ? 0 : v->num;
}

const void *mysql_col_bytes(struct sql_conn *c, enum sql_stmt_id id, int col, size_t *ret_len)
{
	const struct mysql_stmt *s = stmt_of(c, id);
	const struct mysql_value *v = &s->values[s->n_params + (unsigned)col];

	*ret_len = v->null ? 0 : v->len;
	return *ret_len ? v->buf : "";
}
