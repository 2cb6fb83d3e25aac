/* SPDX-License-Identifier: Apache-2.0 */
/* Texts of statements that contain their values. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "mysql-internal.h"

#define FIRST_CAP  (4u << 10)
#define INT_DIGITS 24

static int make_room(struct mysql_text *t, size_t n)
{
	size_t cap = t->cap ? t->cap : FIRST_CAP;
	char *v;

	while (cap - t->len < n)
		cap *= 2;
	if (cap == t->cap)
		return 0;
	v = realloc(t->v, cap);
	if (!v)
		return -ENOMEM;
	t->v = v;
	t->cap = cap;
	return 0;
}

int mysql_text_put(struct mysql_text *t, const char *v, size_t len)
{
	int r = make_room(t, len);

	if (r)
		return r;
	memcpy(t->v + t->len, v, len);
	t->len += len;
	return 0;
}

static int put_int(struct mysql_text *t, int64_t v)
{
	int r = make_room(t, INT_DIGITS);

	if (!r)
		t->len += (size_t)snprintf(t->v + t->len, INT_DIGITS, "%" PRId64, v);
	return r;
}

static int put_bytes(struct mysql_text *t, const uint8_t *v, size_t len, bool text)
{
	static const char digits[] = "0123456789abcdef";
	const char *begin = text ? "_utf8mb4 x'" : "x'";
	int r = make_room(t, strlen(begin) + 2 * len + 1);
	size_t i;

	if (r)
		return r;
	mysql_text_put(t, begin, strlen(begin));
	for (i = 0; i < len; i++) {
		t->v[t->len++] = digits[v[i] >> 4];
		t->v[t->len++] = digits[v[i] & 15];
	}
	return mysql_text_put(t, "'", 1);
}

int mysql_text_put_param(struct mysql_text *t, const struct sql_param *p)
{
	return p->is_bytes ? put_bytes(t, p->bytes, p->len, p->is_text) : put_int(t, p->num);
}

size_t mysql_text_word(const char *p)
{
	size_t n = 0;

	if (*p == '`')
		return strcspn(p + 1, "`") + 2;
	while (isalnum((unsigned char)p[n]) || p[n] == '_')
		n++;
	return n ? n : 1;
}

void mysql_text_free(struct mysql_text *t)
{
	free(t->v);
	*t = (struct mysql_text){0};
}
