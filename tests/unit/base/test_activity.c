/* SPDX-License-Identifier: Apache-2.0 */
/* If these fail, a mount that hangs is described wrongly, or brought down by being looked at. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/activity.h"
#include "base/clock.h"

static struct cfs_activity *all;
static size_t n_all;

static void look(void)
{
	free(all);
	assert_int_equal(cfs_activity_read(-1, &all, &n_all), 0);
}

static size_t find(const char *op)
{
	size_t i;

	for (i = 0; i < n_all && strcmp(all[i].op, op); i++)
		;
	return i;
}

static int our_memory(void)
{
	char path[64], where[64];
	ssize_t n;
	int fd;

	for (fd = 3; fd < 64; fd++) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		n = readlink(path, where, sizeof(where) - 1);
		where[n > 0 ? n : 0] = '\0';
		if (strstr(where, CFS_ACTIVITY_NAME))
			return fd;
	}
	return -1;
}

static void test_request_and_waits(void **state)
{
	char text[300];

	cfs_activity_request("read", 42, 4711, 0);
	cfs_activity_wait(CFS_WAIT_BLOCK, 7, "vol/chunks/0/0/7_0_4096");
	look();
	assert_int_equal(n_all, 1);
	assert_string_equal(all[0].op, "read");
	assert_int_equal(all[0].ino, 42);
	assert_int_equal(all[0].caller, 4711);
	assert_int_equal(all[0].tid, gettid());
	assert_in_range(all[0].since_ms, cfs_now_ms() - 10000, cfs_now_ms());
	cfs_activity_describe(all, n_all, 0, text, sizeof(text));
	assert_non_null(strstr(text, "block vol/chunks/0/0/7_0_4096 ("));
	cfs_activity_wait_end();
	look();
	cfs_activity_describe(all, n_all, 0, text, sizeof(text));
	assert_string_equal(text, "nothing known");
	cfs_activity_request_end();
	look();
	assert_int_equal(n_all, 0);
}

static void test_long_texts_and_deep_nests(void **state)
{
	char longer[3 * CFS_ACTIVITY_TEXT];
	int i;

	memset(longer, 'x', sizeof(longer));
	longer[sizeof(longer) - 1] = '\0';
	cfs_activity_request("copy_file_range_and_more", 1, 1, 0);
	for (i = 0; i < 2 * CFS_ACTIVITY_WAITS; i++)
		cfs_activity_wait(CFS_WAIT_DISK, 0, longer);
	look();
	assert_int_equal(n_all, 1);
	assert_string_equal(all[0].op, "copy_file_range");
	assert_int_equal(all[0].n_waits, CFS_ACTIVITY_WAITS);
	assert_int_equal(strlen(all[0].waits[0].text), CFS_ACTIVITY_TEXT - 1);
	for (i = 0; i < 2 * CFS_ACTIVITY_WAITS; i++)
		cfs_activity_wait_end();
	cfs_activity_wait(CFS_WAIT_MEMORY, 0, NULL);
	look();
	assert_int_equal(all[0].n_waits, 1);
	assert_string_equal(all[0].waits[0].text, "");
	cfs_activity_wait_end();
	cfs_activity_request_end();
}

struct worker {
	pthread_barrier_t ready, go;
};

static void *fetch(void *arg)
{
	struct worker *w = arg;

	cfs_activity_wait(CFS_WAIT_BLOCK, 7, "key one");
	cfs_activity_wait(CFS_WAIT_PEER, 0, "10.0.0.1:99");
	pthread_barrier_wait(&w->ready);
	pthread_barrier_wait(&w->go);
	return NULL;
}

/* A reader is told by what the thread does that fetches for it; not by that of another block. */
static void test_work_of_another_thread(void **state)
{
	struct worker w;
	char text[300];
	pthread_t t;

	pthread_barrier_init(&w.ready, NULL, 2);
	pthread_barrier_init(&w.go, NULL, 2);
	assert_int_equal(pthread_create(&t, NULL, fetch, &w), 0);
	pthread_barrier_wait(&w.ready);
	cfs_activity_request("read", 1, 1, 0);
	cfs_activity_wait(CFS_WAIT_BLOCK, 7, "key one");
	look();
	cfs_activity_describe(all, n_all, find("read"), text, sizeof(text));
	assert_non_null(strstr(text, "block key one ("));
	assert_non_null(strstr(text, "): peer 10.0.0.1:99 ("));
	cfs_activity_wait_end();
	cfs_activity_wait(CFS_WAIT_BLOCK, 7, "key two");
	look();
	cfs_activity_describe(all, n_all, find("read"), text, sizeof(text));
	assert_null(strstr(text, "peer"));
	cfs_activity_wait_end();
	cfs_activity_wait(CFS_WAIT_COMMIT, 7, "of inode 1");
	look();
	cfs_activity_describe(all, n_all, find("read"), text, sizeof(text));
	assert_non_null(strstr(text, "of inode 1 ("));
	assert_non_null(strstr(text, "peer 10.0.0.1:99"));
	cfs_activity_wait_end();
	cfs_activity_request_end();
	pthread_barrier_wait(&w.go);
	pthread_join(t, NULL);
	look();
	assert_int_equal(n_all, 0);
}

static void *short_life(void *arg)
{
	cfs_activity_request("stat", 1, 1, 0);
	return NULL;
}

/* Threads come and go: their records are used again, and what they left open goes with them. */
static void test_more_threads_than_records(void **state)
{
	pthread_t t;
	int i;

	for (i = 0; i < CFS_ACTIVITY_THREADS + 10; i++) {
		assert_int_equal(pthread_create(&t, NULL, short_life, NULL), 0);
		pthread_join(t, NULL);
	}
	look();
	assert_int_equal(n_all, 0);
	cfs_activity_request("after", 1, 1, 0);
	look();
	assert_int_equal(n_all, 1);
	cfs_activity_request_end();
}

static void *busy(void *arg)
{
	static const char *const keys[] = {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "bbbbbbbb"};
	atomic_bool *stop = arg;
	unsigned i;

	for (i = 0; !atomic_load(stop); i++) {
		cfs_activity_request(i % 2 ? "aaaa" : "bbbb", i % 2, 1, 1);
		cfs_activity_wait(CFS_WAIT_OBJECT_GET, i % 2, keys[i % 2 == 0]);
		cfs_activity_wait_end();
		cfs_activity_request_end();
	}
	return NULL;
}

/* All values of one read were true at one moment. */
static void test_reading_while_written(void **state)
{
	atomic_bool stop = false;
	size_t i, seen = 0;
	pthread_t t;

	assert_int_equal(pthread_create(&t, NULL, busy, &stop), 0);
	while (seen < 2000) {
		look();
		for (i = 0; i < n_all; i++) {
			char want = all[i].op[0];

			seen++;
			assert_string_equal(all[i].op, want == 'a' ? "aaaa" : "bbbb");
			assert_int_equal(all[i].ino, want == 'a');
			if (all[i].n_waits) {
				assert_int_equal(all[i].waits[0].id, want == 'a');
				assert_int_equal(all[i].waits[0].text[0], want);
			}
		}
	}
	atomic_store(&stop, true);
	pthread_join(t, NULL);
}

/* As another process reads it; something else of the same size is refused. */
static void test_through_the_descriptor(void **state)
{
	struct cfs_activity *v;
	FILE *other = tmpfile();
	off_t size;
	size_t n;
	int fd = our_memory();

	assert_true(fd >= 0);
	cfs_activity_request("open", 5, 6, 0);
	assert_int_equal(cfs_activity_read(fd, &v, &n), 0);
	assert_int_equal(n, 1);
	assert_string_equal(v[0].op, "open");
	free(v);
	cfs_activity_request_end();
	size = lseek(fd, 0, SEEK_END);
	assert_int_equal(cfs_activity_read(fileno(other), &v, &n), -EPROTO);
	assert_int_equal(ftruncate(fileno(other), size), 0);
	assert_int_equal(cfs_activity_read(fileno(other), &v, &n), -EPROTO);
	fclose(other);
}

static void test_locks(void **state)
{
	cfs_activity_request("setlk", 1, 1, 0);
	cfs_activity_wait(CFS_WAIT_META, 0, "lock");
	look();
	assert_false(cfs_activity_waits_for_lock(&all[0]));
	cfs_activity_wait(CFS_WAIT_LOCK, 0, "held by pid 3");
	look();
	assert_true(cfs_activity_waits_for_lock(&all[0]));
	cfs_activity_wait_goes_on("held by pid 4");
	look();
	assert_true(cfs_activity_waits_for_lock(&all[0]));
	assert_int_equal(all[0].n_waits, 2);
	assert_string_equal(all[0].waits[1].text, "held by pid 4");
	cfs_activity_wait_end();
	cfs_activity_wait_end();
	cfs_activity_request_end();
}

/* Without a thread, and beside what its thread does next. */
static void test_queued(void **state)
{
	struct cfs_activity_queued *a, *many[CFS_ACTIVITY_THREADS];
	char text[300];
	int i, n = 0;

	a = cfs_activity_queue("read", 42, 4711, cfs_now_ms() - 5000, CFS_WAIT_QUEUE, "things");
	assert_non_null(a);
	cfs_activity_request("write", 43, 4712, 0);
	look();
	assert_int_equal(n_all, 2);
	assert_string_equal(all[0].op, "read");
	assert_int_equal(all[0].tid, CFS_ACTIVITY_QUEUED);
	assert_int_equal(all[0].ino, 42);
	assert_int_equal(all[0].caller, 4711);
	cfs_activity_describe(all, n_all, 0, text, sizeof(text));
	assert_non_null(strstr(text, "queue things ("));
	cfs_activity_dequeue(a);
	look();
	assert_int_equal(n_all, 1);
	assert_string_equal(all[0].op, "write");
	cfs_activity_request_end();

	/* However many there are, threads go on being seen. */
	while (n < CFS_ACTIVITY_THREADS &&
	       (many[n] = cfs_activity_queue("r", 1, 1, 1, CFS_WAIT_QUEUE, "")))
		n++;
	assert_in_range(n, 1, CFS_ACTIVITY_THREADS - 1);
	look();
	assert_int_equal(n_all, n);
	for (i = 0; i < n; i++)
		cfs_activity_dequeue(many[i]);
	look();
	assert_int_equal(n_all, 0);
	a = cfs_activity_queue("r", 1, 1, 1, CFS_WAIT_QUEUE, "");
	assert_non_null(a);
	cfs_activity_dequeue(a);
}

static int init(void **state)
{
	/* Before: nothing is recorded, and nothing breaks. */
	cfs_activity_request("early", 1, 1, 0);
	cfs_activity_wait(CFS_WAIT_META, 0, "x");
	cfs_activity_wait_end();
	cfs_activity_request_end();
	look();
	return n_all == 0 ? cfs_activity_init() : -1;
}

static int fini(void **state)
{
	free(all);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_request_and_waits),
		cmocka_unit_test(test_long_texts_and_deep_nests),
		cmocka_unit_test(test_work_of_another_thread),
		cmocka_unit_test(test_more_threads_than_records),
		cmocka_unit_test(test_reading_while_written),
		cmocka_unit_test(test_through_the_descriptor),
		cmocka_unit_test(test_locks),
		cmocka_unit_test(test_queued),
	};

	return cmocka_run_group_tests_name("activity", tests, init, fini);
}
