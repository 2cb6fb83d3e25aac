/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The peer transport on a machine that is so busy that its own threads are late. When these fail, a
 * healthy peer is left out, or its requests fail, for delays of the member that asks.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "peer_fixture.h"
#include "transport/peer/transport-internal.h"

/* ---- the loop's thread at another work ---- */

struct task {
	struct cfs_work work; /* first */
	struct cfs_transport *t;
	struct cfs_peer *p;
	uint64_t from_ms, until_ms;
	sem_t begun, ended;
	bool fresh;
};

static void task_run(struct task *k, struct cfs_transport *t, void (*fn)(struct cfs_work *w))
{
	k->work = (struct cfs_work){.fn = fn};
	k->t = t;
	sem_init(&k->begun, 0, 0);
	sem_init(&k->ended, 0, 0);
	cfs_loop_run(&t->loop, &k->work);
}

static void task_end(struct task *k)
{
	wait_post(&k->ended);
	sem_destroy(&k->begun);
	sem_destroy(&k->ended);
}

static void look_at_clock(struct cfs_work *w)
{
	struct task *k = (struct task *)w;

	k->fresh = k->t->loop.now_ms >= k->from_ms;
	sem_post(&k->ended);
}

static void open_another(struct cfs_work *w)
{
	struct task *k = (struct task *)w;

	cfs_peer_connect(k->p);
	sem_post(&k->ended);
}

/* As when the thread is not scheduled. */
static void stand_still(struct cfs_work *w)
{
	struct task *k = (struct task *)w;
	const struct timespec ms = {.tv_nsec = 1000000};

	sem_post(&k->begun);
	while (cfs_now_ms() < k->until_ms)
		nanosleep(&ms, NULL);
	sem_post(&k->ended);
}

/* As a thread in inline receive that ends a request while the loop is in its tick. */
static void tick_beside_answer(struct cfs_work *w)
{
	struct task *k = (struct task *)w;

	pthread_mutex_lock(&k->p->lock);
	k->p->conns[0]->active_ms = k->t->loop.now_ms + 1;
	pthread_mutex_unlock(&k->p->lock);
	cfs_scaling_tick(k->p);
	sem_post(&k->ended);
}

/* Events of an idle loop have the time at which they are handled. */
static void test_clock(void **state)
{
	struct cfs_transport *t = asker();
	struct task k = {0};

	(void)state;
	WAIT_FOR(atomic_load(&t->loop.idle));
	k.from_ms = cfs_now_ms() + 20;
	WAIT_FOR(cfs_now_ms() > k.from_ms);
	task_run(&k, t, look_at_clock);
	task_end(&k);
	assert_true(k.fresh);
	cfs_transport_destroy(t);
}

/* ---- deadlines of the loop ---- */

static unsigned count_conns(struct cfs_peer *p)
{
	unsigned n;

	pthread_mutex_lock(&p->lock);
	n = p->n_conns;
	pthread_mutex_unlock(&p->lock);
	return n;
}

/* The owner has had no time to answer, as far as this member can tell. */
static void test_late_handshake(void **state)
{
	struct cfs_transport_conf conf = {.connect_timeout_ms = 1500, .transport = CFS_PEER_TCP};
	struct cfs_transport *t = asker_conf(&conf);
	struct task asks = {0}, answers = {0};
	struct cfs_peer_stats st;
	struct owner o;
	struct cfs_peer *p = owner_meet(t, &o, BLOCK);
	struct many m = {0};
	sem_t done;

	(void)state;
	sem_init(&done, 0, 0);
	m.done = &done;
	answers.until_ms = cfs_now_ms() + 2500;
	task_run(&answers, o.t, stand_still);
	wait_post(&answers.begun);
	assert_int_equal(start_one(p, &m, &o, 0, 4096, LONG_MS), 0);
	WAIT_FOR(count_conns(p) == 1);
	asks.until_ms = answers.until_ms;
	task_run(&asks, t, stand_still);
	wait_post(&done);
	task_end(&asks);
	task_end(&answers);
	assert_int_equal(m.err, 0);
	cfs_transport_stats(t, &st, NULL);
	assert_int_equal(st.errors[CFS_PEER_E_CONNECT], 0);
	free(m.dst);
	sem_destroy(&done);
	owner_part(p, t, &o);
}

/* The request ends in time, and nobody is blamed. */
static void test_late_request(void **state)
{
	struct cfs_transport_conf conf = {.failures = 1};
	struct cfs_transport *t = asker_conf(&conf);
	struct task k = {0};
	struct owner o;
	struct cfs_peer *p = owner_meet(t, &o, BLOCK);
	struct many m = {0};
	uint8_t dst[4096];
	sem_t done;

	(void)state;
	sem_init(&done, 0, 0);
	m.done = &done;
	assert_int_equal(ask(p, &o, 0, sizeof(dst), dst), sizeof(dst));
	o.how = NEVER;
	assert_int_equal(start_one(p, &m, &o, 0, 4096, 1000), 0);
	WAIT_FOR(o.n_held == 1);
	k.until_ms = m.get.deadline + 1;
	task_run(&k, t, stand_still);
	wait_post(&done);
	task_end(&k);
	assert_int_equal(m.err, -ETIMEDOUT);
	assert_int_equal(state_of(p), CFS_PEER_CLOSED_CIRCUIT);
	/* It is asked again, to see whether the owner is there. */
	WAIT_FOR(o.n_held == 2);
	give(&o, o.held[0]);
	give(&o, o.held[1]);
	free(m.dst);
	sem_destroy(&done);
	owner_part(p, t, &o);
}

/* ---- the end of a connection that is not needed ---- */

static struct {
	struct cfs_link_ops ops;
	_Atomic bool armed;
	struct cfs_peer *p;
	struct owner *o;
	struct many m;
	int started;
} late;

static void *start_late(void *arg)
{
	late.started = start_one(late.p, &late.m, late.o, 0, 4096, LONG_MS);
	return arg;
}

/* Another thread starts a request while the loop closes an idle connection. */
static void cut(struct cfs_link *l)
{
	pthread_t thread;

	if (atomic_exchange(&late.armed, false)) {
		assert_int_equal(pthread_create(&thread, NULL, start_late, NULL), 0);
		pthread_join(thread, NULL);
	}
	cfs_link_tcp.cut(l);
}

static void test_idle_close(void **state)
{
	struct cfs_transport_conf conf = {.transport = CFS_PEER_TCP};
	struct cfs_transport *t = asker_conf(&conf);
	struct cfs_peer_stats st;
	struct owner o;
	struct cfs_peer *p;
	struct task k = {0};
	struct many first = {0};
	uint8_t dst[4096];
	sem_t done;

	(void)state;
	late.ops = cfs_link_tcp;
	late.ops.cut = cut;
	t->link = &late.ops;
	p = owner_meet(t, &o, BLOCK);
	late.p = k.p = p;
	late.o = &o;
	sem_init(&done, 0, 0);
	first.done = late.m.done = &done;
	assert_int_equal(ask(p, &o, 0, sizeof(dst), dst), sizeof(dst));
	task_run(&k, t, open_another);
	task_end(&k);
	WAIT_FOR((cfs_transport_stats(t, &st, NULL), st.conns == 2));
	/* The first one is busy, so that the next request goes to the other. */
	o.how = NEVER;
	assert_int_equal(start_one(p, &first, &o, 0, 4096, LONG_MS), 0);
	WAIT_FOR(o.n_held == 1);
	late.armed = true;
	pthread_mutex_lock(&p->lock);
	p->conns[1]->active_ms = 0; /* idle for long */
	pthread_mutex_unlock(&p->lock);
	WAIT_FOR((cfs_transport_stats(t, &st, NULL), !late.armed && st.conns == 1));
	assert_int_equal(late.started, 0);
	WAIT_FOR(o.n_held == 2);
	give(&o, o.held[0]);
	give(&o, o.held[1]);
	wait_post(&done);
	wait_post(&done);
	assert_int_equal(first.err, 0);
	assert_int_equal(late.m.err, 0);
	cfs_transport_stats(t, &st, NULL);
	assert_int_equal(st.errors[CFS_PEER_E_LOST], 0);
	free(first.dst);
	free(late.m.dst);
	sem_destroy(&done);
	owner_part(p, t, &o);
}

/* The loop's clock may be behind the last answer. */
static void test_active_connection_stays(void **state)
{
	struct cfs_transport *t = asker();
	struct owner o;
	struct cfs_peer *p = owner_meet(t, &o, BLOCK);
	struct task k = {.p = p};
	struct cfs_peer_stats st;
	uint8_t dst[4096];

	(void)state;
	assert_int_equal(ask(p, &o, 0, sizeof(dst), dst), sizeof(dst));
	task_run(&k, t, open_another);
	task_end(&k);
	WAIT_FOR((cfs_transport_stats(t, &st, NULL), st.conns == 2));
	task_run(&k, t, tick_beside_answer);
	task_end(&k);
	cfs_transport_stats(t, &st, NULL);
	assert_int_equal(st.conns, 2);
	owner_part(p, t, &o);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_clock),
		cmocka_unit_test(test_late_handshake),
		cmocka_unit_test(test_late_request),
		cmocka_unit_test(test_idle_close),
		cmocka_unit_test(test_active_connection_stays),
	};

	cfs_log_init(CFS_LOG_STDERR, CFS_LOG_ERR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
