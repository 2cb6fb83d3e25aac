/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks that are fetched before they are read. When these fail read-ahead keeps readers waiting,
 * pushes out what is in use, or fetches for nobody.
 */
#include <errno.h>

#include "store_fixture.h"

static void prefetch(void **state)
{
	struct cfs_block b = {.slice = 22, .len = BLOCK}, absent = {.slice = 23, .len = BLOCK};
	struct reader rd = {.b = b, .len = BLOCK, .deadline = soon()};
	pthread_t t;

	start_store((struct setting){0});
	put_object(&b);
	hold(&faulty.hold_gets, 1);
	cfs_store_prefetch(store, &b, 0, BLOCK, 0);
	wait_held(1);
	/* Again: under way. */
	cfs_store_prefetch(store, &b, PAGE, PAGE, 0);
	start_readers(&rd, &t, 1);
	let_go();
	join_readers(&t, 1);
	assert_int_equal(rd.r, 0);
	assert_int_equal(faulty.gets, 1);
	assert_int_equal(metric("store_prefetches_total"), 1);
	/* A prefetch that fails decides nothing for the reader. */
	cfs_store_prefetch(store, &absent, 0, BLOCK, 0);
	WAIT_FOR(metric_for("object_request_errors_total", "get") == 1);
	put_object(&absent);
	assert_int_equal(read_range(&absent, 0, 10, soon()), 0);
	stop_store();
}

/*
 * A file that is read from one end to the other does not push out everything else, nor does the
 * mount grow to all of its memory for it.
 */
static void streams_pass_by(void **state)
{
	struct cfs_block b = {.slice = 30, .len = BLOCK}, kept = {.slice = 31, .len = BLOCK};
	uint32_t n = 20, off;

	/* One worker: what others that are slow to leave still hold would count, too. */
	start_store((struct setting){.budget = 64 * MIB, .downloads = 1});
	put_object(&kept);
	assert_int_equal(read_range(&kept, 0, BLOCK, soon()), 0);
	for (b.index = 0; b.index < n; b.index++) {
		put_object(&b);
		assert_true(cfs_store_prefetch(store, &b, 0, BLOCK, 1));
		for (off = 0; off < BLOCK; off += PAGE / 2)
			assert_int_equal(read_range(&b, off, PAGE / 2, soon()), 0);
	}
	assert_int_equal(faulty.gets, n + 1);
	/* An eighth, what came last, and what was kept. */
	assert_in_range(metric("memory_cache_bytes"), 2 * BLOCK, 64 * MIB / 8 + 2 * BLOCK);
	assert_true(cfs_store_in_memory(store, &kept, 0, BLOCK));
	/* A block that is read again is kept like any other. */
	b.index = n - 1;
	assert_int_equal(read_range(&b, 0, BLOCK, soon()), 0);
	for (b.index = 0; b.index < n - 1; b.index++) {
		cfs_store_prefetch(store, &b, 0, BLOCK, 1);
		assert_int_equal(read_range(&b, 0, BLOCK, soon()), 0);
	}
	assert_true(cfs_store_in_memory(store, &b, 0, BLOCK));
	stop_store();
}

/* Somebody is slow to let go of a page here and there: the others still pass by. */
static void streams_pass_by_what_is_held(void **state)
{
	struct cfs_block b = {.slice = 40, .len = BLOCK};
	enum { N = 20 };
	struct cfs_segs s[N];
	uint32_t off;

	start_store((struct setting){.budget = 64 * MIB, .downloads = 1});
	for (b.index = 0; b.index < N; b.index++) {
		put_object(&b);
		assert_true(cfs_store_prefetch(store, &b, 0, BLOCK, 1));
		for (off = 0; off < BLOCK - PAGE; off += PAGE)
			assert_int_equal(read_range(&b, off, PAGE, soon()), 0);
		cfs_segs_init(&s[b.index]);
		assert_int_equal(cfs_store_read(store, &b, BLOCK - PAGE, PAGE, soon(), &s[b.index]),
				 0);
	}
	assert_in_range(metric("memory_cache_bytes"), BLOCK, 64 * MIB / 8 + 2 * BLOCK);
	for (b.index = 0; b.index < N; b.index++)
		cfs_segs_release(&s[b.index]);
	stop_store();
}

static void prefetches_are_bounded(void **state)
{
	struct cfs_block b = {.slice = 24, .len = PAGE};

	start_store((struct setting){0});
	hold(&faulty.hold_gets, 100);
	for (b.index = 0; b.index < 20; b.index++) {
		put_object(&b);
		cfs_store_prefetch(store, &b, 0, PAGE, 0);
	}
	/* Three quarters of four workers; the fourth is free for a reader. */
	wait_held(3);
	assert_int_equal(metric("store_prefetches_total"), 3);
	assert_int_equal(metric("store_prefetch_drops_total"), 17);
	hold(&faulty.hold_gets, 0);
	b.index = 19;
	assert_int_equal(read_range(&b, 0, PAGE, soon()), 0);
	stop_store();
}

static void whole_blocks_are_prefetched(void **state)
{
	struct cfs_block b = {.slice = 33, .len = BLOCK};
	struct cfs_segs s;
	const struct cfs_pattern unknown = {0};
	enum cfs_source source;
	unsigned i;

	start_store((struct setting){.prefetch = 1});
	for (b.index = 0; b.index < 100; b.index++)
		put_object(&b);
	b.index = 0;
	cfs_segs_init(&s);
	assert_int_equal(cfs_store_fetch(store, &b, 0, 10, unknown, soon(), NULL, &s, &source), 0);
	assert_int_equal(source, CFS_SOURCE_REMOTE);
	assert_int_equal(cfs_store_fetch(store, &b, 0, 10, unknown, soon(), NULL, &s, &source), 0);
	assert_int_equal(source, CFS_SOURCE_LOCAL);
	cfs_segs_release(&s);
	assert_true(cfs_store_prefetch_block(store, &b, 1));
	WAIT_FOR(metric_for("object_data_bytes_total", "get") == BLOCK);
	assert_int_equal(faulty.gets, 2);

	/* One at a time, of a queue that ends somewhere, and each block once. */
	hold(&faulty.hold_gets, 1);
	for (i = 0; i < 200; i++) {
		b.index = 1 + i % 99;
		cfs_store_prefetch_block(store, &b, 1);
		if (i == 0)
			wait_held(1);
	}
	assert_int_equal(faulty.gets, 3);
	assert_in_range(metric("store_block_prefetch_drops_total"), 50, 100);
	assert_int_equal(metric("store_block_prefetches_total"), 1 + 1 + 64 + 0);
	/* The queue of a closed file is not fetched. */
	cfs_store_cancel(store, 2);
	assert_int_equal(metric("store_prefetch_cancels_total"), 0);
	cfs_store_cancel(store, 1);
	assert_int_equal(metric("store_prefetch_cancels_total"), 64);
	let_go();
	b.index = 1;
	WAIT_FOR(metric_for("object_data_bytes_total", "get") == 2 * (uint64_t)BLOCK);
	assert_true(cfs_store_in_memory(store, &b, 0, BLOCK));
	assert_int_equal(faulty.gets, 3);
	stop_store();
	start_store((struct setting){0});
	assert_false(cfs_store_prefetch_block(store, &b, 1));
	stop_store();
}

/* A reader who has come to wait for read-ahead of a file that is closed gets his bytes. */
static void cancelled_read_ahead(void **state)
{
	struct cfs_block held = {.slice = 34, .len = PAGE}, b = {.slice = 35, .len = PAGE};
	struct reader rd[4], late = {.b = b, .len = PAGE, .deadline = soon()};
	pthread_t t[4], t_late;
	int i;

	start_store((struct setting){0});
	put_object(&b);
	hold(&faulty.hold_gets, 4);
	for (i = 0; i < 4; i++) {
		held.index = (uint32_t)i;
		put_object(&held);
		rd[i] = (struct reader){.b = held, .len = PAGE, .deadline = soon()};
	}
	start_readers(rd, t, 4);
	wait_held(4);
	/* Every worker is busy: this one is queued. */
	assert_true(cfs_store_prefetch(store, &b, 0, PAGE, 7));
	start_readers(&late, &t_late, 1);
	cfs_store_cancel(store, 8);
	assert_int_equal(metric("store_prefetch_cancels_total"), 0);
	cfs_store_cancel(store, 7);
	assert_int_equal(metric("store_prefetch_cancels_total"), 1);
	let_go();
	join_readers(t, 4);
	join_readers(&t_late, 1);
	assert_int_equal(late.r, 0);
	assert_int_equal(faulty.gets, 5);
	stop_store();
}

/* Read-ahead that hangs until its time is up costs a reader who has come to wait for it no error.
 */
static void hanging_read_ahead(void **state)
{
	struct cfs_block b = {.slice = 36, .len = PAGE};

	start_store((struct setting){.get_timeout_ms = 200});
	put_object(&b);
	hold(&faulty.hold_gets, 1);
	assert_true(cfs_store_prefetch(store, &b, 0, PAGE, 0));
	wait_held(1);
	assert_int_equal(read_range(&b, 0, PAGE, soon()), 0);
	assert_int_equal(faulty.gets, 2);
	stop_store();
}

/*
 * Read-ahead must find its reader: pages that were read go first. But what nobody comes for does
 * not stay for ever.
 */
static void pages_ahead_wait_for_their_reader(void **state)
{
	struct cfs_block ahead = {.slice = 38, .len = BLOCK}, b = {.slice = 39, .len = BLOCK};

	start_store((struct setting){.budget = 64 * MIB});
	put_object(&ahead);
	assert_true(cfs_store_prefetch(store, &ahead, 0, BLOCK, 0));
	WAIT_FOR(metric_for("object_data_bytes_total", "get") == BLOCK);
	WAIT_FOR(metric("memory_cache_bytes") == BLOCK);
	/* 80 % of the pool are for pages, half of that is what one may wait for. */
	for (b.index = 0; b.index < 18; b.index++) {
		put_object(&b);
		assert_int_equal(read_range(&b, 0, BLOCK, soon()), 0);
		assert_int_equal(read_range(&b, 0, BLOCK, soon()), 0);
		if (b.index == 5)
			assert_true(cfs_store_in_memory(store, &ahead, 0, BLOCK));
	}
	for (; b.index < 60; b.index++) {
		put_object(&b);
		assert_int_equal(read_range(&b, 0, BLOCK, soon()), 0);
	}
	assert_false(cfs_store_in_memory(store, &ahead, 0, BLOCK));
	stop_store();
}

static void warm_memory(void **state)
{
	struct cfs_block b = {.slice = 36, .len = BLOCK}, absent = {.slice = 37, .len = 10};
	struct cfs_store_held held;

	start_store((struct setting){0});
	put_object(&b);
	assert_false(cfs_store_has_disk(store));
	assert_int_equal(read_range(&b, PAGE, PAGE, soon()), 0);
	cfs_store_held(store, &b, 10, BLOCK, &held);
	assert_int_equal(held.memory, PAGE);
	cfs_store_held(store, &b, PAGE + 10, 20, &held);
	assert_int_equal(held.memory, 20);
	assert_int_equal(cfs_store_warm(store, &b, soon()), 1);
	assert_int_equal(cfs_store_warm(store, &b, soon()), 0);
	cfs_store_held(store, &b, 10, BLOCK, &held);
	assert_int_equal(held.memory, BLOCK - 10);
	assert_int_equal(held.disk, 0);
	assert_int_equal(cfs_store_warm(store, &absent, soon()), -ENOENT);
	stop_store();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(prefetch),
		cmocka_unit_test(streams_pass_by),
		cmocka_unit_test(streams_pass_by_what_is_held),
		cmocka_unit_test(prefetches_are_bounded),
		cmocka_unit_test(whole_blocks_are_prefetched),
		cmocka_unit_test(cancelled_read_ahead),
		cmocka_unit_test(hanging_read_ahead),
		cmocka_unit_test(pages_ahead_wait_for_their_reader),
		cmocka_unit_test(warm_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
