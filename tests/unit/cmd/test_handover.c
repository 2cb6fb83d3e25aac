/* SPDX-License-Identifier: Apache-2.0 */
/* If these fail, a mount cannot be upgraded, as nobody finds its supervisor. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "cmd/mountd/supervise/handover.h"

#define TRIES 5000

static char dir[] = "/tmp/cachefs-handover.XXXXXX";
static char path[sizeof(dir) + 16];

struct door {
	pthread_barrier_t *start;
	int sock;
	ino_t ino;
};

static void *close_door(void *arg)
{
	struct door *d = arg;

	pthread_barrier_wait(d->start);
	handover_unlisten(path, d->sock, d->ino);
	return NULL;
}

/* The number of a mount that ends is that of another one at once. */
static void test_one_that_ends_takes_nothing_from_the_next(void **state)
{
	pthread_barrier_t start;
	struct door old = {.start = &start}, next;
	pthread_t thread;
	struct stat st;
	int i, fd;

	pthread_barrier_init(&start, NULL, 2);
	for (i = 0; i < TRIES; i++) {
		assert_int_equal(handover_listen(path, &old.sock, &old.ino), 0);
		assert_int_equal(pthread_create(&thread, NULL, close_door, &old), 0);
		pthread_barrier_wait(&start);
		assert_int_equal(handover_listen(path, &next.sock, &next.ino), 0);
		pthread_join(thread, NULL);
		assert_int_equal(stat(path, &st), 0);
		assert_true(st.st_ino == next.ino);
		assert_int_equal(handover_connect(path, &fd), 0);
		close(fd);
		handover_unlisten(path, next.sock, next.ino);
		assert_int_equal(stat(path, &st), -1);
	}
	pthread_barrier_destroy(&start);
}

/* More descriptors than a message may have, and messages of another program. */
static void test_what_is_not_understood_leaves_nothing_behind(void **state)
{
	const int two[HANDOVER_FDS] = {STDIN_FILENO, STDOUT_FILENO};
	struct handover m;
	int pair[2], first, after;

	assert_int_equal(handover_pair(pair), 0);
	assert_int_equal(handover_receive(pair[1], cfs_deadline_in(0), &m), -ETIMEDOUT);
	assert_int_equal(handover_send(pair[0], HANDOVER_GIVE, 7, "text", two), 0);
	assert_int_equal(handover_receive(pair[1], cfs_deadline_in(0), &m), 0);
	assert_int_equal(m.kind, HANDOVER_GIVE);
	assert_int_equal(m.number, 7);
	assert_string_equal(m.text, "text");
	first = m.fds[0];
	assert_true(first >= 0 && m.fds[1] >= 0);
	handover_close_fds(&m);

	assert_int_equal(send(pair[0], "hello", 5, 0), 5);
	assert_int_equal(handover_receive(pair[1], cfs_deadline_in(0), &m), -EPROTO);
	after = dup(STDIN_FILENO);
	assert_int_equal(after, first);
	close(after);
	close(pair[0]);
	assert_int_equal(handover_receive(pair[1], cfs_deadline_in(0), &m), -ENOTCONN);
	close(pair[1]);
}

/* A refusal is heard although the question was never read. */
static void test_last_words_are_heard(void **state)
{
	struct handover m;
	int pair[2];

	assert_int_equal(handover_pair(pair), 0);
	assert_int_equal(handover_send(pair[1], HANDOVER_ASK, 0, NULL, NULL), 0);
	assert_int_equal(handover_send(pair[0], HANDOVER_FAILED, 0, "no", NULL), 0);
	close(pair[0]);
	assert_int_equal(handover_receive(pair[1], cfs_deadline_in(0), &m), 0);
	assert_int_equal(m.kind, HANDOVER_FAILED);
	assert_string_equal(m.text, "no");
	assert_int_equal(handover_receive(pair[1], cfs_deadline_in(0), &m), -ENOTCONN);
	close(pair[1]);
}

static int make_dir(void **state)
{
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/d/mount-1", dir);
	return 0;
}

static int remove_dir(void **state)
{
	char command[sizeof(dir) + 16];

	snprintf(command, sizeof(command), "rm -r %s", dir);
	return system(command);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_that_ends_takes_nothing_from_the_next),
		cmocka_unit_test(test_what_is_not_understood_leaves_nothing_behind),
		cmocka_unit_test(test_last_words_are_heard),
	};

	return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
