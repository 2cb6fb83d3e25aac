/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How far read-ahead goes. When these fail, users pay for bytes that they never read, or wait for
 * every block of a stream.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "data/data-internal.h"

#define MIB   ((uint64_t)1 << 20)
#define BLOCK (4 * MIB)

struct fixture {
	struct cfs_data data;
	struct cfs_file file;
};

static int setup(void **state)
{
	struct fixture *x = calloc(1, sizeof(*x));

	assert_non_null(x);
	assert_int_equal(cfs_pool_create(1024 * MIB, &x->data.conf.pool), 0);
	x->data.conf.block_size = BLOCK;
	x->data.conf.max_readahead = 64 * MIB;
	x->file.data = &x->data;
	x->file.length = 65536 * MIB;
	*state = x;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *x = *state;

	cfs_pool_destroy(x->data.conf.pool);
	free(x);
	return 0;
}

/* Reads MiB `from` to `to` in requests of 1 MiB; the forecast of the last one. */
static struct cfs_forecast session(struct fixture *x, uint64_t from, uint64_t to)
{
	struct cfs_forecast c = {0};

	for (; from < to; from++)
		cfs_session_advance(&x->file, 1, from * MIB, (from + 1) * MIB, false, &c);
	return c;
}

/* Bytes that were read ahead of [from, to). */
static uint64_t ahead_of(struct fixture *x, uint64_t from, uint64_t to)
{
	struct cfs_forecast c;
	uint64_t sum = 0;

	for (; from < to; from++) {
		c = session(x, from, from + 1);
		sum += c.end - c.off;
	}
	return sum;
}

static void random_reads(struct fixture *x, unsigned n, uint64_t len)
{
	unsigned i;

	for (i = 0; i < n; i++)
		session(x, 1000 + i * 7919 % 30 * 1000 + i, 1000 + i * 7919 % 30 * 1000 + i + len);
}

/* Half of the sessions that got as far have ended there. */
static void sessions_tell_how_far(void **state)
{
	struct fixture *x = *state;
	uint64_t at = 50000, i;

	random_reads(x, 8, 4);
	for (i = 1; i <= 4; i++)
		assert_int_equal(session(x, at + i - 1, at + i).likely_end, (at + 4) * MIB);
	assert_int_equal(ahead_of(x, at + 100, at + 104), MIB);
	/* Longer than all of them */
	assert_true(ahead_of(x, at + 200, at + 280) >= 64 * MIB);
}

/* Nothing is known yet: a session costs at most twice what was read, but for the start of a file. */
static void the_first_sessions(void **state)
{
	struct fixture *x = *state;

	assert_int_equal(session(x, 500, 501).likely_end, 502 * MIB);
	assert_int_equal(session(x, 501, 504).likely_end, 508 * MIB);
	assert_int_equal(session(x, 504, 510).likely_end, 0);
	assert_true(ahead_of(x, 510, 600) >= 80 * MIB);
	assert_int_equal(session(x, 0, 1).likely_end, 0);
	assert_true(ahead_of(x, 1, 64) >= 64 * MIB);
}

/* Small random reads beside large ones neither hide them nor are taken for them. */
static void small_reads_tell_nothing(void **state)
{
	struct fixture *x = *state;
	struct cfs_forecast c;
	uint64_t i;

	random_reads(x, 24, 4);
	for (i = 0; i < 100; i++) {
		cfs_session_advance(&x->file, 1, (40000 + i * 37) * MIB,
				    (40000 + i * 37) * MIB + 4096, false, &c);
		assert_int_equal(c.likely_end, 0);
		assert_int_equal(c.off, c.end);
	}
	assert_int_equal(session(x, 60000, 60001).likely_end, 60004 * MIB);
}

/* A program that merges runs reads a few blocks of each in turn: they go on, and are read ahead. */
static void streams_in_turn(void **state)
{
	enum { RUNS = 12, PART = 4, TURNS = 24 };
	struct fixture *x = *state;
	uint64_t ahead = 0;
	unsigned turn, run;

	for (turn = 0; turn < TURNS; turn++) {
		if (turn == TURNS / 2)
			ahead = 0;
		for (run = 0; run < RUNS; run++)
			ahead += ahead_of(x, (run + 1) * 1000 + turn * PART,
					  (run + 1) * 1000 + (turn + 1) * PART);
	}
	assert_true(ahead >= (uint64_t)RUNS * PART * TURNS / 2 * MIB / 2);
}

/* Threads that read a part of the file each: a stream is not judged by those beside it. */
static void streams_at_once(void **state)
{
	enum { STREAMS = 6, LEN = 40 };
	struct fixture *x = *state;
	struct cfs_forecast c;
	unsigned at, i;

	for (at = 0; at < LEN; at++) {
		for (i = 1; i <= STREAMS; i++) {
			c = session(x, i * 1000 + at, i * 1000 + at + 1);
			assert_true(c.likely_end == 0 ||
				    c.likely_end == (i * 1000 + 2 * at + 2) * MIB);
		}
	}
}

/* A request that another thread carries out again is no second read. */
static void repeated_requests(void **state)
{
	struct fixture *x = *state;
	struct cfs_forecast c, again;

	random_reads(x, 8, 4);
	c = session(x, 50000, 50003);
	assert_true(c.off < c.end);
	cfs_session_advance(&x->file, 1, 50002 * MIB, 50003 * MIB, true, &again);
	assert_int_equal(again.likely_end, c.likely_end);
	assert_int_equal(again.off, again.end);
	assert_false(again.random);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(sessions_tell_how_far, setup, teardown),
		cmocka_unit_test_setup_teardown(the_first_sessions, setup, teardown),
		cmocka_unit_test_setup_teardown(small_reads_tell_nothing, setup, teardown),
		cmocka_unit_test_setup_teardown(streams_in_turn, setup, teardown),
		cmocka_unit_test_setup_teardown(streams_at_once, setup, teardown),
		cmocka_unit_test_setup_teardown(repeated_requests, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
