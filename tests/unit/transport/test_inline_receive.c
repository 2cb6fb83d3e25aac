/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inline receive by the thread that waits, over real sockets: as they are, and with TLS.
 * With any event meanwhile, the waiting thread gets the right bytes or an error in time, and so
 * does every other request on the same connection.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "peer_fixture.h"

#define INLINE_MAX (128u << 10) /* of an answer that is received inline */

static struct cfs_peer_stats stats_of(struct cfs_peer *p)
{
	enum cfs_peer_state state;
	struct cfs_peer_stats st;

	cfs_peer_stats(p, &st, &state);
	return st;
}

/* One connection only. */
static struct cfs_transport *narrow_asker(void)
{
	struct cfs_transport_conf conf = {.max_conns_per_peer = 1};

	return asker_conf(&conf);
}

static void ask_right(struct cfs_peer *p, struct owner *o, uint32_t off, uint32_t len)
{
	uint8_t *dst = calloc(1, len);

	assert_int_equal(ask(p, o, off, len, dst), len);
	assert_memory_equal(dst, o->data + off, len);
	free(dst);
}

/* Until an answer has been received by this thread: the next one will be. */
static void take_parked(struct cfs_peer *p, struct owner *o)
{
	uint64_t before = stats_of(p).direct;

	WAIT_FOR((ask_right(p, o, 0, 4096), stats_of(p).direct > before));
}

struct asking {
	struct cfs_peer *p;
	struct owner *o;
	uint32_t off, len;
	uint64_t timeout_ms;
	uint8_t dst[4096];
	ssize_t got;
	pthread_t thread;
};

static void *run_asking(void *arg)
{
	struct asking *a = arg;

	a->got = ask_within(a->p, a->o, a->off, a->len, a->dst, a->timeout_ms);
	return NULL;
}

/* In a thread that receives inline, until the owner is asked to give(). */
static void start_asking(struct asking *a, struct cfs_peer *p, struct owner *o, uint64_t timeout_ms)
{
	unsigned before = o->n_held;

	*a = (struct asking){
		.p = p, .o = o, .off = 12345, .len = sizeof(a->dst), .timeout_ms = timeout_ms};
	take_parked(p, o);
	o->how = NEVER;
	assert_int_equal(pthread_create(&a->thread, NULL, run_asking, a), 0);
	WAIT_FOR(o->n_held == before + 1);
	o->how = FROM_FILE;
}

static void end_asking(struct asking *a, ssize_t want)
{
	pthread_join(a->thread, NULL);
	assert_int_equal(a->got, want);
	if (want > 0)
		assert_memory_equal(a->dst, a->o->data + a->off, a->len);
}

/* All but the first, and those after one that is too long for it. */
static void test_every_length(void **state)
{
	static const uint32_t lens[] = {1,     31,    4096,	      16383,
					16384, 65535, INLINE_MAX - 1, INLINE_MAX};
	struct cfs_transport *t = narrow_asker();
	struct owner o;
	struct cfs_peer *p = owner_meet(t, &o, BLOCK);
	struct cfs_peer_stats before, after;
	unsigned i, k;

	(void)state;
	for (k = 0; k < 20; k++) {
		take_parked(p, &o);
		before = stats_of(p);
		for (i = 0; i < sizeof(lens) / sizeof(lens[0]); i++)
			ask_right(p, &o, 1000 * k, lens[i]);
		after = stats_of(p);
		assert_int_equal(after.requests - before.requests, i);
		assert_int_equal(after.inflight + after.inflight_bytes, 0);
		if (after.direct - before.direct == i)
			break; /* otherwise this thread was away for longer than a tick */
	}
	assert_true(k < 20);
	ask_right(p, &o, 7, INLINE_MAX + 1);
	assert_int_equal(stats_of(p).direct, after.direct);
	take_parked(p, &o);
	owner_part(p, t, &o);
}

/* Other requests on the same connection do not wait for the answer of the thread. */
static void test_shared(void **state)
{
	static const uint32_t lens[] = {512, 4096, INLINE_MAX, BLOCK};
	struct cfs_transport *t = narrow_asker();
	struct owner o;
	struct cfs_peer *p = owner_meet(t, &o, BLOCK);
	struct asking a;
	struct many m = {0};
	sem_t done;
	unsigned i;

	(void)state;
	sem_init(&done, 0, 0);
	m.done = &done;
	for (i = 0; i < 4; i++) {
		start_asking(&a, p, &o, LONG_MS);
		assert_int_equal(start_one(p, &m, &o, 0, lens[i], LONG_MS), 0);
		wait_post(&done);
		assert_int_equal(m.err, 0);
		assert_memory_equal(m.dst, o.data, lens[i]);
		free(m.dst);
		give(&o, o.held[i]);
		end_asking(&a, sizeof(a.dst));
	}
	sem_destroy(&done);
	owner_part(p, t, &o);
}

/* Threads with and without others that ask by the way. */
static void *run_reading(void *arg)
{
	struct asking *a = arg;
	unsigned i;

	for (i = 0; i < 300; i++) {
		uint32_t len = 1 + (uint32_t)(cfs_random_u64() % sizeof(a->dst));
		uint32_t off = (uint32_t)(cfs_random_u64() % (a->o->len - len));

		a->got = ask(a->p, a->o, off, len, a->dst);
		if (a->got != (ssize_t)len || memcmp(a->dst, a->o->data + off, len) != 0)
			return a;
	}
	return NULL;
}

static void test_many(void **state)
{
	struct cfs_transport *t = narrow_asker();
	struct owner o;
	struct cfs_peer *p = owner_meet(t, &o, BLOCK);
	struct asking a[3];
	sem_t done;
	unsigned i, k;
	void *bad;

	(void)state;
	sem_init(&done, 0, 0);
	for (k = 1; k <= 3; k++) {
		for (i = 0; i < k; i++) {
			a[i] = (struct asking){.p = p, .o = &o};
			assert_int_equal(pthread_create(&a[i].thread, NULL, run_reading, &a[i]), 0);
		}
		for (i = 0; i < 100; i++) {
			struct many m = {.done = &done};

			assert_int_equal(start_one(p, &m, &o, i, 3000, LONG_MS), 0);
			wait_post(&done);
			assert_int_equal(m.err, 0);
			assert_memory_equal(m.dst, o.data + i, 3000);
			free(m.dst);
		}
		for (i = 0; i < k; i++) {
			pthread_join(a[i].thread, &bad);
			assert_null(bad);
		}
	}
	assert_true(stats_of(p).direct > 0);
	sem_destroy(&done);
	owner_part(p, t, &o);
}

/* The late answer is nobody's; the connection is used again. */
static void test_deadline(void **state)
{
	struct cfs_transport *t = narrow_asker();
	struct owner o;
	struct cfs_peer *p = owner_meet(t, &o, BLOCK);
	uint64_t began;
	struct asking a;

	(void)state;
	start_asking(&a, p, &o, 100);
	began = cfs_now_ms();
	end_asking(&a, -ETIMEDOUT);
	assert_true(cfs_now_ms() - began < LONG_MS / 4);
	assert_int_equal(stats_of(p).errors[CFS_PEER_E_TIMEOUT], 1);
	give(&o, o.held[0]);
	take_parked(p, &o);
	assert_int_equal(stats_of(p).errors[CFS_PEER_E_LOST], 0);
	owner_part(p, t, &o);
}

/* An answer of another kind than the one that is waited for. */
static void test_miss(void **state)
{
	struct cfs_peer_block b = {.slice = 404, .len = 4096};
	struct cfs_transport *t = narrow_asker();
	struct owner o;
	struct cfs_peer *p = owner_meet(t, &o, BLOCK);
	uint8_t dst[4096];
	struct iovec iov = {dst, sizeof(dst)};

	(void)state;
	take_parked(p, &o);
	assert_int_equal(cfs_peer_read(p, &b, 0, sizeof(dst), 0, &iov, 1, soon()), -ENOENT);
	assert_int_equal(stats_of(p).misses, 1);
	take_parked(p, &o);
	owner_part(p, t, &o);
}

static void test_peer_is_closed(void **state)
{
	struct cfs_transport *t = narrow_asker();
	struct owner o;
	struct cfs_peer *p = owner_meet(t, &o, BLOCK);
	struct asking a;

	(void)state;
	start_asking(&a, p, &o, LONG_MS);
	cfs_peer_close(p);
	end_asking(&a, -ESHUTDOWN);
	give(&o, o.held[0]);
	cfs_transport_destroy(t);
	owner_close(&o);
}

static void *run_close(void *arg)
{
	owner_close(arg);
	return NULL;
}

/* While its answer is waited for, and while nobody uses the connection, which is seen all the same.
 */
static void test_owner_ends(void **state)
{
	struct cfs_transport *t = narrow_asker();
	struct owner o, idle;
	struct cfs_peer *p = owner_meet(t, &o, BLOCK), *q;
	pthread_t closing;
	struct asking a;

	(void)state;
	start_asking(&a, p, &o, LONG_MS);
	assert_int_equal(pthread_create(&closing, NULL, run_close, &o), 0);
	end_asking(&a, -ECONNRESET);
	give(&o, o.held[0]);
	pthread_join(closing, NULL);
	cfs_peer_close(p);

	q = owner_meet(t, &idle, BLOCK);
	take_parked(q, &idle);
	owner_close(&idle);
	WAIT_FOR(stats_of(q).conns == 0);
	assert_int_equal(stats_of(q).errors[CFS_PEER_E_LOST], 0);
	cfs_peer_close(q);
	cfs_transport_destroy(t);
}

static int use_tls(void **state)
{
	(void)state;
	with_tls = true;
	return 0;
}

struct brief {
	struct cfs_peer_get get; /* first */
	struct iovec iov;
	uint8_t dst[4096];
	sem_t ended;
	int err;
};

static void brief_ended(struct cfs_peer_get *get, int err)
{
	struct brief *b = (struct brief *)get;

	b->err = err;
	sem_post(&b->ended);
}

/*
 * A peer that does not answer in time what will be asked again is not left out: a read of 0.1 s
 * would be enough to lose an owner for seconds.
 */
static void test_brief_requests_are_no_failures(void **state)
{
	struct cfs_transport *t = narrow_asker();
	struct owner o;
	struct cfs_peer *p = owner_meet(t, &o, BLOCK);
	struct brief b;
	unsigned i;

	(void)state;
	ask_right(p, &o, 0, 4096);
	o.how = NEVER;
	for (i = 0; i < 10; i++) {
		b = (struct brief){
			.get = {.block = {.slice = slice_of(&o), .len = o.len},
				.len = sizeof(b.dst),
				.dst = &b.iov,
				.n_dst = 1,
				.deadline = cfs_deadline_in(20),
				.brief = true,
				.done = brief_ended},
			.iov = {.iov_base = b.dst, .iov_len = sizeof(b.dst)},
		};
		sem_init(&b.ended, 0, 0);
		assert_int_equal(cfs_peer_start(p, &b.get), 0);
		wait_post(&b.ended);
		sem_destroy(&b.ended);
		assert_int_equal(b.err, -ECANCELED);
		assert_int_equal(state_of(p), CFS_PEER_CLOSED_CIRCUIT);
	}
	WAIT_FOR(o.n_held == 10);
	o.how = FROM_FILE;
	ask_right(p, &o, 0, 4096);
	for (i = 0; i < 10; i++)
		give(&o, o.held[i]);
	owner_part(p, t, &o);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_length),
		cmocka_unit_test(test_shared),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_deadline),
		cmocka_unit_test(test_miss),
		cmocka_unit_test(test_peer_is_closed),
		cmocka_unit_test(test_owner_ends),
		cmocka_unit_test(test_brief_requests_are_no_failures),
	};

	cfs_log_init(CFS_LOG_STDERR, CFS_LOG_ERR);
	return cmocka_run_group_tests_name("plain", tests, NULL, NULL) +
	       cmocka_run_group_tests_name("tls", tests, use_tls, NULL);
}
