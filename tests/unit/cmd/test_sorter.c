/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sorting for gc and fsck. A record lost or out of order here makes gc take a block that is in use
 * for a leaked one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cmd/sets/sorter.h"

struct rec {
	uint64_t key;
	uint32_t order, pad;
	uint64_t more;
};

static int compare(const void *a, const void *b)
{
	const struct rec *x = a, *y = b;

	return (x->key > y->key) - (x->key < y->key);
}

/* Every record comes out once and in order, whether they fit into memory or make many runs. */
static void sort_records(size_t n, size_t memory)
{
	uint8_t *seen = calloc(n + 1, 1);
	struct sorter *s;
	struct rec r;
	uint64_t seed = 88172645463325252ULL, last = 0;
	size_t i, got = 0;

	assert_non_null(seen);
	assert_int_equal(sorter_create(sizeof(r), compare, memory, &s), 0);
	for (i = 0; i < n; i++) {
		seed ^= seed << 13;
		seed ^= seed >> 7;
		seed ^= seed << 17;
		r = (struct rec){.key = seed % (n / 2 + 1), .order = (uint32_t)i, .more = ~seed};
		assert_int_equal(sorter_add(s, &r), 0);
	}
	assert_int_equal(sorter_sort(s), 0);
	while (sorter_next(s, &r) == 1) {
		assert_true(r.key >= last);
		assert_true(r.order < n && !seen[r.order]);
		assert_int_equal(r.key, ~r.more % (n / 2 + 1));
		seen[r.order] = 1;
		last = r.key;
		got++;
	}
	assert_int_equal(got, n);
	assert_int_equal(sorter_next(s, &r), 0);
	sorter_destroy(s);
	free(seen);
}

static void test_in_memory(void **state)
{
	sort_records(0, 0);
	sort_records(1, 0);
	sort_records(100000, 0);
}

static void test_in_runs(void **state)
{
	sort_records(3, 1); /* two records fit */
	sort_records(1000, 100 * sizeof(struct rec));
	sort_records(1001, 100 * sizeof(struct rec));
	sort_records(300000, 64 << 10);
}

/* Without a place for the runs the command fails instead of judging half of the objects. */
static void test_no_room(void **state)
{
	struct rec r = {0};
	struct sorter *s;
	int err = 0, i;

	setenv("TMPDIR", "/nowhere", 1);
	assert_int_equal(sorter_create(sizeof(r), compare, 1, &s), 0);
	for (i = 0; i < 3 && err == 0; i++)
		err = sorter_add(s, &r);
	assert_true(err < 0);
	sorter_destroy(s);
	unsetenv("TMPDIR");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_in_memory),
		cmocka_unit_test(test_in_runs),
		cmocka_unit_test(test_no_room),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
