/* SPDX-License-Identifier: Apache-2.0 */
/* Cache groups: keys and the registry of members. Each test says which loss its failure means. */
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "member_fixture.h"

/* ---- keys ---- */

struct reader {
	struct member *m;
	uint64_t slice;
	atomic_bool stop;
	_Atomic unsigned reads;
};

static void *keep_reading(void *arg)
{
	struct reader *rd = arg;

	while (!rd->stop) {
		read_from(rd->m, rd->slice);
		rd->reads++;
	}
	return NULL;
}

/* Changing the key stops the group, or lets members with the old one in for ever. */
static void test_rotation_while_reading(void **state)
{
	struct registry r;
	struct member a, b, c;
	struct reader rd = {.m = &a};
	struct cfs_group_registry reg;
	unsigned before;
	pthread_t thread;
	uint64_t of_a;

	registry_open(&r);
	join(&a, &r, 1);
	join(&b, &r, 2);
	WAIT_FOR(seen_by(&a) == 2 && seen_by(&b) == 2);
	rd.slice = block_of(&a, 2);
	assert_int_equal(pthread_create(&thread, NULL, keep_reading, &rd), 0);
	WAIT_FOR(rd.reads > 10);
	reg = registry_of(&a);
	assert_int_equal(cfs_group_rotate_key(&reg, "team"), 0);
	before = rd.reads;
	WAIT_FOR(rd.reads > before + 10);
	assert_int_equal(cfs_group_rotate_key(&reg, "nobody"), -ENOENT);
	join(&c, &r, 3);
	WAIT_FOR(seen_by(&c) == 3 && seen_by(&a) == 3);
	of_a = block_of(&c, 1);
	assert_int_equal(read_from(&c, of_a), RANGE);
	rd.stop = true;
	pthread_join(thread, NULL);
	part(&a);
	part(&b);
	part(&c);
	registry_close(&r);
}

/* Changing the key parts those who have read it from those who have not. */
static void test_rotation_reaches_members_one_by_one(void **state)
{
	struct cfs_group_conf conf = {.weight = 0, .heartbeat_ms = 600000};
	struct cfs_group_registry reg;
	struct registry r;
	struct member a, b, c;
	uint64_t of_a, of_b;

	registry_open(&r);
	join(&a, &r, 1);
	join(&b, &r, 2);
	WAIT_FOR(seen_by(&a) == 2 && seen_by(&b) == 2);
	of_a = block_of(&b, 1);
	of_b = block_of(&a, 2);
	b.blind = true;
	reg = registry_of(&a);
	assert_int_equal(cfs_group_rotate_key(&reg, "team"), 0);
	join_as(&c, &r, 3, conf); /* knows both keys, and is in its first heartbeat for ever */
	assert_int_equal(read_from(&c, of_b), RANGE);
	assert_int_equal(read_from(&c, of_a), RANGE);
	part(&c);
	b.blind = false;
	WAIT_FOR(read_from(&a, of_b) == RANGE && read_from(&b, of_a) == RANGE);
	part(&a);
	part(&b);
	registry_close(&r);
}

/* ---- the registry ---- */

/* A metadata server that is away for a while takes the group down with it. */
static void test_registry_fails_for_a_while(void **state)
{
	struct registry r;
	struct member a, b, c;
	struct cfs_group_conf conf = {.weight = 100};
	uint64_t of_b;

	registry_open(&r);
	join(&a, &r, 1);
	join(&b, &r, 2);
	WAIT_FOR(seen_by(&a) == 2 && seen_by(&b) == 2);
	of_b = block_of(&a, 2);
	r.err = -EIO;
	WAIT_FOR(stats(&a).heartbeat_errors > 6 && stats(&b).heartbeat_errors > 6);
	assert_int_equal(seen_by(&a), 2);
	assert_int_equal(read_from(&a, of_b), RANGE);
	assert_int_equal(try_join(&c, &r, 3, &conf), -EIO);
	r.err = 0;
	WAIT_FOR(stats(&a).heartbeats - stats(&a).heartbeat_errors > 3);
	WAIT_FOR(seen_by(&a) == 2 && seen_by(&b) == 2);
	assert_int_equal(read_from(&a, of_b), RANGE);
	part(&a);
	part(&b);
	registry_close(&r);
}

/* A member that a failed listing did not show is taken for gone. */
static void test_listing_is_cut_short(void **state)
{
	struct registry r;
	struct member a;
	unsigned cuts;

	registry_open(&r);
	join(&a, &r, 1);
	write_phantom(&r, 2, 7, 0, "");
	WAIT_FOR(look(&a, 2).n == 1);
	r.cut_at = 1;
	cuts = r.cuts;
	write_phantom(&r, 3, 7, 0, "");
	WAIT_FOR(r.cuts > cuts + 8);
	assert_int_equal(look(&a, 2).n, 1);
	r.cut_at = 0;
	WAIT_FOR(look(&a, 3).n == 1);
	WAIT_FOR(look(&a, 2).n == 0 && look(&a, 3).n == 0);
	part(&a);
	registry_close(&r);
}

/* Every member reads the records of all others, which is n times n. */
static void test_followers_read_no_records(void **state)
{
	struct registry r;
	struct member m[6], *last = &m[5];
	uint64_t heartbeats;
	unsigned i;

	registry_open(&r);
	for (i = 0; i < 200; i++)
		write_phantom(&r, 1000 + i, 7, 1, "");
	for (i = 0; i < 6; i++) {
		join(&m[i], &r, 1 + i);
		WAIT_FOR(seen_by(&m[0]) == 1 + i && seen_by(&m[i]) == 1 + i);
	}
	heartbeats = stats(last).heartbeats;
	WAIT_FOR(stats(last).heartbeats >= heartbeats + 20);
	assert_int_equal(last->lists, 0);
	for (i = 0; i < 5; i++)
		assert_true(m[i].lists > 0); /* leader and deputies */
	m[1].silent = true;
	WAIT_FOR(look(&m[0], 2).n == 0 && look(last, 2).n == 0);
	m[1].silent = false;
	WAIT_FOR(look(&m[0], 2).n == 1 && look(last, 2).n == 1);
	for (i = 0; i < 6; i++)
		part(&m[i]);
	assert_int_equal(registry_members(&r), 200);
	registry_close(&r);
}

/* A machine whose clock is wrong is out, or a dead member stays because its time is ahead. */
static void test_no_clocks(void **state)
{
	static const char *const times[] = {",\"time\":0", ",\"time\":99999999999999",
					    ",\"time\":-1"};
	struct registry r;
	struct member a;
	uint64_t heartbeats;
	int64_t number;

	registry_open(&r);
	join(&a, &r, 1);
	/* Its number goes backwards, its times jump: it is there as long as they change. */
	for (number = 8; number > 0; number--) {
		write_phantom(&r, 2, 7, number, times[number % 3]);
		heartbeats = stats(&a).heartbeats;
		WAIT_FOR(stats(&a).heartbeats > heartbeats + 1 && look(&a, 2).n == 1);
	}
	WAIT_FOR(look(&a, 2).n == 0);
	write_phantom(&r, 2, 7, 5000, times[0]);
	WAIT_FOR(look(&a, 2).n == 1);
	part(&a);
	registry_close(&r);
}

/* One malformed record takes the whole group along. */
static void test_garbage_in_the_registry(void **state)
{
	struct registry r;
	struct member a, b;
	char key[CFS_GROUP_KEY_MAX];

	registry_open(&r);
	cfs_group_member_key("team", 77, key);
	registry_put(&r, key, "\0\xff{", 3, false);
	join(&a, &r, 1);
	join(&b, &r, 2);
	WAIT_FOR(seen_by(&a) == 2 && seen_by(&b) == 2);
	assert_int_equal(read_from(&a, block_of(&a, 2)), RANGE);
	part(&a);
	part(&b);
	registry_close(&r);
}

static void test_bad_conf(void **state)
{
	struct cfs_group_conf conf = {.weight = 1};
	struct registry r;
	struct member m;
	char err[256];

	registry_open(&r);
	assert_int_equal(try_join(&m, &r, 0, &conf), -EINVAL);
	conf.replicas = CFS_GROUP_REPLICAS_MAX + 1;
	assert_int_equal(try_join(&m, &r, 1, &conf), -EINVAL);
	conf.replicas = 1;
	conf.name = "a/b";
	assert_int_equal(cfs_group_join(&conf, &m.g, err), -EINVAL);
	conf.name = "team";
	conf.allow_public = true;
	conf.address = "0.0.0.0"; /* others would connect to themselves */
	assert_int_equal(cfs_group_join(&conf, &m.g, err), -EINVAL);
	conf.address = "::";
	assert_int_equal(cfs_group_join(&conf, &m.g, err), -EINVAL);
	assert_int_equal(registry_members(&r), 0);
	registry_close(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rotation_while_reading),
		cmocka_unit_test(test_rotation_reaches_members_one_by_one),
		cmocka_unit_test(test_registry_fails_for_a_while),
		cmocka_unit_test(test_listing_is_cut_short),
		cmocka_unit_test(test_followers_read_no_records),
		cmocka_unit_test(test_no_clocks),
		cmocka_unit_test(test_garbage_in_the_registry),
		cmocka_unit_test(test_bad_conf),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
