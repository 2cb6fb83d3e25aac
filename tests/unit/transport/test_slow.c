/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which peers are taken for slow. A peer that is wrongly taken for slow costs the group requests to
 * the bucket; one that is not makes every reader as slow as it is. Time is made up here.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "transport/group/slow.h"

#define MS 1000000ull

static struct {
	struct cfs_slow s;
	uint64_t now_ns, received;
	uint64_t judged_us; /* 0: not yet */
} p;

static void judge(void *arg, struct cfs_slow *s, uint64_t us)
{
	assert_ptr_equal(arg, &p);
	assert_ptr_equal(s, &p.s);
	p.judged_us = us;
}

static int set_up(void **state)
{
	p = (typeof(p)){.now_ns = 1000000 * MS};
	cfs_slow_init(&p.s, judge, &p);
	return 0;
}

static int tear_down(void **state)
{
	cfs_slow_destroy(&p.s);
	return 0;
}

static void ask(struct cfs_slow_ask *a)
{
	*a = (struct cfs_slow_ask){0};
	cfs_slow_start(&p.s, a, p.now_ns, p.received);
}

/* So many ms pass, in which bytes come in. */
static void pass(struct cfs_slow_ask *a, unsigned ms, uint64_t bytes)
{
	uint64_t received = p.received, start = p.now_ns;
	unsigned t;

	for (t = 0; t < ms; t += CFS_SLOW_LOOK_MS) {
		unsigned upto = CFS_MIN(t + CFS_SLOW_LOOK_MS, ms);

		p.now_ns = start + upto * MS;
		p.received = received + bytes * upto / ms;
		(void)cfs_slow_look(&p.s, a, p.now_ns, p.received);
	}
}

static void end(struct cfs_slow_ask *a, bool answered)
{
	cfs_slow_end(&p.s, a, p.now_ns, p.received, answered);
}

/* One request after the other. */
static void ask_times(unsigned n, unsigned ms, uint64_t len)
{
	struct cfs_slow_ask a;

	while (n-- > 0) {
		ask(&a);
		pass(&a, ms, len);
		end(&a, true);
	}
}

/* 10 Mbit/s: 128 KiB take 105 ms, 4 MiB 3.4 s. */
static void test_slow_link(void **state)
{
	uint64_t start = p.now_ns;

	while (!p.judged_us && p.now_ns < start + 3000 * MS)
		ask_times(1, 105, 128 << 10);
	assert_in_range(p.judged_us, 70000, 105000);
	assert_true(p.now_ns < start + 1600 * MS);
}

static void test_slow_link_large_answer(void **state)
{
	struct cfs_slow_ask a;

	ask(&a);
	pass(&a, 1600, 2 << 20);
	assert_in_range(p.judged_us, 70000, 120000);
	end(&a, false);
}

/* Many wait for each other at a peer that sends 1 Gbit/s: each takes half a second. */
static void test_many_at_a_time(void **state)
{
	struct cfs_slow_ask a[512];
	unsigned i, turn;

	for (i = 0; i < 512; i++)
		ask(&a[i]);
	for (turn = 0; turn < 5000; turn++) {
		i = turn % 512;
		pass(&a[i], 1, 128 << 10);
		end(&a[i], true);
		ask(&a[i]);
	}
	assert_int_equal(p.judged_us, 0);
	assert_in_range(cfs_slow_service_us(&p.s, p.now_ns), 1, 2000);
}

/* A distant peer that answers. */
static void test_way_is_long(void **state)
{
	ask_times(200, 9, 4096);
	assert_int_equal(p.judged_us, 0);
}

/* n small requests are always under way, and an answer comes every `us`. */
static void ask_small(unsigned n, unsigned turns, unsigned us)
{
	struct cfs_slow_ask a[64];
	unsigned i;

	for (i = 0; i < n; i++)
		ask(&a[i]);
	for (i = 0; i < turns; i++) {
		p.now_ns += us * 1000ull;
		p.received += 4096;
		end(&a[i % n], true);
		ask(&a[i % n]);
	}
	for (i = 0; i < n; i++)
		end(&a[i], false);
}

/* The same with several requests on their way at a time. */
static void test_way_is_long_for_many(void **state)
{
	ask_small(8, 2000, 9000 / 8);
	assert_int_equal(p.judged_us, 0);
}

/* 10 Mbit/s, and many small reads: each waits for the others' answers. */
static void test_slow_link_small_answers(void **state)
{
	uint64_t start = p.now_ns;

	while (!p.judged_us && p.now_ns < start + 3000 * MS)
		ask_small(8, 8, 3400);
	assert_in_range(p.judged_us, 40000, 105000);
	assert_true(p.now_ns < start + 1600 * MS);
}

static void test_silent_peer(void **state)
{
	struct cfs_slow_ask a;

	ask_times(1000, 1, 128 << 10);
	ask(&a);
	pass(&a, 20000, 0);
	end(&a, false);
	assert_int_equal(p.judged_us, 0);
	ask_times(1000, 1, 128 << 10);
	assert_int_equal(p.judged_us, 0);
}

/* A peer whose blocks have to be fetched, by a bucket that takes 300 ms, or 10 s. */
static void test_fetching_peer(void **state)
{
	struct cfs_slow_ask a;
	unsigned i, k;

	for (i = 0; i < 50; i++) {
		ask(&a);
		for (k = 0; k < (i == 10 ? 40 : 1); k++) {
			pass(&a, k == 0 ? 40 : 250, 0);
			cfs_slow_works(&p.s, &a, p.now_ns, p.received);
		}
		pass(&a, 240, 128 << 10);
		end(&a, true);
	}
	assert_int_equal(p.judged_us, 0);
	/* Others that are asked for what is there are quick. */
	ask_times(200, 2, 128 << 10);
	assert_int_equal(p.judged_us, 0);
}

/* It has fetched the block, and sends it slowly. */
static void test_slow_after_fetching(void **state)
{
	struct cfs_slow_ask a;

	ask(&a);
	pass(&a, 30, 0);
	cfs_slow_works(&p.s, &a, p.now_ns, p.received);
	pass(&a, 2800, 3 << 20);
	assert_in_range(p.judged_us, 70000, 140000);
	end(&a, false);
}

static void test_short_hiccup(void **state)
{
	unsigned i;

	for (i = 0; i < 20; i++) {
		ask_times(1000, 1, 128 << 10);
		ask_times(1, 350, 128 << 10);
	}
	assert_int_equal(p.judged_us, 0);
}

static void test_compared_with_others(void **state)
{
	uint64_t others[] = {3000, 2000, 1000000, 1000};

	assert_int_equal(cfs_slow_limit_us(others, 0, 0), 0);
	assert_int_equal(cfs_slow_limit_us(others, 4, 0), CFS_SLOW_MIN_US);
	assert_int_equal(cfs_slow_limit_us(others, 4, 100000), 200000);
	assert_int_equal(cfs_slow_limit_us(others, 0, 100000), 400000);
	others[0] = others[1] = others[3] = 20000;
	assert_int_equal(cfs_slow_limit_us(others, 4, 1000), 80000);
	/* Little, and what was long ago, is not compared. */
	ask_times(3, 1, 128 << 10);
	assert_int_equal(cfs_slow_service_us(&p.s, p.now_ns), 0);
	ask_times(40, 1, 128 << 10);
	assert_true(cfs_slow_service_us(&p.s, p.now_ns) > 0);
	assert_int_equal(cfs_slow_service_us(&p.s, p.now_ns + 2 * CFS_SLOW_WINDOW_MS * MS), 0);
}

/* One at a time, and rarer while they fail. */
static void test_probes(void **state)
{
	uint64_t now = 1000000, pause = CFS_SLOW_PAUSE_MS;
	unsigned i;

	assert_true(cfs_slow_begin(&p.s, now));
	assert_false(cfs_slow_begin(&p.s, now));
	for (i = 0; i < 10; i++) {
		assert_true(cfs_slow_is(&p.s));
		assert_false(cfs_slow_take_probe(&p.s, now + pause - 1));
		now += pause;
		assert_true(cfs_slow_take_probe(&p.s, now));
		assert_false(cfs_slow_take_probe(&p.s, now + 1000000));
		cfs_slow_probed(&p.s, false, now);
		pause = CFS_MIN(2 * pause, (uint64_t)CFS_SLOW_PAUSE_MAX_MS);
	}
	now += pause;
	assert_true(cfs_slow_take_probe(&p.s, now));
	cfs_slow_probed(&p.s, true, now);
	assert_false(cfs_slow_is(&p.s));
	/* Slow again at once: it is not forgiven; an hour later it is. */
	assert_true(cfs_slow_begin(&p.s, now + 1));
	assert_false(cfs_slow_take_probe(&p.s, now + CFS_SLOW_PAUSE_MAX_MS));
	now += 2 * CFS_SLOW_PAUSE_MAX_MS;
	assert_true(cfs_slow_take_probe(&p.s, now));
	cfs_slow_probed(&p.s, true, now);
	now += 3600000;
	assert_true(cfs_slow_begin(&p.s, now));
	assert_true(cfs_slow_take_probe(&p.s, now + CFS_SLOW_PAUSE_MS));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_slow_link),
		TEST(test_slow_link_large_answer),
		TEST(test_many_at_a_time),
		TEST(test_way_is_long),
		TEST(test_way_is_long_for_many),
		TEST(test_slow_link_small_answers),
		TEST(test_silent_peer),
		TEST(test_fetching_peer),
		TEST(test_slow_after_fetching),
		TEST(test_short_hiccup),
		TEST(test_compared_with_others),
		TEST(test_probes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
