/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read-ahead over trees. A failure means a bucket's latency for the first files of each directory, or
 * files that are fetched for a program which does not read them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "vfs/tree.h"

#define PARTS 6 /* of the root */
#define DIRS  9 /* of a part */
#define FILES 8 /* of a directory */
#define ROOT  1
#define ALL   (PARTS * DIRS)

static struct trees t;
static bool fetched[1000], seen[1000];
static unsigned n_fetched, n_twice, n_finds, most_ahead;

static cfs_ino_t part(unsigned p)
{
	return 10 + p;
}

/* Numbers are in the order of the listing, names in the other one. */
static cfs_ino_t dir(unsigned p, unsigned d)
{
	return 100 + p * DIRS + d;
}

static cfs_ino_t parent_of(cfs_ino_t ino)
{
	if (ino >= 100)
		return part((unsigned)(ino - 100) / DIRS);
	return ino == ROOT ? 0 : ROOT;
}

static struct listing *subdirs(cfs_ino_t ino)
{
	struct listing *l = listing_new();
	unsigned i, n = 0;
	char name[8];

	assert_non_null(l);
	if (ino == ROOT)
		n = PARTS;
	else if (ino < 100)
		n = DIRS;
	for (i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "%03u", 999 - i);
		assert_true(listing_add(l, name, 3,
					ino == ROOT ? part(i) : dir((unsigned)ino - 10, i)));
	}
	assert_true(listing_sort(l));
	return l;
}

static void fetch(struct tree *r, cfs_ino_t ino)
{
	unsigned i, ahead = 0;

	n_twice += fetched[ino];
	fetched[ino] = true;
	n_fetched++;
	tree_grown(&t, r, ino, ino >= 100 ? FILES : 0, subdirs(ino));
	for (i = 100; i < 100 + ALL; i++)
		ahead += fetched[i] && !seen[i] ? FILES : 0;
	most_ahead = ahead > most_ahead ? ahead : most_ahead;
}

static void grow(struct tree *r)
{
	cfs_ino_t ino;

	while (tree_grow(&t, r, &ino))
		fetch(r, ino);
	tree_leave(&t, r, false);
}

static void find(cfs_ino_t ino)
{
	cfs_ino_t parent = parent_of(ino), child = ino;
	struct tree *r = parent ? tree_find(&t, parent) : NULL;

	n_finds++;
	if (!r)
		return;
	for (; parent && tree_is_recent(&t, parent); child = parent, parent = parent_of(parent)) {
		if (!tree_add_above(&t, r, parent, child, subdirs(parent))) {
			tree_leave(&t, r, true);
			return;
		}
	}
	if (!fetched[ino])
		fetch(r, ino);
	grow(r);
}

/* Returns whether its files were fetched before. */
static bool list_one(cfs_ino_t ino, unsigned opens)
{
	bool before = fetched[ino];
	struct tree *r;
	unsigned i;

	seen[ino] = true;
	switch (tree_listed(&t, ino, &r)) {
	case TREE_FIND:
		find(ino);
		break;
	case TREE_GROW:
		grow(r);
		break;
	case TREE_NOTHING:
		break;
	}
	for (i = 0; i < opens; i++) {
		if (tree_opened(&t, ino, &r) == TREE_GROW)
			grow(r);
	}
	return before;
}

static int begin(void **state)
{
	(void)state;
	trees_init(&t);
	memset(fetched, 0, sizeof(fetched));
	memset(seen, 0, sizeof(seen));
	n_fetched = n_twice = n_finds = most_ahead = 0;
	return 0;
}

static int end(void **state)
{
	(void)state;
	trees_fini(&t);
	return 0;
}

/* Directories of which no file was fetched before they were listed. */
static unsigned walk(bool backwards, unsigned opens)
{
	unsigned p, d, missed = 0;

	list_one(ROOT, 0);
	for (p = 0; p < PARTS; p++) {
		list_one(part(backwards ? PARTS - 1 - p : p), 0);
		for (d = 0; d < DIRS; d++)
			missed += !list_one(
				backwards ? dir(PARTS - 1 - p, DIRS - 1 - d) : dir(p, d), opens);
	}
	return missed;
}

static void test_depth_first(void **state)
{
	(void)state;
	assert_int_equal(walk(false, FILES), 2);
	assert_int_equal(n_finds, 1);
	assert_int_equal(n_twice, 0);
	assert_in_range(most_ahead, TREE_FILES / 2, TREE_FILES + FILES);
}

/* By name, which is from the last one to the first. */
static void test_another_order(void **state)
{
	(void)state;
	assert_in_range(walk(true, FILES), 2, 3);
}

static void test_no_file_is_opened(void **state)
{
	(void)state;
	walk(false, 0);
	assert_int_equal(n_fetched + n_finds, 0);
}

/* It reads some files, and then lists only. */
static void test_files_are_not_opened_any_more(void **state)
{
	unsigned d, before;

	(void)state;
	list_one(ROOT, 0);
	list_one(part(0), 0);
	for (d = 0; d < DIRS; d++)
		list_one(dir(0, d), FILES);
	before = n_fetched;
	for (d = 0; d < 2 * DIRS; d++)
		list_one(dir(1 + d / DIRS, d % DIRS), 0);
	assert_in_range(n_fetched, before, before + TREE_FILES / FILES);
}

/* A few files of each directory. */
static void test_few_files_are_opened(void **state)
{
	(void)state;
	walk(false, 1);
	assert_in_range(n_fetched, 1, ALL / 4);
}

static void test_some_are_passed_over(void **state)
{
	unsigned p, d, missed = 0;

	(void)state;
	list_one(ROOT, 0);
	for (p = 0; p < PARTS; p++) {
		list_one(part(p), 0);
		for (d = 0; d < DIRS; d++)
			missed += d % 4 != 2 && !list_one(dir(p, d), FILES);
	}
	assert_in_range(missed, 2, 3);
}

static void test_at_random(void **state)
{
	unsigned i, vain = 0, which[ALL], k, x;

	(void)state;
	list_one(ROOT, 0);
	for (i = 0; i < PARTS; i++)
		list_one(part(i), 0);
	for (i = 0; i < ALL; i++)
		which[i] = i;
	srand(1);
	for (i = ALL - 1; i; i--) {
		k = (unsigned)rand() % (i + 1);
		x = which[i];
		which[i] = which[k];
		which[k] = x;
	}
	/* Half of them. */
	for (i = 0; i < ALL / 2; i++)
		list_one(100 + which[i], FILES);
	for (i = 100; i < 100 + ALL; i++)
		vain += fetched[i] && !seen[i];
	assert_in_range(vain, 0, ALL / 10);
}

/* The same program once more, and others beside it. */
static void test_trees_take_turns(void **state)
{
	unsigned i;

	for (i = 0; i < 3 * TREES; i++) {
		memset(fetched, 0, sizeof(fetched));
		walk(i & 1, FILES);
	}
	end(state);
	begin(state);
}

/* It comes back to the beginning. */
static void test_again(void **state)
{
	(void)state;
	walk(false, FILES);
	memset(fetched, 0, sizeof(fetched));
	memset(seen, 0, sizeof(seen));
	assert_in_range(walk(false, FILES), 0, ALL / 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_depth_first, begin, end),
		cmocka_unit_test_setup_teardown(test_another_order, begin, end),
		cmocka_unit_test_setup_teardown(test_no_file_is_opened, begin, end),
		cmocka_unit_test_setup_teardown(test_files_are_not_opened_any_more, begin, end),
		cmocka_unit_test_setup_teardown(test_few_files_are_opened, begin, end),
		cmocka_unit_test_setup_teardown(test_some_are_passed_over, begin, end),
		cmocka_unit_test_setup_teardown(test_at_random, begin, end),
		cmocka_unit_test_setup_teardown(test_trees_take_turns, begin, end),
		cmocka_unit_test_setup_teardown(test_again, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
