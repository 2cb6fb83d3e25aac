/* SPDX-License-Identifier: Apache-2.0 */
/* Records of cachefs's own. Without them: mounts of a cache group do not find each other. */
#include <string.h>

#include "conformance.h"

struct seen {
	unsigned n;
	char key[CFS_RECORD_KEY_MAX + 1], value[64];
	size_t len;
};

static int see(void *arg, const char *key, const void *value, size_t len)
{
	struct seen *s = arg;

	snprintf(s->key, sizeof(s->key), "%s", key);
	s->n++;
	s->len = len;
	assert_true(len <= sizeof(s->value));
	if (len)
		memcpy(s->value, value, len);
	return 0;
}

static struct seen records(struct cfs_meta *m, const char *table)
{
	struct cfs_ctx c = as_root();
	struct seen s = {0};

	OK(cfs_meta_each_record(m, &c, table, see, &s));
	return s;
}

static struct seen record(struct cfs_meta *m, const char *key)
{
	struct cfs_ctx c = as_root();
	struct seen s = {0};

	OK(cfs_meta_get_record(m, &c, key, see, &s));
	assert_int_equal(s.n, 1);
	assert_string_equal(s.key, key);
	return s;
}

static int missing(struct cfs_meta *m, const char *key)
{
	struct cfs_ctx c = as_root();
	struct seen s = {0};

	return cfs_meta_get_record(m, &c, key, see, &s);
}

static const char binary[] = "a\0b\xff'\\";

static void test_records(void **state)
{
	struct cfs_ctx c = as_root();
	struct seen s;

	(void)state;
	assert_int_equal(records(vol.m, "test").n, 0);
	assert_int_equal(missing(vol.m, "test/a"), -ENOENT);
	OK(cfs_meta_drop_record(vol.m, &c, "test/a"));
	OK(cfs_meta_put_record(vol.m, &c, "test/a", binary, sizeof(binary), true));
	assert_int_equal(cfs_meta_put_record(vol.m, &c, "test/a", "x", 1, true), -EEXIST);
	OK(cfs_meta_put_record(vol.m, &c, "test/b", "1", 1, false));
	OK(cfs_meta_put_record(vol.other, &c, "test/b", "22", 2, false));
	OK(cfs_meta_put_record(vol.other, &c, "other/b/c", "", 0, false));
	s = record(vol.other, "test/a");
	assert_int_equal(s.len, sizeof(binary));
	assert_memory_equal(s.value, binary, sizeof(binary));
	s = record(vol.m, "test/b");
	assert_int_equal(s.len, 2);
	assert_memory_equal(s.value, "22", 2);
	assert_int_equal(record(vol.m, "other/b/c").len, 0);
	assert_int_equal(missing(vol.m, "other/b"), -ENOENT);
	assert_int_equal(records(vol.m, "test").n, 2);
	s = records(vol.m, "other");
	assert_int_equal(s.n, 1);
	assert_string_equal(s.key, "other/b/c");
	OK(cfs_meta_drop_record(vol.m, &c, "test/a"));
	OK(cfs_meta_drop_record(vol.m, &c, "test/b"));
	assert_int_equal(records(vol.other, "test").n, 0);
	OK(cfs_meta_drop_record(vol.m, &c, "other/b/c"));
	assert_int_equal(cfs_meta_put_record(vol.m, &c, "", "x", 1, false), -EINVAL);
	assert_int_equal(cfs_meta_put_record(vol.m, &c, "test", "x", 1, false), -EINVAL);
	assert_int_equal(cfs_meta_put_record(vol.m, &c, "test/", "x", 1, false), -EINVAL);
	assert_int_equal(cfs_meta_put_record(vol.m, &c, "/test", "x", 1, false), -EINVAL);
	assert_int_equal(cfs_meta_each_record(vol.m, &c, "te/st", see, &s), -EINVAL);
}

/* Tables whose names are neighbours: a group reads members of another one as its own. */
static void test_tables(void **state)
{
	static const char *const tables[] = {"t", "t.", "t-", "t0", "T", "t.a", "s"};
	struct cfs_ctx c = as_root();
	char key[CFS_RECORD_KEY_MAX + 1];
	unsigned i;

	(void)state;
	for (i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
		snprintf(key, sizeof(key), "%s/x", tables[i]);
		OK(cfs_meta_put_record(vol.m, &c, key, tables[i], strlen(tables[i]), true));
	}
	for (i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
		struct seen s = records(vol.other, tables[i]);

		assert_int_equal(s.n, 1);
		assert_int_equal(s.len, strlen(tables[i]));
		assert_memory_equal(s.value, tables[i], s.len);
		OK(cfs_meta_drop_record(vol.other, &c, s.key));
	}
}

/* Two that publish at the same time both believe that they have. */
static void test_swap(void **state)
{
	struct cfs_ctx c = as_root();

	(void)state;
	assert_int_equal(cfs_meta_swap_record(vol.m, &c, "test/s", "", 0, "1", 1), -ESTALE);
	OK(cfs_meta_put_record(vol.m, &c, "test/s", binary, sizeof(binary), true));
	assert_int_equal(cfs_meta_swap_record(vol.m, &c, "test/s", "x", 1, "1", 1), -ESTALE);
	OK(cfs_meta_swap_record(vol.m, &c, "test/s", binary, sizeof(binary), "1", 1));
	assert_int_equal(
		cfs_meta_swap_record(vol.other, &c, "test/s", binary, sizeof(binary), "2", 1),
		-ESTALE);
	OK(cfs_meta_swap_record(vol.other, &c, "test/s", "1", 1, "2", 1));
	assert_memory_equal(record(vol.m, "test/s").value, "2", 1);
	OK(cfs_meta_drop_record(vol.m, &c, "test/s"));
	assert_int_equal(cfs_meta_swap_record(vol.other, &c, "test/s", "2", 1, "3", 1), -ESTALE);
	assert_int_equal(missing(vol.m, "test/s"), -ENOENT);
}

static void test_many_records(void **state)
{
	struct cfs_ctx c = as_root();
	char key[32], value[2000];
	unsigned i;

	(void)state;
	memset(value, 'v', sizeof(value));
	for (i = 0; i < 200; i++) {
		snprintf(key, sizeof(key), "many/%u", i);
		OK(cfs_meta_put_record(vol.m, &c, key, value, i % 2 ? sizeof(key) : 1, false));
	}
	assert_int_equal(records(vol.other, "many").n, 200);
	for (i = 0; i < 200; i++) {
		snprintf(key, sizeof(key), "many/%u", i);
		OK(cfs_meta_drop_record(vol.other, &c, key));
	}
	assert_int_equal(records(vol.m, "many").n, 0);
}

TEST_LIST(record, T(test_records), T(test_tables), T(test_swap), T(test_many_records));
