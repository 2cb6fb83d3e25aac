/* SPDX-License-Identifier: Apache-2.0 */
/* Listings. A failure means that rm -r, find or a backup misses files or sees them twice. */
#include <stdio.h>

#include "conformance.h"

enum { MANY = 500 };

struct listing {
	unsigned char seen[MANY * 4];
	size_t n, stop_after;
	bool attrs;
};

static int note(void *arg, const struct cfs_dirent *e)
{
	struct listing *l = arg;
	unsigned long i;
	char name[32];

	if (l->stop_after && l->n >= l->stop_after)
		return 1;
	assert_in_range(e->name_len, 1, sizeof(name) - 1);
	memcpy(name, e->name, e->name_len);
	name[e->name_len] = '\0';
	i = strtoul(name + 1, NULL, 10);
	assert_true(i < sizeof(l->seen));
	l->seen[i]++;
	l->n++;
	if (l->attrs)
		assert_int_equal(e->entry.attr.type, e->type);
	assert_true(e->after->len > 0);
	return 0;
}

static int page(cfs_ino_t dir, size_t limit, struct cfs_cursor *cursor, struct listing *l)
{
	struct cfs_ctx c = as_root();

	return cfs_meta_readdir(vol.m, &c, dir, l->attrs, limit, cursor, note, l);
}

static void fill(cfs_ino_t dir, unsigned from, unsigned to)
{
	char name[32];
	unsigned i;

	for (i = from; i < to; i++) {
		snprintf(name, sizeof(name), "f%u", i);
		make_file(dir, name);
	}
}

static void test_pages(void **state)
{
	cfs_ino_t d = test_dir("pages");
	struct cfs_cursor cursor = {0};
	struct listing l = {.attrs = true};
	size_t i, pages = 0;
	int rc;

	assert_int_equal(page(d, 10, &cursor, &l), 1);
	assert_int_equal(l.n, 0);
	fill(d, 0, MANY);
	cursor.len = 0;
	do {
		rc = page(d, 7, &cursor, &l);
		assert_true(rc >= 0);
		pages++;
	} while (!rc);
	assert_int_equal(l.n, MANY);
	assert_in_range(pages, MANY / 7, MANY / 7 + 2);
	for (i = 0; i < MANY; i++)
		assert_int_equal(l.seen[i], 1);
}

static void test_stop_and_go_on(void **state)
{
	cfs_ino_t d = test_dir("stop");
	struct cfs_cursor cursor = {0};
	struct listing l = {.stop_after = 3};
	size_t i;

	fill(d, 0, 10);
	assert_int_equal(page(d, 100, &cursor, &l), 0);
	assert_int_equal(l.n, 3);
	l.stop_after = 0;
	assert_int_equal(page(d, 100, &cursor, &l), 1);
	for (i = 0; i < 10; i++)
		assert_int_equal(l.seen[i], 1);
}

/* rm -r removes what it has been shown and goes on listing; others create meanwhile. */
static void test_changes_meanwhile(void **state)
{
	cfs_ino_t d = test_dir("changes");
	struct cfs_cursor cursor = {0};
	struct listing l = {0}, before;
	unsigned round = 0;
	size_t i;
	char name[32];
	int rc;

	fill(d, 0, MANY);
	do {
		before = l;
		rc = page(d, 50, &cursor, &l);
		assert_true(rc >= 0);
		for (i = 0; i < MANY; i++) {
			if (l.seen[i] == before.seen[i])
				continue;
			snprintf(name, sizeof(name), "f%zu", i);
			unlink_name(d, name);
		}
		fill(d, MANY + 20 * round, MANY + 20 * round + 20);
	} while (!rc && ++round < 50);
	for (i = 0; i < MANY; i++)
		assert_int_equal(l.seen[i], 1);
	for (i = MANY; i < sizeof(l.seen); i++)
		assert_in_range(l.seen[i], 0, 1);
}

struct replaced {
	cfs_ino_t ino[30]; /* 0: removed */
	bool is_dir[30];
	size_t n;
};

static int check_replaced(void *arg, const struct cfs_dirent *e)
{
	struct replaced *l = arg;
	unsigned long i;
	char name[32];

	assert_in_range(e->name_len, 1, sizeof(name) - 1);
	memcpy(name, e->name, e->name_len);
	name[e->name_len] = '\0';
	i = strtoul(name + 1, NULL, 10);
	assert_true(i < 30 && l->ino[i]);
	assert_int_equal(e->entry.ino, l->ino[i]);
	assert_int_equal(e->type, l->is_dir[i] ? CFS_TYPE_DIR : CFS_TYPE_FILE);
	assert_int_equal(e->entry.attr.type, e->type);
	assert_int_equal(e->entry.attr.nlink, l->is_dir[i] ? 2 : 1);
	l->n++;
	return 0;
}

/* Names of a later page are removed, and made again as something else, after the first one. */
static void test_replaced_meanwhile(void **state)
{
	cfs_ino_t d = test_dir("replaced");
	struct cfs_cursor cursor = {0};
	struct cfs_ctx c = as_root();
	struct replaced l = {.n = 0};
	char name[32];
	size_t i;

	for (i = 0; i < 30; i++) {
		snprintf(name, sizeof(name), "f%02zu", i);
		l.ino[i] = make_file(d, name);
	}
	assert_int_equal(cfs_meta_readdir(vol.m, &c, d, true, 3, &cursor, check_replaced, &l), 0);
	for (i = 3; i < 30; i++) {
		snprintf(name, sizeof(name), "f%02zu", i);
		if (i % 3 == 0)
			continue;
		unlink_name(d, name);
		l.is_dir[i] = i % 3 == 1;
		l.ino[i] = l.is_dir[i] ? make_dir(d, name) : 0;
	}
	assert_int_equal(cfs_meta_readdir(vol.m, &c, d, true, 100, &cursor, check_replaced, &l), 1);
	assert_int_equal(l.n, 3 + 18);
}

static void test_errors(void **state)
{
	cfs_ino_t d = test_dir("listing-errors"), f = make_file(d, "f");
	struct cfs_ctx user = as_user(5, 5), c = as_root();
	struct cfs_attr in = {.mode = 0711}, after;
	struct cfs_cursor cursor = {0};
	struct listing l = {0};

	assert_int_equal(page(f, 10, &cursor, &l), -ENOTDIR);
	assert_int_equal(page(1ULL << 40, 10, &cursor, &l), -ENOENT);
	OK(cfs_meta_setattr(vol.m, &c, d, CFS_SET_MODE, &in, &after));
	assert_int_equal(cfs_meta_readdir(vol.m, &user, d, false, 10, &cursor, note, &l), -EACCES);
}

static int count_bytes(void *arg, const struct cfs_dirent *e)
{
	*(size_t *)arg += e->name_len;
	return 0;
}

static void test_long_names(void **state)
{
	cfs_ino_t d = test_dir("long-names");
	struct cfs_cursor cursor = {0};
	struct cfs_ctx c = as_root();
	char name[CFS_NAME_MAX + 1];
	size_t i, bytes = 0;
	int rc;

	memset(name, 0xff, CFS_NAME_MAX);
	name[CFS_NAME_MAX] = '\0';
	for (i = 0; i < 20; i++) {
		name[CFS_NAME_MAX - 1] = (char)('a' + i);
		make_file(d, name);
	}
	do {
		rc = cfs_meta_readdir(vol.m, &c, d, true, 3, &cursor, count_bytes, &bytes);
	} while (!rc);
	assert_int_equal(rc, 1);
	assert_int_equal(bytes, 20 * CFS_NAME_MAX);
}

TEST_LIST(readdir, T(test_pages), T(test_stop_and_go_on), T(test_changes_meanwhile),
	  T(test_replaced_meanwhile), T(test_errors), T(test_long_names));
