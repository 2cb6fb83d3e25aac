/* SPDX-License-Identifier: Apache-2.0 */
#include "json.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of a string that stands for a number. No text begins so: the byte is a control character. */
#define MARK	     "\x01"
#define MARK_ESCAPED "\"\\u0001"

static size_t digits(const char *p, const char *end)
{
	size_t n = 0;

	while (p + n < end && isdigit((unsigned char)p[n]))
		n++;
	return n;
}

/* Length of the number at p as JSON has it; 0: this is none. */
static size_t number_len(const char *p, const char *end)
{
	const char *begin = p;
	size_t n;

	if (p < end && *p == '-')
		p++;
	n = digits(p, end);
	if (!n || (n > 1 && *p == '0'))
		return 0;
	p += n;
	if (p < end && *p == '.') {
		n = digits(++p, end);
		if (!n)
			return 0;
		p += n;
	}
	if (p < end && (*p == 'e' || *p == 'E')) {
		p++;
		if (p < end && (*p == '+' || *p == '-'))
			p++;
		n = digits(p, end);
		if (!n)
			return 0;
		p += n;
	}
	return (size_t)(p - begin);
}

/* The library gives the same text back. */
static bool is_held(const char *p, size_t len)
{
	char text[24], again[24];

	if (len >= sizeof(text))
		return false;
	memcpy(text, p, len);
	text[len] = '\0';
	snprintf(again, sizeof(again), "%lld", strtoll(text, NULL, 10));
	return strcmp(text, again) == 0;
}

/* Behind the string that begins at p. */
static const char *string_end(const char *p, const char *end)
{
	for (p++; p < end && *p != '"'; p++)
		if (*p == '\\' && p + 1 < end)
			p++;
	return p < end ? p + 1 : end;
}

json_t *cfs_json_load(const char *text, size_t len, json_error_t *err)
{
	const size_t more = strlen(MARK_ESCAPED "\"");
	const char *p = text, *end = text + len;
	/* A number that is marked has two bytes at the least: "-0". */
	char *marked = malloc(len + len / 2 * more + 1), *out = marked;
	json_t *j;

	if (!marked) {
		if (err)
			memset(err, 0, sizeof(*err));
		return NULL;
	}
	while (p < end) {
		size_t n = *p == '"' ? (size_t)(string_end(p, end) - p) : number_len(p, end);
		bool mark = n && *p != '"' && !is_held(p, n);

		if (mark)
			out = stpcpy(out, MARK_ESCAPED);
		n = n ? n : 1;
		memcpy(out, p, n);
		out += n;
		p += n;
		if (mark)
			*out++ = '"';
	}
	j = json_loadb(marked, (size_t)(out - marked), 0, err);
	explicit_bzero(marked, (size_t)(out - marked));
	free(marked);
	return j;
}

char *cfs_json_dump(const json_t *j, size_t flags)
{
	const size_t head = strlen(MARK_ESCAPED);
	char *text = json_dumps(j, flags), *out = text;
	const char *p = text, *end = text ? text + strlen(text) : NULL;

	while (p < end) {
		size_t n = *p == '"' ? (size_t)(string_end(p, end) - p) : 1;

		if (n > head + 1 && !strncmp(p, MARK_ESCAPED, head) &&
		    number_len(p + head, end) == n - head - 1) {
			memmove(out, p + head, n - head - 1);
			out += n - head - 1;
		} else {
			memmove(out, p, n);
			out += n;
		}
		p += n;
	}
	if (text)
		*out = '\0';
	return text;
}

json_t *cfs_json_u64(uint64_t v)
{
	char text[32];

	if (v <= INT64_MAX)
		return json_integer((json_int_t)v);
	snprintf(text, sizeof(text), MARK "%llu", (unsigned long long)v);
	return json_string(text);
}

bool cfs_json_get_u64(const json_t *j, uint64_t *ret)
{
	const char *text = json_string_value(j);
	unsigned long long v;
	char *end;

	if (json_is_integer(j)) {
		if (json_integer_value(j) < 0)
			return false;
		*ret = (uint64_t)json_integer_value(j);
		return true;
	}
	if (!text || *text != *MARK || !isdigit((unsigned char)text[1]))
		return false;
	errno = 0;
	v = strtoull(text + 1, &end, 10);
	if (errno || *end)
		return false;
	*ret = v;
	return true;
}
