/* SPDX-License-Identifier: Apache-2.0 */
/* Records of cachefs's own. Without them: mounts of a cache group do not find each other. */
#include <string.h>

#include "conformance.h"

struct seen {
	unsigned n;
	char value[64];
	size_t len;
};

static int see(void *arg, const char *key, const void *value, size_t len)
{
	struct seen *s = arg;

	(void)key;
	s->n++;
	s->len = len;
	assert_true(len <= sizeof(s->value));
	if (len)
		memcpy(s->value, value, len);
	return 0;
}

static struct seen records(struct cfs_meta *m, const char *prefix)
{
	struct cfs_ctx c = as_root();
	struct seen s = {0};

	OK(cfs_meta_each_record(m, &c, prefix, see, &s));
	return s;
}

static void test_records(void **state)
{
	static const char binary[] = "a\0b\xff'\\";
	struct cfs_ctx c = as_root();
	struct seen s;

	(void)state;
	assert_int_equal(records(vol.m, "").n, 0);
	OK(cfs_meta_drop_record(vol.m, &c, "test.a"));
	OK(cfs_meta_put_record(vol.m, &c, "test.a", binary, sizeof(binary), true));
	assert_int_equal(cfs_meta_put_record(vol.m, &c, "test.a", "x", 1, true), -EEXIST);
	OK(cfs_meta_put_record(vol.m, &c, "test.b", "1", 1, false));
	OK(cfs_meta_put_record(vol.other, &c, "test.b", "22", 2, false));
	OK(cfs_meta_put_record(vol.other, &c, "other", "", 0, false));
	s = records(vol.other, "test.a");
	assert_int_equal(s.n, 1);
	assert_int_equal(s.len, sizeof(binary));
	assert_memory_equal(s.value, binary, sizeof(binary));
	s = records(vol.m, "test.b");
	assert_int_equal(s.n, 1);
	assert_int_equal(s.len, 2);
	assert_memory_equal(s.value, "22", 2);
	assert_int_equal(records(vol.m, "test.").n, 2);
	assert_int_equal(records(vol.m, "").n, 3);
	OK(cfs_meta_drop_record(vol.m, &c, "test.a"));
	OK(cfs_meta_drop_record(vol.m, &c, "test.b"));
	assert_int_equal(records(vol.other, "test.").n, 0);
	OK(cfs_meta_drop_record(vol.m, &c, "other"));
	assert_int_equal(cfs_meta_put_record(vol.m, &c, "", "x", 1, false), -EINVAL);
}

static void test_many_records(void **state)
{
	struct cfs_ctx c = as_root();
	char key[32], value[2000];
	unsigned i;

	(void)state;
	memset(value, 'v', sizeof(value));
	for (i = 0; i < 200; i++) {
		snprintf(key, sizeof(key), "many.%u", i);
		OK(cfs_meta_put_record(vol.m, &c, key, value, i % 2 ? sizeof(key) : 1, false));
	}
	assert_int_equal(records(vol.other, "many.").n, 200);
	for (i = 0; i < 200; i++) {
		snprintf(key, sizeof(key), "many.%u", i);
		OK(cfs_meta_drop_record(vol.other, &c, key));
	}
	assert_int_equal(records(vol.m, "").n, 0);
}

TEST_LIST(record, T(test_records), T(test_many_records));
