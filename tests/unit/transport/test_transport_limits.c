/* SPDX-License-Identifier: Apache-2.0 */
/* How much members take of an owner that serves many: connections, requests and memory. */
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "peer_fixture.h"

static void test_limits(void **state)
{
	struct cfs_transport_conf conf = {.request_rate = 50, .max_unauthenticated_per_addr = 4};
	struct cfs_transport *t = asker();
	struct cfs_peer_stats st;
	struct owner o;
	struct cfs_peer *p;
	uint8_t dst[4096];
	unsigned i, busy = 0;
	int fds[12];

	(void)state;
	owner_open_conf(&o, BLOCK, &conf);
	p = peer_at(t, &o.addr, o.addr_len);
	for (i = 0; i < 200; i++) {
		ssize_t n = ask(p, &o, 0, 4096, dst);

		assert_true(n == 4096 || n == -EBUSY);
		busy += n == -EBUSY;
	}
	assert_true(busy > 100);
	for (i = 0; i < 12; i++) {
		fds[i] = socket(AF_INET, SOCK_STREAM, 0);
		assert_int_equal(connect(fds[i], (void *)&o.addr, o.addr_len), 0);
	}
	/* Those beyond the limit are cut, and whoever is inside goes on. */
	for (i = 0, busy = 0; i < 12; i++) {
		struct pollfd pfd = {.fd = fds[i], .events = POLLIN};

		busy += poll(&pfd, 1, i < 4 ? 0 : LONG_MS) == 1;
	}
	assert_int_equal(busy, 8);
	cfs_transport_stats(o.t, NULL, &st);
	assert_int_equal(st.conns, 1);
	for (i = 0; i < 12; i++)
		close(fds[i]);
	owner_part(p, t, &o);
}

/* A peer that asks for much and takes nothing is cut off, and delays no other peer. */
static void test_receivers_that_take_nothing(void **state)
{
	enum { N = 80 }; /* more than there are pipes */
	struct cfs_transport_conf conf = {.stall_timeout_ms = 1500};
	struct cfs_transport *t = asker();
	uint8_t buf[256], *dst = malloc(BLOCK);
	struct cfs_peer_stats st;
	struct owner o;
	struct cfs_peer *p;
	int fds[N], i, k, r;

	(void)state;
	owner_open_conf(&o, BLOCK, &conf);
	for (i = 0; i < N; i++) {
		fds[i] = raw_client(&o, &keys, &r);
		assert_int_equal(r, 1);
		for (k = 0; k < 4; k++)
			raw_send(fds[i], buf, get_frame(buf, (uint64_t)k + 1, BLOCK, 0, BLOCK));
	}
	p = peer_at(t, &o.addr, o.addr_len);
	for (i = 0; i < 5; i++) {
		assert_int_equal(ask(p, &o, 0, BLOCK, dst), BLOCK);
		assert_memory_equal(dst, o.data, BLOCK);
	}
	do {
		cfs_transport_stats(o.t, NULL, &st);
		poll(NULL, 0, 10);
	} while (st.conns > 1);
	assert_int_equal(ask(p, &o, 0, BLOCK, dst), BLOCK);
	WAIT_FOR(o.releases == o.gets);
	for (i = 0; i < N; i++)
		close(fds[i]);
	owner_part(p, t, &o);
	free(dst);
}

/* Asks for small answers on some connections and takes none of them. */
static void take_nothing(struct cfs_transport_conf *conf, uint64_t may_use)
{
	enum { N = 8, REQUESTS = 500, LEN = 60 << 10 };
	struct cfs_transport *t = asker();
	uint8_t buf[256], *dst = malloc(BLOCK);
	struct mallinfo2 before, now;
	struct owner o;
	struct cfs_peer *p;
	int fds[N], i, k, r;

	owner_open_conf(&o, BLOCK, conf);
	p = peer_at(t, &o.addr, o.addr_len);
	assert_int_equal(ask(p, &o, 0, BLOCK, dst), BLOCK);
	before = mallinfo2();
	for (i = 0; i < N; i++) {
		fds[i] = raw_client(&o, &keys, &r);
		assert_int_equal(r, 1);
		for (k = 0; k < REQUESTS; k++)
			raw_send(fds[i], buf, get_frame(buf, (uint64_t)k + 1, BLOCK, 4096, LEN));
	}
	WAIT_FOR(o.gets >= N * REQUESTS);
	assert_int_equal(ask(p, &o, 0, BLOCK, dst), BLOCK);
	WAIT_FOR((now = mallinfo2(),
		  now.uordblks + now.hblkhd <= before.uordblks + before.hblkhd + may_use));
	assert_int_equal(ask(p, &o, 0, LEN, dst), LEN);
	assert_memory_equal(dst, o.data, LEN);
	for (i = 0; i < N; i++)
		close(fds[i]);
	WAIT_FOR(o.releases == o.gets);
	cfs_peer_close(p);
	cfs_transport_destroy(t);
	owner_close(&o);
	free(dst);
}

/* A peer that takes nothing costs little memory: of small answers, which are copied, few wait. */
static void test_small_answers_nobody_takes(void **state)
{
	struct cfs_transport_conf conf = {0};

	(void)state;
	take_nothing(&conf, 8 * (2u << 20));
}

/* However many they are; half a KiB for each request remains. */
static void test_small_answers_of_all_connections(void **state)
{
	struct cfs_transport_conf conf = {.copied_bytes = 1u << 20};

	(void)state;
	take_nothing(&conf, 4u << 20);
}

/* --- many connections --- */

/* However many connections they come on, only so many requests are under way. */
static void test_requests_of_all_connections(void **state)
{
	enum { N = 8, MAX = 32, EACH = 10 };
	struct cfs_transport_conf conf = {.inflight = MAX};
	struct cfs_transport *t = asker();
	struct cfs_peer_stats st;
	struct cfs_peer *p;
	struct owner o;
	uint8_t buf[256], dst[4096];
	int fds[N], i, k, r;

	(void)state;
	owner_open_conf(&o, BLOCK, &conf);
	p = peer_at(t, &o.addr, o.addr_len);
	o.how = NEVER;
	for (i = 0; i < N; i++) {
		fds[i] = raw_client(&o, &keys, &r);
		assert_int_equal(r, 1);
		for (k = 0; k < EACH; k++)
			raw_send(fds[i], buf, get_frame(buf, (uint64_t)k + 1, BLOCK, 0, 4096));
	}
	WAIT_FOR((cfs_transport_stats(o.t, NULL, &st),
		  st.errors[CFS_PEER_E_BUSY] == N * EACH - MAX && st.inflight == MAX));
	assert_int_equal(ask(p, &o, 0, 4096, dst), -EBUSY);
	assert_int_equal(o.n_held, MAX);
	o.how = FROM_FILE;
	for (i = 0; i < MAX; i++)
		give(&o, o.held[i]);
	WAIT_FOR(ask(p, &o, 0, 4096, dst) == 4096);
	for (i = 0; i < N; i++)
		close(fds[i]);
	owner_part(p, t, &o);
}

static void test_idle_connections(void **state)
{
	enum { N = 1000 };
	struct cfs_transport_conf conf = {0};
	struct cfs_transport *t = asker();
	struct cfs_peer_stats st;
	struct owner o;
	struct cfs_peer *p;
	struct mallinfo2 before, after;
	uint8_t dst[4096];
	int *fds = calloc(N, sizeof(*fds)), i, r;

	(void)state;
	owner_open_conf(&o, BLOCK, &conf);
	p = peer_at(t, &o.addr, o.addr_len);
	assert_int_equal(ask(p, &o, 0, 4096, dst), 4096);
	before = mallinfo2();
	for (i = 0; i < N; i++) {
		fds[i] = raw_client(&o, &keys, &r);
		assert_int_equal(r, 1);
	}
	cfs_transport_stats(o.t, NULL, &st);
	assert_int_equal(st.conns, N + 1);
	after = mallinfo2();
	assert_true((after.uordblks - before.uordblks) / N <= 4096);
	assert_int_equal(ask(p, &o, 0, 4096, dst), 4096);
	for (i = 0; i < N; i++)
		close(fds[i]);
	WAIT_FOR((cfs_transport_stats(o.t, NULL, &st), st.conns == 1));
	owner_part(p, t, &o);
	free(fds);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_receivers_that_take_nothing),
		cmocka_unit_test(test_small_answers_nobody_takes),
		cmocka_unit_test(test_small_answers_of_all_connections),
		cmocka_unit_test(test_requests_of_all_connections),
		cmocka_unit_test(test_idle_connections),
	};

	cfs_log_init(CFS_LOG_STDERR, CFS_LOG_ERR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
