/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading blocks. When these fail a reader gets wrong bytes or waits for ever, or a block is
 * fetched many times over.
 */
#include <errno.h>

#include "store_fixture.h"

/* Objects under other names would be invisible to JuiceFS. */
static void keys(void **state)
{
	struct cfs_block b = {.slice = 1234567, .index = 0, .len = 4194304};
	char key[CFS_BLOCK_KEY_MAX];

	start_store((struct setting){0});
	cfs_store_block_key(store, &b, key);
	assert_string_equal(key, "vol/chunks/1/1234/1234567_0_4194304");
	stop_store();
	start_store((struct setting){.hash_prefix = true});
	b = (struct cfs_block){.slice = 10, .index = 3, .len = 4096};
	assert_int_equal(cfs_store_block_key(store, &b, key), 25);
	assert_string_equal(key, "vol/chunks/0A/0/10_3_4096");
	stop_store();
}

static void ranges(void **state)
{
	struct cfs_block b = {.slice = 1, .len = BLOCK - 1000};
	struct cfs_segs s;

	start_store((struct setting){0});
	put_object(&b);
	assert_int_equal(read_range(&b, 5, 10, soon()), 0);
	assert_int_equal(faulty.gets, 1);
	/* Widened to the page. */
	assert_int_equal(read_range(&b, 0, PAGE, 0), 0);
	assert_false(cfs_store_in_memory(store, &b, 0, PAGE + 1));
	assert_int_equal(read_range(&b, PAGE - 1, 2, soon()), 0);
	assert_int_equal(read_range(&b, b.len - 1, 1, soon()), 0);
	assert_int_equal(faulty.gets, 3);
	/* Only what is missing, in as many runs as it takes. */
	assert_int_equal(read_range(&b, 0, b.len, soon()), 0);
	assert_int_equal(faulty.gets, 4);
	assert_int_equal(metric_for("object_data_bytes_total", "get"), b.len);
	assert_true(cfs_store_in_memory(store, &b, 0, b.len));
	cfs_store_forget(store, &b);
	assert_int_equal(read_range(&b, 3 * PAGE, PAGE, soon()), 0);
	assert_int_equal(read_range(&b, 7 * PAGE, PAGE, soon()), 0);
	assert_int_equal(read_range(&b, PAGE, 9 * PAGE, soon()), 0);
	assert_int_equal(faulty.gets, 9);

	cfs_segs_init(&s);
	assert_int_equal(cfs_store_read(store, &b, b.len - 1, 2, soon(), &s), -EINVAL);
	assert_int_equal(cfs_store_read(store, &b, 0, 0, soon(), &s), -EINVAL);
	/* Appends. */
	assert_int_equal(cfs_store_read(store, &b, 0, 7, soon(), &s), 0);
	assert_int_equal(cfs_store_read(store, &b, 7, 2 * PAGE, soon(), &s), 0);
	assert_true(range_is_right(&s, &b, 0, 7 + 2 * PAGE));
	cfs_segs_release(&s);
	stop_store();
}

/* Sixteen readers of one block cost one request, not sixteen. */
static void single_flight(void **state)
{
	struct cfs_block b = {.slice = 2, .index = 1, .len = BLOCK};
	struct reader rd[READERS];
	pthread_t t[READERS];
	int i;

	start_store((struct setting){0});
	put_object(&b);
	hold(&faulty.hold_gets, 1);
	for (i = 0; i < READERS; i++)
		rd[i] = (struct reader){.b = b, .len = BLOCK, .deadline = soon()};
	start_readers(rd, t, READERS);
	wait_held(1);
	let_go();
	join_readers(t, READERS);
	for (i = 0; i < READERS; i++)
		assert_int_equal(rd[i].r, 0);
	assert_int_equal(faulty.gets, 1);
	stop_store();
}

/* A reader in a hurry leaves; the one with time gets the bytes of the same request. */
static void every_reader_has_its_own_deadline(void **state)
{
	struct cfs_block b = {.slice = 3, .len = BLOCK};
	struct reader rd = {.b = b, .len = BLOCK, .deadline = soon()};
	pthread_t t;

	start_store((struct setting){0});
	put_object(&b);
	hold(&faulty.hold_gets, 1);
	start_readers(&rd, &t, 1);
	wait_held(1);
	assert_int_equal(read_range(&b, 0, 10, cfs_deadline_in(50)), -EIO);
	assert_int_equal(read_range(&b, 0, 10, 0), -EIO);
	let_go();
	join_readers(&t, 1);
	assert_int_equal(rd.r, 0);
	assert_int_equal(faulty.gets, 1);
	stop_store();
}

/*
 * A hanging request costs a reader an EIO at the reader's own deadline. A reader with time left,
 * that joined before or that comes later, sends a request of its own.
 */
static void stuck_worker_is_left_behind(void **state)
{
	struct cfs_block b = {.slice = 4, .len = 100};
	struct reader patient = {.b = b, .len = 100, .deadline = soon()};
	struct reader hasty = {.b = b, .len = 100};
	pthread_t t[2];
	int gets;

	/* Much later than the deadline of the hasty one, who could else find the other's bytes. */
	start_store((struct setting){.get_timeout_ms = 3000});
	put_object(&b);
	hold(&faulty.hold_gets, 1);
	hasty.deadline = cfs_deadline_in(500);
	start_readers(&hasty, &t[0], 1);
	wait_held(1);
	start_readers(&patient, &t[1], 1);
	join_readers(t, 2);
	assert_int_equal(hasty.r, -EIO);
	assert_int_equal(patient.r, 0);
	gets = faulty.gets;
	assert_true(gets >= 2); /* more, if its own request took too long, too */
	assert_int_equal(read_range(&b, 0, 100, soon()), 0);
	assert_int_equal(faulty.gets, gets);
	let_go();
	wait_held(0);
	assert_int_equal(read_range(&b, 0, 100, 0), 0);
	stop_store();
}

static void bad_objects(void **state)
{
	struct cfs_block b = {.slice = 5, .len = 3 * PAGE + 5}, other = {.slice = 6, .len = 10};
	struct cfs_segs s;

	start_store((struct setting){0});
	put_object(&other);
	cfs_segs_init(&s);
	assert_int_equal(cfs_store_read(store, &other, 0, 10, soon(), &s), 0);

	assert_int_equal(cfs_store_read(store, &b, 0, b.len, soon(), &s), -ENOENT);
	put_object_of(&b, b.len - 1);
	assert_int_equal(cfs_store_read(store, &b, 0, b.len, soon(), &s), -EIO);
	assert_int_equal(cfs_store_read(store, &b, 3 * PAGE, 1, soon(), &s), -EIO);
	put_object_of(&b, b.len + 1);
	assert_int_equal(cfs_store_read(store, &b, 0, b.len, soon(), &s), -EIO);
	assert_int_equal(cfs_store_read(store, &b, 3 * PAGE, 1, soon(), &s), -EIO);
	put_object(&b);
	faulty.get_error = -EACCES;
	assert_int_equal(cfs_store_read(store, &b, 0, b.len, soon(), &s), -EACCES);
	faulty.get_error = 0;
	assert_int_equal(metric_for("object_request_errors_total", "get"), 6);
	assert_true(range_is_right(&s, &other, 0, 10));
	cfs_segs_release(&s);
	/* Nothing of it is remembered. */
	assert_int_equal(read_range(&b, 0, b.len, soon()), 0);
	stop_store();
}

/* Compressed and encrypted objects come whole: one request must serve every later range. */
static void whole_objects(void **state)
{
	struct cfs_block b = {.slice = 7, .len = BLOCK - 77};

	start_store((struct setting){.whole = true});
	put_object(&b);
	assert_int_equal(read_range(&b, 2 * PAGE + 5, 10, soon()), 0);
	assert_int_equal(read_range(&b, 0, b.len, 0), 0);
	assert_int_equal(faulty.gets, 1);
	stop_store();
}

/* Reads that need no waiting run on the calling thread. */
static void nowait_on_the_calling_thread(void **state)
{
	struct cfs_block b = {.slice = 8, .len = BLOCK}, absent = {.slice = 9, .len = 5};

	start_store((struct setting){.plain = true});
	put_object(&b);
	assert_int_equal(read_range(&b, 0, BLOCK, soon()), 0);
	assert_int_equal(read_range(&absent, 0, 5, soon()), -ENOENT);
	assert_int_equal(metric_for("object_requests_total", "get"), 2);
	stop_store();
}

/* A quarter of a block costs what the whole costs: the next read must find the rest. */
static void large_misses_fetch_the_block(void **state)
{
	struct cfs_block b = {.slice = 31, .len = BLOCK};

	start_store((struct setting){0});
	put_object(&b);
	assert_int_equal(read_range(&b, BLOCK - 3 * PAGE, PAGE, soon()), 0);
	assert_int_equal(read_range(&b, PAGE, BLOCK / 4, soon()), 0);
	assert_int_equal(faulty.gets, 2);
	assert_true(cfs_store_in_memory(store, &b, 0, BLOCK - 2 * PAGE));
	assert_int_equal(metric_for("object_data_bytes_total", "get"), BLOCK - 2 * PAGE);
	/* Not what somebody has already. */
	assert_false(cfs_store_in_memory(store, &b, 0, BLOCK));
	cfs_store_forget(store, &b);
	assert_int_equal(read_range(&b, PAGE, BLOCK / 4 - PAGE, soon()), 0);
	assert_int_equal(metric_for("object_data_bytes_total", "get"),
			 BLOCK - 2 * PAGE + BLOCK / 4 - PAGE);
	stop_store();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(keys),
		cmocka_unit_test(ranges),
		cmocka_unit_test(single_flight),
		cmocka_unit_test(every_reader_has_its_own_deadline),
		cmocka_unit_test(stuck_worker_is_left_behind),
		cmocka_unit_test(bad_objects),
		cmocka_unit_test(whole_objects),
		cmocka_unit_test(nowait_on_the_calling_thread),
		cmocka_unit_test(large_misses_fetch_the_block),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
