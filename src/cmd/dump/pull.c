/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/dump/pull.h"
#include "base/array.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_MAX = 8 << 20, DEPTH_MAX = 1000 };

struct pull {
	struct stream_in *in;
	uint64_t line;
	char error[200];
	size_t at, len;
	uint8_t room[64 << 10];
	char *text;
	size_t n, cap;
	bool keep; /* consumed bytes are copied to text too */
};

int pull_create(struct stream_in *in, struct pull **ret)
{
	struct pull *p = calloc(1, sizeof(*p));

	if (!p)
		return -ENOMEM;
	p->in = in;
	p->line = 1;
	*ret = p;
	return 0;
}

void pull_destroy(struct pull *p)
{
	if (!p)
		return;
	free(p->text);
	free(p);
}

const char *pull_error(const struct pull *p)
{
	return p->error;
}

int pull_fail(struct pull *p, const char *fmt, ...)
{
	char why[128];
	va_list ap;

	if (p->error[0])
		return -EBADMSG;
	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	snprintf(p->error, sizeof(p->error), "line %llu: %s", (unsigned long long)p->line, why);
	return -EBADMSG;
}

/* -1 at the end and after an error. */
static int look(struct pull *p)
{
	ssize_t n;

	if (p->error[0])
		return -1;
	if (p->at == p->len) {
		n = stream_read(p->in, p->room, sizeof(p->room));
		if (n < 0)
			pull_fail(p, "the file cannot be read: %s", strerror((int)-n));
		p->at = 0;
		p->len = n > 0 ? (size_t)n : 0;
	}
	return p->at < p->len ? p->room[p->at] : -1;
}

static int add(struct pull *p, int c)
{
	if (p->n == TEXT_MAX || CFS_ARRAY_ADD(p->text, p->n, p->cap, (char)c) < 0)
		return pull_fail(p, "a text is too long");
	return 0;
}

static int take(struct pull *p)
{
	int c = look(p);

	if (c < 0)
		return c;
	p->at++;
	p->line += c == '\n';
	if (p->keep)
		add(p, c);
	return c;
}

static int next(struct pull *p)
{
	int c;

	while ((c = look(p)) == ' ' || c == '\n' || c == '\t' || c == '\r')
		take(p);
	return c;
}

static int expect(struct pull *p, int want)
{
	if (next(p) != want)
		return pull_fail(p, "'%c' is missing", want);
	take(p);
	return 0;
}

static int word(struct pull *p, const char *w)
{
	for (; *w; w++)
		if (take(p) != *w)
			return pull_fail(p, "neither a value nor null");
	return 0;
}

/* ---- text ---- */

static int hex(int c)
{
	return c < 0 || !isxdigit(c) ? -1 : c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
}

static int unit(struct pull *p, uint32_t *ret)
{
	uint32_t v = 0;
	int i;

	for (i = 0; i < 4; i++) {
		int d = hex(take(p));

		if (d < 0)
			return pull_fail(p, "\\u without four digits");
		v = v << 4 | (uint32_t)d;
	}
	*ret = v;
	return 0;
}

static int add_utf8(struct pull *p, uint32_t c)
{
	int r = 0;

	if (c < 0x80)
		return add(p, (int)c);
	if (c < 0x800) {
		r = add(p, (int)(0xc0 | c >> 6));
	} else if (c < 0x10000) {
		r = add(p, (int)(0xe0 | c >> 12));
		r = r ? r : add(p, (int)(0x80 | (c >> 6 & 0x3f)));
	} else {
		r = add(p, (int)(0xf0 | c >> 18));
		r = r ? r : add(p, (int)(0x80 | (c >> 12 & 0x3f)));
		r = r ? r : add(p, (int)(0x80 | (c >> 6 & 0x3f)));
	}
	return r ? r : add(p, (int)(0x80 | (c & 0x3f)));
}

static int escape(struct pull *p)
{
	static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
	uint32_t high = 0, low = 0;
	const char *at;
	int c = take(p), r;

	if (c == 'u') {
		r = unit(p, &high);
		if (r || high < 0xd800 || high >= 0xdc00)
			return r ? r : add_utf8(p, high);
		if (take(p) != '\\' || take(p) != 'u')
			return pull_fail(p, "half a surrogate pair");
		r = unit(p, &low);
		return r ? r : add_utf8(p, 0x10000 + ((high & 0x3ff) << 10) + (low & 0x3ff));
	}
	at = c > 0 ? strchr(from, c) : NULL;
	return at ? add(p, to[at - from]) : pull_fail(p, "an unknown escape");
}

static size_t undo_percent(char *v, size_t n)
{
	size_t i, out = 0;

	for (i = 0; i < n; i++) {
		if (v[i] == '%' && i + 2 < n && hex((uint8_t)v[i + 1]) >= 0 &&
		    hex((uint8_t)v[i + 2]) >= 0) {
			v[out++] = (char)(hex((uint8_t)v[i + 1]) << 4 | hex((uint8_t)v[i + 2]));
			i += 2;
		} else {
			v[out++] = v[i];
		}
	}
	return out;
}

size_t pull_unescape(const char *text, char *out, size_t size)
{
	size_t len = strlen(text);

	if (len >= size)
		return 0;
	memcpy(out, text, len);
	len = undo_percent(out, len);
	out[len] = '\0';
	return len;
}

int pull_text(struct pull *p, bool percent, const char **ret, size_t *ret_len)
{
	int c, r = expect(p, '"');

	p->n = 0;
	while (!r) {
		c = take(p);
		if (c < 0)
			return pull_fail(p, "a text does not end");
		if (c == '"')
			break;
		r = c == '\\' ? escape(p) : add(p, c);
	}
	if (r)
		return r;
	if (percent)
		p->n = undo_percent(p->text, p->n);
	*ret_len = p->n;
	r = add(p, '\0');
	*ret = p->text;
	return r;
}

/* ---- values ---- */

int pull_key(struct pull *p, bool *first, const char **ret_key)
{
	size_t len;
	int r, c = next(p);

	if (*first && c == 'n')
		return word(p, "null");
	r = *first ? expect(p, '{') : 0;
	if (r)
		return r;
	c = next(p);
	if (c == '}') {
		take(p);
		return 0;
	}
	if (!*first)
		r = expect(p, ',');
	*first = false;
	if (!r) {
		next(p);
		r = pull_text(p, false, ret_key, &len);
		if (!r && strlen(*ret_key) != len)
			r = pull_fail(p, "a name with a zero in it");
	}
	if (!r)
		r = expect(p, ':');
	return r ? r : 1;
}

int pull_item(struct pull *p, bool *first)
{
	int r, c = next(p);

	if (*first && c == 'n')
		return word(p, "null");
	r = *first ? expect(p, '[') : 0;
	if (r)
		return r;
	c = next(p);
	if (c == ']') {
		take(p);
		return 0;
	}
	if (!*first)
		r = expect(p, ',');
	*first = false;
	return r ? r : 1;
}

int pull_int(struct pull *p, int64_t *ret)
{
	char buf[32], *end;
	size_t n = 0;
	int c = next(p);

	while (n < sizeof(buf) - 1 && (c == '-' || c == '+' || isalnum(c) || c == '.')) {
		buf[n++] = (char)take(p);
		c = look(p);
	}
	buf[n] = '\0';
	errno = 0;
	/* Inode numbers and lengths are unsigned. */
	*ret = buf[0] == '-' ? strtoll(buf, &end, 10) : (int64_t)strtoull(buf, &end, 10);
	if (errno || end == buf || *end || buf[0] == '+')
		return pull_fail(p, "a whole number is missing");
	return 0;
}

static int skip_text(struct pull *p)
{
	int c;

	take(p);
	while ((c = take(p)) != '"') {
		if (c == '\\')
			c = take(p);
		if (c < 0)
			return pull_fail(p, "a text does not end");
	}
	return 0;
}

static int skip(struct pull *p)
{
	unsigned depth = 0;
	int c;

	do {
		c = next(p);
		if (c < 0)
			return pull_fail(p, "the file ends too early");
		if (c == '"') {
			if (skip_text(p))
				return -EBADMSG;
			continue;
		}
		take(p);
		depth += c == '{' || c == '[';
		if ((c == '}' || c == ']') && !depth--)
			return pull_fail(p, "a value is missing");
		if (depth > DEPTH_MAX)
			return pull_fail(p, "nested too deep");
		if (isalnum(c) || c == '-')
			while ((c = look(p)) > 0 && (isalnum(c) || strchr("+-.", c)))
				take(p);
	} while (depth);
	return 0;
}

int pull_value(struct pull *p, char **ret)
{
	int r;

	next(p);
	p->n = 0;
	p->keep = ret;
	r = skip(p);
	p->keep = false;
	if (r || !ret)
		return r;
	*ret = strndup(p->text ? p->text : "", p->n);
	return *ret ? 0 : -ENOMEM;
}

int pull_end(struct pull *p)
{
	return next(p) < 0 ? (p->error[0] ? -EBADMSG : 0)
			   : pull_fail(p, "something follows the end");
}

int pull_number(struct pull *p, const char *key, const char *const names[], size_t n, int64_t *ret)
{
	size_t i;

	for (i = 0; i < n && strcmp(key, names[i]) != 0; i++)
		;
	return i < n ? pull_int(p, &ret[i]) : pull_value(p, NULL);
}

int pull_numbers(struct pull *p, const char *const names[], size_t n, int64_t *ret)
{
	bool first = true;
	const char *key;
	int r;

	memset(ret, 0, n * sizeof(*ret));
	while ((r = pull_key(p, &first, &key)) > 0) {
		r = pull_number(p, key, names, n, ret);
		if (r)
			return r;
	}
	return r;
}
