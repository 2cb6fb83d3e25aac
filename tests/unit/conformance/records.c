/* SPDX-License-Identifier: Apache-2.0 */
/* Records of cachefs's own. Without them: mounts of a cache group do not find each other. */
#include <cachefs/records.h>
#include <pthread.h>
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

#define LEASE "test/lease"

static int take(struct cfs_meta *m, const char *holder, struct cfs_lease **ret, char busy[256])
{
	*busy = '\0';
	*ret = NULL;
	return cfs_meta_take_lease(m, LEASE, holder, ret, busy);
}

/* Two that repair a volume at the same time count what they find missing twice. */
static void test_lease(void **state)
{
	static const char old[] = "00000000000000ff 1000000000 somebody who died";
	struct cfs_ctx c = as_root();
	struct cfs_lease *mine, *other;
	char busy[256];

	(void)state;
	OK(take(vol.m, "the first", &mine, busy));
	assert_int_equal(take(vol.other, "the second", &other, busy), -EBUSY);
	assert_non_null(strstr(busy, "the first"));
	OK(cfs_lease_check(mine));
	cfs_lease_drop(mine);
	assert_int_equal(missing(vol.m, LEASE), -ENOENT);
	OK(take(vol.other, "the second", &other, busy));
	/* Its time passes without a renewal, and it goes on. */
	OK(cfs_meta_put_record(vol.m, &c, LEASE, old, strlen(old), false));
	OK(take(vol.m, "the third", &mine, busy));
	OK(cfs_lease_check(mine));
	cfs_lease_drop(other);
	OK(cfs_lease_check(mine));
	assert_int_equal(take(vol.other, "the fourth", &other, busy), -EBUSY);
	assert_non_null(strstr(busy, "the third"));
	cfs_lease_drop(mine);
	assert_int_equal(missing(vol.m, LEASE), -ENOENT);
}

/* The record of a renewal whose answer was lost is the holder's own. */
static void test_lease_renewed_unheard(void **state)
{
	struct cfs_ctx c = as_root();
	struct cfs_lease *mine;
	struct seen there;
	char busy[256], later[64];

	(void)state;
	OK(take(vol.m, "me", &mine, busy));
	there = record(vol.m, LEASE);
	snprintf(later, sizeof(later), "%.16s 4000000000 me", there.value);
	OK(cfs_meta_put_record(vol.m, &c, LEASE, later, strlen(later), false));
	cfs_lease_drop(mine);
	assert_int_equal(missing(vol.m, LEASE), -ENOENT);
}

struct taker {
	struct cfs_meta *m;
	pthread_barrier_t *begin;
	struct cfs_lease *lease;
	int rc;
};

static void *take_at_once(void *arg)
{
	struct taker *t = arg;
	char busy[256];

	pthread_barrier_wait(t->begin);
	t->rc = take(t->m, "one of four", &t->lease, busy);
	return NULL;
}

static void test_lease_taken_at_once(void **state)
{
	pthread_barrier_t begin;
	pthread_t threads[4];
	struct taker t[4];
	unsigned round, i, held;

	(void)state;
	pthread_barrier_init(&begin, NULL, 4);
	for (round = 0; round < 20; round++) {
		for (i = 0; i < 4; i++) {
			t[i] = (struct taker){.m = i % 2 ? vol.m : vol.other, .begin = &begin};
			OK(pthread_create(&threads[i], NULL, take_at_once, &t[i]));
		}
		for (i = held = 0; i < 4; i++) {
			pthread_join(threads[i], NULL);
			held += t[i].rc == 0;
			assert_true(t[i].rc == 0 || t[i].rc == -EBUSY);
		}
		assert_int_equal(held, 1);
		for (i = 0; i < 4; i++)
			cfs_lease_drop(t[i].lease);
	}
	pthread_barrier_destroy(&begin);
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

TEST_LIST(record, T(test_records), T(test_tables), T(test_swap));
TEST_LIST(lease, T(test_lease), T(test_lease_renewed_unheard), T(test_lease_taken_at_once),
	  T(test_many_records));
