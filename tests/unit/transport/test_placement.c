/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placement, simulated. Without it: some members of a group fill up while others idle, or a member
 * that leaves empties the caches of all others.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "transport/group/placement.h"

#define MEMBERS_MAX 1000

/* A slow build draws fewer blocks, whose counts scatter more. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FEWER	  16
#define TOLERANCE 0.20
#else
#define FEWER	  1
#define TOLERANCE 0.05
#endif

struct ring {
	struct cfs_placement_member v[MEMBERS_MAX + 1];
	size_t n;
	struct cfs_placement *p;
};

static void build(struct ring *r)
{
	assert_int_equal(cfs_placement_create(r->v, r->n, &r->p), 0);
}

static void make(struct ring *r, size_t n, unsigned heavy)
{
	size_t i;

	*r = (struct ring){.n = n};
	for (i = 0; i < n; i++)
		r->v[i] = (struct cfs_placement_member){.id = 1 + i * 7919,
							.weight = i % 2 ? heavy : 100};
	build(r);
}

static unsigned owner(const struct ring *r, uint64_t block)
{
	unsigned first;

	/* Slices of sixteen blocks, as large files have them. */
	assert_int_equal(
		cfs_placement_pick(r->p, cfs_placement_key(block / 16, block % 16), 1, &first), 1);
	return first;
}

/* Every member's share is within 5 % of its weight's. */
static void check_balance(size_t n, unsigned heavy, unsigned blocks_per_member)
{
	static unsigned count[MEMBERS_MAX];
	uint64_t blocks = (uint64_t)n * blocks_per_member / FEWER, i;
	double sum = 0, worst = 0;
	struct ring r;

	make(&r, n, heavy);
	memset(count, 0, sizeof(count));
	for (i = 0; i < blocks; i++)
		count[owner(&r, i)]++;
	for (i = 0; i < n; i++)
		sum += r.v[i].weight;
	for (i = 0; i < n; i++) {
		double ideal = (double)blocks * r.v[i].weight / sum;

		worst = fmax(worst, fabs(count[i] - ideal) / ideal);
	}
	print_message("%zu members, weights 100 and %u: furthest share %.1f %% off\n", n, heavy,
		      worst * 100);
	assert_true(worst <= TOLERANCE);
	cfs_placement_destroy(r.p);
}

static void test_balance_100(void **state)
{
	check_balance(100, 100, 20000);
	check_balance(100, 200, 20000);
}

static void test_balance_1000(void **state)
{
	check_balance(1000, 100, 6400);
}

/* One member more, and the same taken away: only its share moves, to it alone. */
static void check_moves(size_t n)
{
	uint64_t blocks = n * 1000, moved = 0, i;
	double ideal = (double)blocks / (double)(n + 1);
	struct ring small, large;

	make(&small, n, 100);
	large = small;
	large.v[large.n++] = (struct cfs_placement_member){.id = 424242, .weight = 100};
	build(&large);
	for (i = 0; i < blocks; i++) {
		unsigned before = owner(&small, i), after = owner(&large, i);

		if (before != after) {
			assert_int_equal(after, n);
			moved++;
		}
	}
	print_message("%zu members and one: %.3f of the ideal share moved\n", n,
		      (double)moved / ideal);
	assert_true((double)moved <= 1.1 * ideal);
	assert_true((double)moved >= 0.9 * ideal);
	cfs_placement_destroy(small.p);
	cfs_placement_destroy(large.p);
}

static void test_moves(void **state)
{
	check_moves(100);
	check_moves(1000);
}

/* When the first owner goes, the second one is the first: replicas are where they are looked for.
 */
static void test_second_becomes_first(void **state)
{
	struct ring r, less;
	unsigned pick[CFS_PLACEMENT_PICK_MAX], now;
	uint64_t i;

	make(&r, 50, 250);
	for (i = 0; i < 500; i++) {
		uint64_t key = cfs_placement_key(i, 3);
		unsigned n = cfs_placement_pick(r.p, key, 3, pick);

		assert_int_equal(n, 3);
		assert_true(pick[0] != pick[1] && pick[1] != pick[2] && pick[0] != pick[2]);
		less = r;
		less.v[pick[0]].weight = 0;
		build(&less);
		assert_int_equal(cfs_placement_pick(less.p, key, 1, &now), 1);
		assert_int_equal(now, pick[1]);
		cfs_placement_destroy(less.p);
	}
	cfs_placement_destroy(r.p);
}

static void test_none_and_few(void **state)
{
	struct ring r = {.n = 2, .v = {{.id = 1, .weight = 0}, {.id = 2, .weight = 5}}};
	unsigned pick[CFS_PLACEMENT_PICK_MAX];

	build(&r);
	assert_int_equal(cfs_placement_pick(r.p, 77, 3, pick), 1);
	assert_int_equal(pick[0], 1);
	cfs_placement_destroy(r.p);
	r.n = 1;
	build(&r);
	assert_int_equal(cfs_placement_pick(r.p, 77, 3, pick), 0);
	cfs_placement_destroy(r.p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_balance_100),
		cmocka_unit_test(test_balance_1000),
		cmocka_unit_test(test_moves),
		cmocka_unit_test(test_none_and_few),
		cmocka_unit_test(test_second_becomes_first),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
