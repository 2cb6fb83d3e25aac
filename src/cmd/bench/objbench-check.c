/* SPDX-License-Identifier: Apache-2.0 */
/* Tests each property that a volume needs of an object store. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "cmd/bench/objbench.h"

#define KEY_MAX	   512
#define LARGE_SIZE ((size_t)16 << 20) /* the largest block there can be */
#define MANY	   64

struct check {
	struct cfs_object_store *o;
	const char *prefix;
	struct objcheck_result *result;
};

__attribute__((format(printf, 2, 3))) static int failed(struct check *c, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(c->result->text, sizeof(c->result->text), fmt, ap);
	va_end(ap);
	return -1;
}

static cfs_deadline_t soon(void)
{
	return cfs_deadline_in(OBJBENCH_CALL_MS);
}

static const char *full(const struct check *c, const char *name, char key[KEY_MAX])
{
	snprintf(key, KEY_MAX, "%s%s", c->prefix, name);
	return key;
}

static int put(struct check *c, const char *name, const void *data, size_t len)
{
	struct iovec iov = {.iov_base = (void *)data, .iov_len = len};
	char key[KEY_MAX];

	return c->o->ops->put(c->o, full(c, name, key), &iov, 1, 0, soon());
}

static ssize_t get(struct check *c, const char *name, uint64_t off, void *buf, size_t size)
{
	struct iovec iov = {.iov_base = buf, .iov_len = size};
	char key[KEY_MAX];

	return cfs_object_get(c->o, full(c, name, key), off, &iov, 1, soon());
}

static int head(struct check *c, const char *name, struct cfs_object_info *ret)
{
	char key[KEY_MAX];

	return c->o->ops->head(c->o, full(c, name, key), ret, soon());
}

static int del(struct check *c, const char *name)
{
	char key[KEY_MAX];

	return c->o->ops->del(c->o, full(c, name, key), soon());
}

static int put_text(struct check *c, const char *name, const char *text)
{
	int r = put(c, name, text, strlen(text));

	return r < 0 ? failed(c, "put: %s", cfs_errname(r)) : 0;
}

static int expect_text(struct check *c, const char *name, uint64_t off, size_t size,
		       const char *want)
{
	char buf[256];
	ssize_t n = get(c, name, off, buf, size);

	if (n < 0)
		return failed(c, "get: %s", cfs_errname((int)n));
	if ((size_t)n != strlen(want) || memcmp(buf, want, (size_t)n) != 0)
		return failed(c, "get at %lu of %zu bytes: not what was put", (unsigned long)off,
			      size);
	return 0;
}

static int check_create(struct check *c)
{
	int r = c->o->ops->create ? c->o->ops->create(c->o, soon()) : 0;

	return r < 0 ? failed(c, "%s", cfs_errname(r)) : 0;
}

static int check_put_get(struct check *c)
{
	int r = put_text(c, "put", "something");

	return r < 0 ? r : expect_text(c, "put", 0, 100, "something");
}

static int check_overwrite(struct check *c)
{
	int r = put_text(c, "twice", "the first is longer");

	if (r == 0)
		r = put_text(c, "twice", "second");
	return r < 0 ? r : expect_text(c, "twice", 0, 100, "second");
}

static int check_ranges(struct check *c)
{
	static const struct {
		uint64_t off;
		size_t size;
		const char *want;
	} cases[] = {
		{0, 4, "0123"},	       {3, 4, "3456"},	      {9, 1, "9"}, {8, 10, "89"},
		{0, 10, "0123456789"}, {0, 11, "0123456789"}, {10, 5, ""}, {1000, 5, ""},
	};
	int r = put_text(c, "ranges", "0123456789");
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(cases) && r == 0; i++)
		r = expect_text(c, "ranges", cases[i].off, cases[i].size, cases[i].want);
	return r;
}

static int check_pieces(struct check *c)
{
	char a[3], b[1], d[200], key[KEY_MAX];
	struct iovec src[] = {{(char *)"ab", 2}, {(char *)"", 0}, {(char *)"cdefg", 5}};
	struct iovec dst[] = {{a, sizeof(a)}, {b, sizeof(b)}, {d, sizeof(d)}};
	ssize_t n;

	n = c->o->ops->put(c->o, full(c, "pieces", key), src, 3, 0, soon());
	if (n < 0)
		return failed(c, "put: %s", cfs_errname((int)n));
	n = cfs_object_get(c->o, key, 0, dst, 3, soon());
	if (n != 7 || memcmp(a, "abc", 3) != 0 || b[0] != 'd' || memcmp(d, "efg", 3) != 0)
		return failed(c, "get of 7 bytes into pieces returned %zd", n);
	return 0;
}

static int check_empty(struct check *c)
{
	struct cfs_object_info info;
	int r = put_text(c, "empty", "");

	if (r == 0)
		r = expect_text(c, "empty", 0, 10, "");
	if (r == 0 && (head(c, "empty", &info) < 0 || info.size != 0))
		r = failed(c, "head of an empty object");
	return r;
}

static int check_large(struct check *c)
{
	cfs_auto_free uint64_t *data = malloc(LARGE_SIZE), *back = malloc(LARGE_SIZE + 1);
	size_t i;
	ssize_t n;
	int r;

	if (!data || !back)
		return failed(c, "out of memory");
	for (i = 0; i < LARGE_SIZE / sizeof(*data); i++)
		data[i] = cfs_random_u64();
	r = put(c, "large", data, LARGE_SIZE);
	if (r < 0)
		return failed(c, "put: %s", cfs_errname(r));
	n = get(c, "large", 0, back, LARGE_SIZE + 1);
	if (n != (ssize_t)LARGE_SIZE || memcmp(data, back, LARGE_SIZE) != 0)
		return failed(c, "get returned %zd bytes, or others", n);
	return 0;
}

static int check_head(struct check *c)
{
	struct cfs_object_info info;
	int64_t now_s = cfs_wall_s();
	int r = put_text(c, "head", "12345");

	if (r == 0) {
		r = head(c, "head", &info);
		if (r < 0)
			return failed(c, "%s", cfs_errname(r));
	}
	if (r == 0 && info.size != 5)
		return failed(c, "size is %lu, not 5", (unsigned long)info.size);
	if (r == 0 && llabs(info.mtime_s - now_s) > 900)
		return failed(c, "its clock is %ld s off", (long)(info.mtime_s - now_s));
	return r;
}

static int check_missing(struct check *c)
{
	struct cfs_object_info info;
	char buf[8];
	ssize_t n = get(c, "missing", 0, buf, sizeof(buf));

	if (n != -ENOENT)
		return failed(c, "get: %s", n < 0 ? cfs_errname((int)n) : "something is there");
	n = head(c, "missing", &info);
	if (n != -ENOENT)
		return failed(c, "head: %s", n < 0 ? cfs_errname((int)n) : "something is there");
	n = del(c, "missing");
	return n < 0 ? failed(c, "delete: %s", cfs_errname((int)n)) : 0;
}

static int check_delete(struct check *c)
{
	char buf[8];
	int r = put_text(c, "delete", "1");

	if (r == 0 && (r = del(c, "delete")) < 0)
		return failed(c, "%s", cfs_errname(r));
	if (r == 0 && get(c, "delete", 0, buf, sizeof(buf)) != -ENOENT)
		return failed(c, "it can still be read");
	return r;
}

static int check_odd_keys(struct check *c)
{
	static const char *const names[] = {
		"odd/with space",
		"odd/plus+plus",
		"odd/per%cent%2F",
		"odd/amp&ersand",
		"odd/question?a=b",
		"odd/hash#hash",
		"odd/equals=x",
		"odd/(paren)'quote'",
		"odd/star*bang!",
		"odd/at@colon:",
		"odd/comma,semi;",
		"odd/dollar$",
		"odd/tilde~",
		"odd/\"double\"",
		"odd/<angle>",
		"odd/[bracket]{brace}",
		"odd/back\\slash",
		"odd/caret^|`",
		"odd/\xc3\xa9t\xc3\xa9",
		"odd/\xe6\xbc\xa2",
		"odd/dot..dot",
		"odd/.hidden",
	};
	struct cfs_object_info info;
	size_t i;
	int r = 0;

	for (i = 0; i < CFS_ARRAY_SIZE(names) && r == 0; i++) {
		r = put_text(c, names[i], names[i]);
		if (r == 0)
			r = expect_text(c, names[i], 0, 100, names[i]);
		if (r == 0 && head(c, names[i], &info) < 0)
			r = failed(c, "head fails");
		if (r == 0 && del(c, names[i]) < 0)
			r = failed(c, "delete fails");
		if (r < 0) {
			size_t len = strlen(c->result->text);

			snprintf(c->result->text + len, sizeof(c->result->text) - len, " (key %s)",
				 names[i]);
		}
	}
	return r;
}

struct listed {
	const char *prefix;
	char names[MANY][64];
	size_t n;
	uint64_t size;
};

static int take_listed(void *arg, const struct cfs_object_info *info)
{
	struct listed *l = arg;

	if (l->n == MANY)
		return -E2BIG;
	snprintf(l->names[l->n++], sizeof(l->names[0]), "%.63s", info->key + strlen(l->prefix));
	l->size += info->size;
	return 0;
}

static int list(struct check *c, const char *name, const char *after, struct listed *ret)
{
	char key[KEY_MAX], after_key[KEY_MAX] = "";

	*ret = (struct listed){.prefix = c->prefix};
	if (*after)
		full(c, after, after_key);
	return c->o->ops->list(c->o, full(c, name, key), after_key, take_listed, ret, soon());
}

static int check_list(struct check *c)
{
	/* Listings sort whole keys, not directories: '-' and '.' sort before '/'. */
	static const char *const names[] = {"list/a",	  "list/a-b", "list/a.b",     "list/a/b",
					    "list/b+c d", "list/b0",  "list/\xc3\xa9"};
	size_t i, n = CFS_ARRAY_SIZE(names);
	struct listed *l = malloc(sizeof(*l));
	int r = l ? 0 : failed(c, "out of memory");

	/* Where keys are paths, one name cannot be both a directory and an object. */
	for (i = 1; i < n && r == 0; i++)
		r = put_text(c, names[i], "1");
	if (r == 0) {
		r = list(c, "list/", "", l);
		if (r < 0)
			r = failed(c, "%s", cfs_errname(r));
		else if (l->n != n - 1 || l->size != n - 1)
			r = failed(c, "%zu objects of %zu bytes where there are %zu", l->n,
				   (size_t)l->size, n - 1);
	}
	for (i = 1; i < n && r == 0; i++) {
		if (strcmp(l->names[i - 1], names[i]) != 0)
			r = failed(c, "%s comes where %s should", l->names[i - 1], names[i]);
	}
	if (r == 0 && (list(c, "list/a", "list/a-b", l) < 0 || l->n != 2))
		r = failed(c, "%zu objects with a prefix behind a key, not 2", l->n);
	if (r == 0 && (list(c, "list/none", "", l) != 0 || l->n != 0))
		r = failed(c, "a prefix that nothing has");
	free(l);
	return r;
}

static int check_delete_many(struct check *c)
{
	char keys[MANY][KEY_MAX], name[32];
	const char *v[MANY];
	struct listed *l = malloc(sizeof(*l));
	int i, r = l ? 0 : failed(c, "out of memory");

	for (i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "many/%d & <%d>", i, i);
		v[i] = full(c, name, keys[i]);
		/* Every eighth is missing. */
		if (r == 0 && i % 8)
			r = put_text(c, name, "1");
	}
	if (r == 0) {
		r = cfs_object_del_many(c->o, v, MANY, soon());
		if (r < 0)
			r = failed(c, "%s", cfs_errname(r));
	}
	if (r == 0 && (list(c, "many/", "", l) != 0 || l->n != 0))
		r = failed(c, "%zu objects are left", l->n);
	free(l);
	return r;
}

static const struct {
	const char *name;
	int (*run)(struct check *c);
} checks[] = {
	{"create the bucket", check_create}, {"put and get", check_put_get},
	{"put again", check_overwrite},	     {"get ranges", check_ranges},
	{"memory in pieces", check_pieces},  {"empty object", check_empty},
	{"object of 16 MiB", check_large},   {"head", check_head},
	{"missing objects", check_missing},  {"delete", check_delete},
	{"odd keys", check_odd_keys},	     {"list", check_list},
	{"delete many", check_delete_many},
};

unsigned objcheck_run(struct cfs_object_store *o, const char *prefix,
		      void (*fn)(void *arg, const struct objcheck_result *result), void *arg)
{
	unsigned n_failed = 0;
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(checks); i++) {
		struct objcheck_result result = {.name = checks[i].name};
		struct check c = {.o = o, .prefix = prefix, .result = &result};

		result.passed = checks[i].run(&c) == 0;
		n_failed += !result.passed;
		fn(arg, &result);
	}
	return n_failed;
}
