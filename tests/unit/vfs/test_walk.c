/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read-ahead over directories. A failure means a bucket's latency for each file that a program reads
 * after the other, or bytes that are paid for and thrown away.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "vfs/walk.h"

#define DIR	 7
#define N	 400
#define INO(i)	 (1000 + (cfs_ino_t)((i)*151 % 4001)) /* not in the order of names */
#define PLACE(i) ((i)*7 % N)			      /* in the listing */

static struct walks w;
static unsigned fetched[4096]; /* by file */
static unsigned n_fetched, n_lists;

static struct listing *listing_of(unsigned n)
{
	struct listing *l = listing_new();
	char name[16];
	unsigned i, k;

	assert_non_null(l);
	for (k = 0; k < n; k++) {
		for (i = 0; n == N && PLACE(i) != k; i++)
			;
		if (n != N)
			i = k;
		snprintf(name, sizeof(name), "f%05u", i);
		assert_true(listing_add(l, name, 6, INO(i)));
	}
	assert_true(listing_sort(l));
	return l;
}

static void take(struct walk_batch *b)
{
	unsigned i, file;
	char digits[6];

	assert_int_equal(b->dir, DIR);
	for (i = 0; i < b->n; i++) {
		assert_int_equal(b->heads[i].parent, DIR);
		assert_int_equal(b->heads[i].name_len, 6);
		snprintf(digits, sizeof(digits), "%.5s", b->heads[i].name + 1);
		file = (unsigned)strtoul(digits, NULL, 10);
		assert_int_equal(b->heads[i].ino, INO(file));
		fetched[file]++;
		n_fetched++;
	}
	free(b);
}

/* Returns whether the file was fetched before. */
static bool open_one(unsigned file, unsigned of)
{
	bool before = fetched[file];
	struct walk_batch *b;

	switch (walk_opened(&w, DIR, INO(file), &b)) {
	case WALK_LIST:
		n_lists++;
		walk_listed(&w, DIR, listing_of(of));
		break;
	case WALK_FETCH:
		take(b);
		break;
	case WALK_NOTHING:
		break;
	}
	return before;
}

static int begin(void **state)
{
	unsigned i;

	(void)state;
	walks_init(&w);
	for (i = 0; i < 4096; i++)
		fetched[i] = 0;
	n_fetched = n_lists = 0;
	return 0;
}

static int end(void **state)
{
	(void)state;
	walks_fini(&w);
	return 0;
}

static unsigned in_listing(unsigned k)
{
	unsigned i = 0;

	while (PLACE(i) != k)
		i++;
	return i;
}

static unsigned in_order(unsigned k)
{
	return k;
}

static int compare_ino(const void *a, const void *b)
{
	cfs_ino_t x = INO(*(const unsigned *)a), y = INO(*(const unsigned *)b);

	return (x > y) - (x < y);
}

static unsigned by_ino(unsigned k)
{
	static unsigned v[N];
	unsigned i;

	if (!v[0] && !v[1]) {
		for (i = 0; i < N; i++)
			v[i] = i;
		qsort(v, N, sizeof(*v), compare_ino);
	}
	return v[k];
}

static void walk_in(unsigned (*file)(unsigned k))
{
	unsigned k, ready = 0;

	for (k = 0; k < N; k++)
		ready += open_one(file(k), N);
	/* All but the first few, each once. */
	assert_true(ready >= N - 5);
	assert_true(n_fetched <= N);
	assert_int_equal(n_lists, 1);
}

static void names_in_order(void **state)
{
	walk_in(in_order);
}

static void listing_in_order(void **state)
{
	walk_in(in_listing);
}

static void inodes_in_order(void **state)
{
	walk_in(by_ino);
}

/* As `xargs -P 8 cat` does. */
static unsigned in_turns(unsigned k)
{
	return k ^ 5;
}

static void several_processes(void **state)
{
	unsigned k, ready = 0;

	for (k = 0; k < N; k++)
		ready += open_one(in_turns(k), N);
	assert_true(ready >= N - 16);
}

static void random_opens(void **state)
{
	enum { FILES = 1000, OPENS = 4000 };
	uint64_t seed = 3;
	unsigned i;

	for (i = 0; i < OPENS; i++) {
		seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
		open_one((unsigned)(seed >> 33) % FILES, FILES);
	}
	print_message("fetched %u, lists %u\n", n_fetched, n_lists);
	assert_true(n_fetched <= OPENS / 20);
	/* Each listing that was of no use is asked for later than the one before. */
	assert_true(n_lists <= 9);
}

/* Every tenth file: what lies between is not wanted. */
static void files_picked(void **state)
{
	unsigned k;

	for (k = 0; k < N; k += 10)
		open_one(k, N);
	assert_int_equal(n_fetched, 0);
}

static void walk_that_stops(void **state)
{
	unsigned k;

	for (k = 0; k < 12; k++)
		open_one(k, N);
	assert_true(n_fetched >= 8);
	assert_true(n_fetched <= 12 + 16);
}

static void same_file_again(void **state)
{
	unsigned k;

	for (k = 0; k < 500; k++)
		open_one(3, N);
	assert_int_equal(n_lists + n_fetched, 0);
}

/* Files came after the listing: a fresh one is asked for. */
static void files_are_added(void **state)
{
	unsigned k, ready = 0;

	for (k = 0; k < 40; k++)
		open_one(k, 40);
	assert_int_equal(n_lists, 1);
	for (k = 40; k < 80; k++)
		ready += open_one(k, 80);
	assert_int_equal(n_lists, 2);
	assert_true(ready >= 20);
}

static void thousands_of_directories(void **state)
{
	struct walk_batch *b;
	unsigned d, k, lists = 0;

	for (d = 1; d < 3000; d++) {
		for (k = 0; k < 4; k++) {
			switch (walk_opened(&w, d, INO(k), &b)) {
			case WALK_LIST:
				walk_listed(&w, d, listing_of(20));
				break;
			case WALK_FETCH:
				free(b);
				break;
			case WALK_NOTHING:
				break;
			}
		}
	}
	for (k = 0; k < WALKS; k++)
		lists += w.v[k].list != NULL;
	assert_true(lists <= WALK_LISTS);
	/* An answer for a directory that is no longer followed. */
	walk_listed(&w, 1, listing_of(20));
}

static void listing_is_bounded(void **state)
{
	struct listing *l = listing_new(), *empty = listing_new();
	char name[CFS_NAME_MAX] = {0};
	uint32_t place[ORDERS], i, n = 0;

	for (i = 0; i < LISTING_FILES_MAX; i++)
		assert_true(listing_add(l, "name", 4, i + 1));
	assert_false(listing_add(l, "name", 4, i + 1));
	assert_true(listing_sort(l));
	assert_int_equal(listing_size(l), LISTING_FILES_MAX);
	listing_free(l);
	l = listing_new();
	while (listing_add(l, name, sizeof(name), n + 1))
		n++;
	assert_int_equal(n, LISTING_NAMES_MAX / CFS_NAME_MAX);
	listing_free(l);
	assert_true(listing_sort(empty));
	assert_false(listing_find(empty, 1, place));
	listing_free(empty);
}

/* No listing could be had: another is asked for after more opens. */
static void listing_fails(void **state)
{
	struct walk_batch *b;
	unsigned k, asked = 0;

	for (k = 0; k < 100; k++) {
		if (walk_opened(&w, DIR, INO(k), &b) != WALK_LIST)
			continue;
		asked++;
		walk_listed(&w, DIR, NULL);
	}
	assert_true(asked >= 2 && asked <= 7);
}

#define T(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(names_in_order),	     T(listing_in_order),   T(inodes_in_order),
		T(several_processes),	     T(random_opens),	    T(files_picked),
		T(walk_that_stops),	     T(same_file_again),    T(files_are_added),
		T(thousands_of_directories), T(listing_is_bounded), T(listing_fails),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
