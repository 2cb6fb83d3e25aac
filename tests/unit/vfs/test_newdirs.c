/* SPDX-License-Identifier: Apache-2.0 */
/* Names in directories that this mount has made. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "vfs/newdirs.h"

#define PARENT 99
#define DIR    100
#define BELOW  101

static struct newdirs dirs;

static void add(cfs_ino_t dir, const char *name)
{
	newdirs_add(&dirs, dir, name, strlen(name));
}

static enum newdirs_answer at(cfs_ino_t dir, const char *name, uint64_t now_ms)
{
	return newdirs_lookup(&dirs, dir, name, strlen(name), now_ms);
}

/* A directory with one name, listed at 5000 ms. */
static void start(uint64_t trust_ms)
{
	assert_int_equal(newdirs_init(&dirs, trust_ms), 0);
	newdirs_made(&dirs, DIR, PARENT, 4000);
	add(DIR, "first");
	if (trust_ms) {
		assert_int_equal(at(DIR, "second", 5000), NEWDIRS_LIST);
		newdirs_listed(&dirs, DIR, 5000);
	}
}

static int stop(void **state)
{
	newdirs_fini(&dirs);
	return 0;
}

/* Without it: a name of another mount is absent here before anything was asked, or for ever. */
static void only_a_listing_makes_names_absent_and_for_its_time(void **state)
{
	assert_int_equal(newdirs_init(&dirs, 1000), 0);
	assert_int_equal(at(DIR, "a", 5000), NEWDIRS_LOOK_UP);
	newdirs_made(&dirs, DIR, PARENT, 4000);
	assert_int_equal(at(DIR, "a", 5000), NEWDIRS_LOOK_UP);
	add(DIR, "a");
	assert_int_equal(at(DIR, "a", 5000), NEWDIRS_LOOK_UP);
	assert_int_equal(at(DIR, "b", 5000), NEWDIRS_LIST);
	assert_int_equal(at(DIR, "b", 5000), NEWDIRS_LOOK_UP); /* somebody lists already */
	newdirs_listed(&dirs, DIR, 5000);
	assert_int_equal(at(DIR, "b", 5999), NEWDIRS_ABSENT);
	assert_int_equal(at(DIR, "a", 5999), NEWDIRS_LOOK_UP);
	assert_int_equal(at(DIR, "b", 6000), NEWDIRS_LOOK_UP);
	add(DIR, "b");
	assert_int_equal(at(DIR, "c", 6000), NEWDIRS_LIST);
	assert_int_equal(dirs.hits, 1);
}

/* Without it: a listing for each directory of an unpacked tree. */
static void a_directory_in_a_new_one_is_known_to_be_empty(void **state)
{
	start(1000);
	newdirs_made(&dirs, BELOW, DIR, 7000);
	assert_int_equal(at(BELOW, "a", 7999), NEWDIRS_ABSENT);
	add(BELOW, "a");
	assert_int_equal(at(BELOW, "a", 7999), NEWDIRS_LOOK_UP);
	assert_int_equal(at(BELOW, "b", 8000), NEWDIRS_LIST);
	assert_int_equal(at(BELOW, "b", 8000), NEWDIRS_LOOK_UP);
}

/* Without it: entry-cache=0 does not mean what it says, and a large one hides names for hours. */
static void trust_has_the_time_of_names_and_an_upper_bound(void **state)
{
	start(0);
	assert_int_equal(at(DIR, "a", 5000), NEWDIRS_LOOK_UP);
	stop(NULL);
	start(20);
	assert_int_equal(at(DIR, "a", 5019), NEWDIRS_ABSENT);
	assert_int_equal(at(DIR, "b", 5020), NEWDIRS_LOOK_UP);
	stop(NULL);
	start(3600000);
	assert_int_equal(at(DIR, "a", 5000 + NEWDIRS_TRUST_MS), NEWDIRS_LOOK_UP);
}

/* Without it: a program that polls for another mount's name waits a second longer. */
static void a_name_that_is_waited_for_is_looked_up(void **state)
{
	int i;

	start(1000);
	for (i = 0; i < NEWDIRS_ASKED; i++)
		assert_int_equal(at(DIR, "done", 5001), NEWDIRS_ABSENT);
	assert_int_equal(at(DIR, "done", 5001), NEWDIRS_LOOK_UP);
	assert_int_equal(at(DIR, "other", 5001), NEWDIRS_LOOK_UP);
}

/* Without it: so does one that searches, for a library in a directory that is being filled. */
static void names_that_are_not_made_end_it(void **state)
{
	char name[16];
	int i;

	start(1000);
	for (i = 0; i < 100; i++) {
		snprintf(name, sizeof(name), "made%d", i);
		assert_int_equal(at(DIR, name, 5001), NEWDIRS_ABSENT);
		add(DIR, name);
	}
	for (i = 0; i < NEWDIRS_ABSENT_MAX; i++) {
		snprintf(name, sizeof(name), "not%d", i);
		assert_int_equal(at(DIR, name, 5001), NEWDIRS_ABSENT);
	}
	assert_int_equal(at(DIR, "one more", 5001), NEWDIRS_LOOK_UP);
	assert_int_equal(at(DIR, "another", 5001), NEWDIRS_LOOK_UP);
}

/* Without it: a directory that was removed, or whose names are not all known, has no names. */
static void a_forgotten_directory_is_not_known_again(void **state)
{
	start(1000);
	newdirs_forget(&dirs, DIR);
	assert_int_equal(dirs.n, 0);
	add(DIR, "a");
	newdirs_listed(&dirs, DIR, 5000);
	assert_int_equal(at(DIR, "b", 5001), NEWDIRS_LOOK_UP);
	assert_false(newdirs_knows(&dirs, DIR, "a", 1));
}

/* Without it: each name made in a large directory, or directory of a large tree, costs memory. */
static void memory_has_a_bound(void **state)
{
	const int in_one = NEWDIRS_NAMES / 2 + 1;
	char name[16];
	int i, known;

	start(1000);
	for (i = 0; i < in_one && newdirs_knows(&dirs, DIR, "first", 5); i++) {
		snprintf(name, sizeof(name), "%d", i);
		add(DIR, name);
	}
	assert_in_range(i, NEWDIRS_NAMES / 4, NEWDIRS_NAMES / 2);
	assert_int_equal(dirs.n, 0);

	for (i = 0; i < 10000; i++) {
		newdirs_made(&dirs, 1000 + (cfs_ino_t)i, PARENT, 4000);
		add(1000 + (cfs_ino_t)i, "x");
	}
	assert_int_equal(dirs.n, NEWDIRS_SETS * NEWDIRS_WAYS);
	for (i = known = 0; i < 10000; i++)
		known += newdirs_knows(&dirs, 1000 + (cfs_ino_t)i, "x", 1);
	assert_int_equal(known, NEWDIRS_SETS * NEWDIRS_WAYS);
	/* A large one takes the place of others in its set, and of those only. */
	for (i = 0; i < NEWDIRS_NAMES / 2 - 16; i++) {
		snprintf(name, sizeof(name), "%d", i);
		add(1000 + 9999, name);
	}
	assert_true(newdirs_knows(&dirs, 1000 + 9999, "x", 1));
	assert_true(newdirs_knows(&dirs, 1000 + 9998, "x", 1));
	assert_false(newdirs_knows(&dirs, 1000 + 9999 - NEWDIRS_SETS, "x", 1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(only_a_listing_makes_names_absent_and_for_its_time, stop),
		cmocka_unit_test_teardown(a_directory_in_a_new_one_is_known_to_be_empty, stop),
		cmocka_unit_test_teardown(trust_has_the_time_of_names_and_an_upper_bound, stop),
		cmocka_unit_test_teardown(a_name_that_is_waited_for_is_looked_up, stop),
		cmocka_unit_test_teardown(names_that_are_not_made_end_it, stop),
		cmocka_unit_test_teardown(a_forgotten_directory_is_not_known_again, stop),
		cmocka_unit_test_teardown(memory_has_a_bound, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
