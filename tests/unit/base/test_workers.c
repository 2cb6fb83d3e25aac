/* SPDX-License-Identifier: Apache-2.0 */
/* When these fail an upload is lost at unmount, runs out of order, or a mount hangs or floods. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/workers.h"
#include "unit/wait.h"

struct job {
	struct cfs_job job;
	int id;
};

static sem_t started, may_end, ended;
static _Atomic int ran, order[64];

static void blocking(struct cfs_job *job)
{
	sem_post(&started);
	wait_post(&may_end);
	ran++;
}

static void recording(struct cfs_job *job)
{
	order[ran++] = ((struct job *)job)->id;
}

static int set_up(void **state)
{
	ran = 0;
	sem_init(&started, 0, 0);
	sem_init(&may_end, 0, 0);
	sem_init(&ended, 0, 0);
	return 0;
}

static void runs_in_order_and_all_before_destroy(void **state)
{
	struct job first = {{blocking}, 0}, jobs[50];
	struct cfs_workers *w;
	int i;

	assert_int_equal(cfs_workers_create("t", 1, 50, &w), 0);
	assert_int_equal(cfs_workers_submit(w, &first.job, 0), 0);
	wait_post(&started);
	for (i = 0; i < 50; i++) {
		jobs[i] = (struct job){{recording}, i};
		assert_int_equal(cfs_workers_try_submit(w, &jobs[i].job), 0);
	}
	sem_post(&may_end);
	cfs_workers_destroy(w);
	assert_int_equal(ran, 51);
	for (i = 0; i < 50; i++)
		assert_int_equal(order[i + 1], i);
}

static void drain_waits_for_the_last_job(void **state)
{
	struct job first = {{blocking}, 0}, next = {{recording}, 1};
	struct cfs_workers *w;

	assert_int_equal(cfs_workers_create("t", 1, 2, &w), 0);
	assert_int_equal(cfs_workers_drain(w, 0), 0);
	assert_int_equal(cfs_workers_submit(w, &first.job, 0), 0);
	assert_int_equal(cfs_workers_submit(w, &next.job, 0), 0);
	wait_post(&started);
	assert_int_equal(cfs_workers_drain(w, cfs_deadline_in(20)), -ETIMEDOUT);
	assert_int_equal(ran, 0);
	sem_post(&may_end);
	assert_int_equal(cfs_workers_drain(w, cfs_deadline_in(60000)), 0);
	assert_int_equal(ran, 2);
	cfs_workers_destroy(w);
}

static void queue_is_bounded(void **state)
{
	struct job first = {{blocking}, 0}, a = {{recording}, 1}, b = {{recording}, 2};
	struct cfs_workers_stats stats;
	struct cfs_workers *w;

	assert_int_equal(cfs_workers_create("t", 1, 1, &w), 0);
	assert_int_equal(cfs_workers_submit(w, &first.job, 0), 0);
	wait_post(&started);
	assert_int_equal(cfs_workers_submit(w, &a.job, soon()), 0);
	assert_int_equal(cfs_workers_try_submit(w, &b.job), -EAGAIN);
	assert_int_equal(cfs_workers_submit(w, &b.job, cfs_deadline_in(10)), -ETIMEDOUT);
	cfs_workers_stats(w, &stats);
	assert_int_equal(stats.threads, 1);
	assert_int_equal(stats.busy, 1);
	assert_int_equal(stats.queued, 1);

	/* Room made by cancelling, and none of the cancelled job's work. */
	assert_true(cfs_workers_cancel(w, &a.job));
	assert_false(cfs_workers_cancel(w, &a.job));
	assert_false(cfs_workers_cancel(w, &first.job));
	assert_int_equal(cfs_workers_try_submit(w, &b.job), 0);
	sem_post(&may_end);
	cfs_workers_destroy(w);
	assert_int_equal(ran, 2);
	assert_int_equal(order[1], 2);
}

static void threads_start_on_demand(void **state)
{
	struct job jobs[3] = {{{blocking}}, {{blocking}}, {{recording}, 7}};
	struct cfs_workers_stats stats;
	struct cfs_workers *w;

	assert_int_equal(cfs_workers_create("a-very-long-thread-name", 2, 10, &w), 0);
	cfs_workers_stats(w, &stats);
	assert_int_equal(stats.threads, 0);
	assert_int_equal(cfs_workers_submit(w, &jobs[0].job, 0), 0);
	assert_int_equal(cfs_workers_submit(w, &jobs[1].job, 0), 0);
	assert_int_equal(cfs_workers_submit(w, &jobs[2].job, 0), 0);
	wait_post(&started);
	wait_post(&started);
	cfs_workers_stats(w, &stats);
	assert_int_equal(stats.threads, 2);
	assert_int_equal(stats.queued, 1);
	sem_post(&may_end);
	sem_post(&may_end);
	cfs_workers_destroy(w);
	assert_int_equal(ran, 3);
}

static unsigned busy(struct cfs_workers *w)
{
	struct cfs_workers_stats stats;

	cfs_workers_stats(w, &stats);
	return stats.busy;
}

/* Otherwise transfers of a slow link take each other's time until their deadlines. */
static void maximum_changes(void **state)
{
	struct job jobs[7];
	struct cfs_workers *w;
	int i;

	assert_int_equal(cfs_workers_create("t", 3, 10, &w), 0);
	for (i = 0; i < 7; i++) {
		jobs[i] = (struct job){{blocking}, i};
		assert_int_equal(cfs_workers_submit(w, &jobs[i].job, 0), 0);
	}
	for (i = 0; i < 3; i++)
		wait_post(&started);
	cfs_workers_set_max(w, 1);
	sem_post(&may_end);
	sem_post(&may_end);
	WAIT_FOR(ran == 2 && busy(w) == 1);
	/* A worker that is given up does not count. */
	cfs_workers_replace(w);
	wait_post(&started);
	assert_int_equal(busy(w), 2);
	cfs_workers_set_max(w, 100);
	wait_post(&started);
	wait_post(&started);
	assert_int_equal(busy(w), 4);
	assert_int_not_equal(sem_trywait(&started), 0);
	cfs_workers_set_max(w, 0);
	for (i = 0; i < 5; i++)
		sem_post(&may_end);
	cfs_workers_destroy(w);
	assert_int_equal(ran, 7);
}

struct submitter {
	struct cfs_workers *w;
	struct job job;
	int result;
};

static void *submit_patiently(void *arg)
{
	struct submitter *s = arg;

	s->result = cfs_workers_submit(s->w, &s->job.job, soon());
	return NULL;
}

static void waiting_submitter_gets_in(void **state)
{
	struct job first = {{blocking}}, second = {{recording}, 1};
	struct submitter s = {.job = {{recording}, 2}, .result = 1};
	struct cfs_workers *w;
	pthread_t t;

	assert_int_equal(cfs_workers_create("t", 1, 1, &w), 0);
	s.w = w;
	assert_int_equal(cfs_workers_submit(w, &first.job, 0), 0);
	wait_post(&started);
	assert_int_equal(cfs_workers_submit(w, &second.job, 0), 0);
	pthread_create(&t, NULL, submit_patiently, &s);
	sem_post(&may_end);
	pthread_join(t, NULL);
	assert_int_equal(s.result, 0);
	cfs_workers_destroy(w);
	assert_int_equal(ran, 3);
}

static struct cfs_workers *own_pool;
static struct job refused_job;
static _Atomic int refused_result;

/* Ends only when the pool refuses, which it does from the moment destroy was called. */
static void resubmitting(struct cfs_job *job)
{
	int r;

	sem_post(&started);
	while ((r = cfs_workers_try_submit(own_pool, &refused_job.job)) == 0)
		cfs_workers_cancel(own_pool, &refused_job.job);
	refused_result = r;
}

static void stopping_pool_refuses(void **state)
{
	struct job job = {{resubmitting}};

	refused_job = (struct job){{recording}, 1};
	assert_int_equal(cfs_workers_create("t", 1, 4, &own_pool), 0);
	assert_int_equal(cfs_workers_submit(own_pool, &job.job, 0), 0);
	wait_post(&started);
	cfs_workers_destroy(own_pool);
	assert_int_equal(refused_result, -ESHUTDOWN);
	assert_int_equal(ran, 0);
}

static void *destroy_pool(void *arg)
{
	cfs_workers_destroy(arg);
	sem_post(&ended);
	return NULL;
}

/*
 * An unmount cancels queued uploads at their deadline. A worker that the lowered maximum keeps from
 * running them must notice that the queue is empty, or the unmount never ends.
 */
static void cancelled_job_does_not_hold_up_destroy(void **state)
{
	struct job jobs[3] = {{{blocking}}, {{blocking}}, {{blocking}}}, last = {{recording}, 1};
	struct job probe = {{recording}, 2};
	struct cfs_workers *w;
	pthread_t t;
	int i;

	assert_int_equal(cfs_workers_create("t", 2, 4, &w), 0);
	for (i = 0; i < 2; i++) {
		assert_int_equal(cfs_workers_submit(w, &jobs[i].job, 0), 0);
		wait_post(&started);
	}
	sem_post(&may_end);
	sem_post(&may_end);
	WAIT_FOR(ran == 2 && busy(w) == 0);
	cfs_workers_set_max(w, 1);
	assert_int_equal(cfs_workers_submit(w, &jobs[2].job, 0), 0);
	wait_post(&started);
	assert_int_equal(cfs_workers_submit(w, &last.job, 0), 0);
	pthread_create(&t, NULL, destroy_pool, w);
	/* Each round gives the idle worker the time to see that there is a job, and to wait again. */
	for (i = 0; i < 1000 || cfs_workers_try_submit(w, &probe.job) != -ESHUTDOWN; i++) {
		cfs_workers_cancel(w, &probe.job);
		sched_yield();
	}
	assert_true(cfs_workers_cancel(w, &last.job));
	sem_post(&may_end);
	wait_post(&ended);
	pthread_join(t, NULL);
	assert_int_equal(ran, 3);
}

static void check_mask(struct cfs_job *job)
{
	sigset_t mask;

	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	ran = sigismember(&mask, SIGTERM) && sigismember(&mask, SIGHUP);
}

/* SIGTERM must reach the main thread, which unmounts. */
static void signals_are_blocked(void **state)
{
	struct job job = {{check_mask}};
	struct cfs_workers *w;
	sigset_t mask;

	assert_int_equal(cfs_workers_create("t", 1, 1, &w), 0);
	assert_int_equal(cfs_workers_submit(w, &job.job, 0), 0);
	cfs_workers_destroy(w);
	assert_int_equal(ran, 1);
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	assert_false(sigismember(&mask, SIGTERM));
}

static void never_started_pool(void **state)
{
	struct cfs_workers *w;

	assert_int_equal(cfs_workers_create("t", 4, 4, &w), 0);
	cfs_workers_destroy(w);
	assert_int_equal(cfs_workers_create("t", 0, 4, &w), -EINVAL);
	cfs_workers_destroy(NULL);
}

static void tick(void *arg)
{
	(*(_Atomic int *)arg)++;
	sem_post(&started);
}

static void ticker_ticks(void **state)
{
	_Atomic int n = 0;
	struct cfs_ticker *t;

	assert_int_equal(cfs_ticker_start("tick", 1, tick, &n, &t), 0);
	wait_post(&started);
	wait_post(&started);
	cfs_ticker_stop(t);
	assert_true(n >= 2);
}

static void ticker_kick(void **state)
{
	_Atomic int n = 0;
	struct cfs_ticker *t;

	assert_int_equal(cfs_ticker_start("tick", 3600000, tick, &n, &t), 0);
	cfs_ticker_kick(t);
	wait_post(&started);
	cfs_ticker_stop(t);
	assert_int_equal(n, 1);
	cfs_ticker_stop(NULL);
}

static void backoff_keeps_the_deadline(void **state)
{
	cfs_deadline_t deadline = cfs_deadline_in(30);
	unsigned attempt = 0;

	while (cfs_backoff(attempt, 1, 1000000, deadline))
		attempt++;
	assert_true(cfs_deadline_passed(deadline));
	assert_true(cfs_now_ms() - deadline < LONG_MS);
	assert_false(cfs_backoff(0, 1000000, 1000000, 0));
	assert_true(cfs_backoff(200, 1, 2, soon()));
	assert_true(cfs_backoff(0, 0, 0, UINT64_MAX));
}

static void *draw(void *arg)
{
	*(uint64_t *)arg = cfs_random_u64();
	return NULL;
}

/* Session and slice ids of two threads must not run in step. */
static void random_differs_between_threads(void **state)
{
	pthread_t a, b;
	uint64_t x, y;

	pthread_create(&a, NULL, draw, &x);
	pthread_create(&b, NULL, draw, &y);
	pthread_join(a, NULL);
	pthread_join(b, NULL);
	assert_true(x != y);
	assert_true(cfs_random_u64() != cfs_random_u64());
}

#define WORKERS_TEST(f) cmocka_unit_test_setup(f, set_up)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WORKERS_TEST(runs_in_order_and_all_before_destroy),
		WORKERS_TEST(drain_waits_for_the_last_job),
		WORKERS_TEST(queue_is_bounded),
		WORKERS_TEST(threads_start_on_demand),
		WORKERS_TEST(maximum_changes),
		WORKERS_TEST(waiting_submitter_gets_in),
		WORKERS_TEST(stopping_pool_refuses),
		WORKERS_TEST(cancelled_job_does_not_hold_up_destroy),
		WORKERS_TEST(signals_are_blocked),
		WORKERS_TEST(never_started_pool),
		WORKERS_TEST(ticker_ticks),
		WORKERS_TEST(ticker_kick),
		cmocka_unit_test(backoff_keeps_the_deadline),
		cmocka_unit_test(random_differs_between_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
