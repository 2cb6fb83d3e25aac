/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Progress of transfers. When these fail a member of a cache group gives up an owner that is about
 * to answer, or waits for one that is not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/arrival.h"
#include "base/clock.h"
#include "unit/wait.h"

static void test_time_left(void **state)
{
	struct cfs_arrival a = {0};
	uint64_t start_ms, took_ms;

	(void)state;
	assert_int_equal(cfs_arrival_left_ms(&a), 0);
	cfs_arrival_follow(&a);
	start_ms = cfs_now_ms();
	WAIT_FOR(cfs_now_ms() >= start_ms + 100);
	assert_int_equal(cfs_arrival_left_ms(&a), 0); /* nothing has come */
	cfs_arrival_note(1000, 0);
	assert_int_equal(cfs_arrival_left_ms(&a), 0); /* of an unknown size */
	cfs_arrival_note(1000, 11000);
	took_ms = cfs_now_ms() - start_ms;
	assert_in_range(cfs_arrival_left_ms(&a), 10 * 99, 10 * (took_ms + LONG_MS / 20));
	assert_true(cfs_arrival_last_ms() >= start_ms + 100);
	cfs_arrival_follow(NULL);
	cfs_arrival_note(11000, 11000); /* of another transfer */
	assert_true(cfs_arrival_left_ms(&a) >= 10 * 99);
}

/* The rate of a second try does not include the time of the first. */
static void test_another_try(void **state)
{
	struct cfs_arrival a = {0};
	uint64_t start_ms = cfs_now_ms(), left_ms;

	(void)state;
	cfs_arrival_follow(&a);
	WAIT_FOR(cfs_now_ms() >= start_ms + 200);
	cfs_arrival_note(5000, 10000);
	cfs_arrival_note(1, 10000);
	cfs_arrival_note(9999, 10000);
	left_ms = cfs_arrival_left_ms(&a);
	assert_true(left_ms <= 1 + (cfs_now_ms() - start_ms - 200) / 9999);
	cfs_arrival_follow(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_time_left),
		cmocka_unit_test(test_another_try),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
