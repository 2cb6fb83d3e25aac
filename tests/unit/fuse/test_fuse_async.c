/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads that no thread waits for. If these fail, one that hangs is not seen, or the thread that all
 * members' answers come through waits for one of them.
 */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/activity.h"
#include "base/buf.h"
#include "base/bytes.h"
#include "fuse/fuse-internal.h"

#define READS 3

static struct cfs_fuse fuse;
static struct cfs_pool *pool;
static int threads_left; /* that the system gives; negative: as many as it has */
static sem_t applied, may_end;
static pthread_t appliers[READS];
static int n_applied, n_replies;

int __real_pthread_create(pthread_t *ret, const pthread_attr_t *attr, void *(*run)(void *),
			  void *arg);
int __wrap_pthread_create(pthread_t *ret, const pthread_attr_t *attr, void *(*run)(void *),
			  void *arg);

int __wrap_pthread_create(pthread_t *ret, const pthread_attr_t *attr, void *(*run)(void *),
			  void *arg)
{
	if (threads_left == 0)
		return EAGAIN;
	threads_left--;
	return __real_pthread_create(ret, attr, run, arg);
}

/* ---- the parts of the front end that answer ---- */

void call_take(const struct call *c)
{
	cfs_activity_request(c->op, c->ino, c->ctx.pid, c->start_ns / 1000000);
}

void call_leave(void)
{
	cfs_activity_request_end();
}

void reply_segs(struct call *c, int r, struct cfs_segs *s)
{
	assert_int_equal(r, 0);
	n_replies++;
	cfs_segs_release(s);
	call_leave();
}

bool killable_leave(struct killable *r)
{
	return true;
}

static void apply(struct blocking *b)
{
	appliers[n_applied++] = pthread_self();
	sem_post(&applied);
	sem_wait(&may_end);
	call_leave();
}

/* ---- */

static struct cfs_async *start(uint64_t ino)
{
	struct blocking what = {
		.call = {.fuse = &fuse, .op = "read", .ino = ino, .ctx.pid = 4711, .start_ns = 1},
		.apply = apply,
		.async = {.keep = async_keep, .len = 4096},
	};
	struct cfs_async *a = what.async.keep(&what.async);

	if (a)
		assert_int_equal(
			cfs_page_get(pool, 4096, CFS_USE_READ, cfs_deadline_in(1000), &a->page), 0);
	return a;
}

/* Requests that are shown without a thread; *ret: what the one of that inode waits for. */
static size_t shown(uint64_t ino, enum cfs_wait *ret)
{
	struct cfs_activity *all;
	size_t i, n, found = 0;

	*ret = CFS_WAIT_NONE;
	assert_int_equal(cfs_activity_read(-1, &all, &n), 0);
	for (i = 0; i < n; i++) {
		found += all[i].tid == CFS_ACTIVITY_QUEUED;
		if (all[i].tid != CFS_ACTIVITY_QUEUED || all[i].ino != ino)
			continue;
		assert_string_equal(all[i].op, "read");
		assert_int_equal(all[i].caller, 4711);
		assert_int_equal(all[i].n_waits, 1);
		*ret = all[i].waits[0].what;
	}
	free(all);
	return found;
}

/* Without it: `cachefs debug` and the watchdog do not see a read whose answer does not come. */
static void a_read_is_shown_until_its_answer(void **state)
{
	struct cfs_async *a = start(42), *b = start(43);
	enum cfs_wait what;

	assert_int_equal(shown(42, &what), 2);
	assert_int_equal(what, CFS_WAIT_PEER);
	a->done(a, 0);
	assert_int_equal(shown(43, &what), 1);
	assert_int_equal(what, CFS_WAIT_PEER);
	b->done(b, 0);
	assert_int_equal(shown(43, &what), 0);
	assert_int_equal(n_replies, 2);
}

/* On the caller's thread such a read would wait for itself. */
static void without_a_thread_no_read_is_started(void **state)
{
	struct cfs_async *a;

	threads_left = 0;
	assert_null(start(42));
	threads_left = 1;
	a = start(42);
	assert_non_null(a);
	a->done(a, 0);
}

/* The thread that ends them carries none of them out, and each is shown until another one does. */
static void reads_are_repeated_by_the_only_thread(void **state)
{
	struct cfs_async *a[READS];
	enum cfs_wait what;
	int i;

	threads_left = 1;
	for (i = 0; i < READS; i++)
		a[i] = start(42 + (uint64_t)i);
	for (i = 0; i < READS; i++)
		a[i]->done(a[i], -ETIMEDOUT);
	sem_wait(&applied);
	assert_int_equal(shown(43, &what), READS - 1);
	assert_int_equal(what, CFS_WAIT_QUEUE);
	for (i = 0; i < READS; i++)
		sem_post(&may_end);
	async_drain(&fuse);
	assert_int_equal(n_applied, READS);
	for (i = 0; i < READS; i++)
		assert_false(pthread_equal(appliers[i], pthread_self()));
	assert_int_equal(shown(42, &what), 0);
	assert_int_equal(fuse.admission.taken, 0);
}

static int set_up(void **state)
{
	threads_left = -1;
	n_applied = n_replies = 0;
	sem_init(&applied, 0, 0);
	sem_init(&may_end, 0, 0);
	memset(&fuse, 0, sizeof(fuse));
	fuse.conf.max_threads = 4; /* two slots */
	admission_init(&fuse);
	return async_init(&fuse);
}

static int tear_down(void **state)
{
	if (fuse.async.n > 0) /* a test has failed, and left them */
		return -1;
	async_fini(&fuse);
	admission_fini(&fuse);
	return 0;
}

static int init(void **state)
{
	return cfs_activity_init() ?: cfs_pool_create((uint64_t)16 << 20, &pool);
}

static int fini(void **state)
{
	cfs_pool_destroy(pool);
	return 0;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_read_is_shown_until_its_answer),
		TEST(without_a_thread_no_read_is_started),
		TEST(reads_are_repeated_by_the_only_thread),
	};

	return cmocka_run_group_tests_name("fuse_async", tests, init, fini);
}
