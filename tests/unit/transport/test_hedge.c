/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests that are late. When these fail a read waits for a member that does not answer although
 * object storage would, a block is fetched twice although its owner is at it, or a reader gets
 * memory that somebody still writes to.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "peer_fixture.h"
#include "transport/group/hedge.h"

#define LEN	    65536
#define PATIENCE_MS 2000 /* several times the period of WORKING */

/* ---- how long a peer takes ---- */

static void test_late(void **state)
{
	struct cfs_latency p = {0};
	unsigned i;

	assert_int_equal(cfs_latency_late_ms(&p, 2000), 500);
	for (i = 0; i < 96; i++)
		cfs_latency_note(&p, 30 * 1000000);
	for (i = 0; i < 4; i++)
		cfs_latency_note(&p, 5000 * 1000000ull);
	/* 30 ms is below 2^15 us. */
	assert_int_equal(cfs_latency_late_ms(&p, 2000), 65);
	assert_int_equal(cfs_latency_late_ms(&p, 80), 40);
	/* One that becomes slow is soon known as slow, one that becomes fast as fast. */
	for (i = 0; i < 1000; i++)
		cfs_latency_note(&p, 200 * 1000000);
	assert_int_equal(cfs_latency_late_ms(&p, 2000), 524);
	for (i = 0; i < 5000; i++)
		cfs_latency_note(&p, 100000);
	assert_int_equal(cfs_latency_late_ms(&p, 2000), CFS_HEDGE_MIN_MS);
}

static void test_credits(void **state)
{
	struct cfs_hedging h;
	unsigned i, taken = 0;

	cfs_hedging_init(&h, 2);
	for (i = 0; i < 10000; i++) {
		cfs_hedging_earn(&h);
		taken += cfs_hedging_take(&h);
	}
	assert_in_range(taken, 200, 200 + CFS_HEDGE_BURST);
	for (i = 0; i < 100000; i++)
		cfs_hedging_earn(&h);
	for (taken = 0; cfs_hedging_take(&h); taken++)
		;
	assert_int_equal(taken, CFS_HEDGE_BURST);
	/* Eight members have together what one has alone. */
	cfs_hedging_init(&h, 2);
	cfs_hedging_share(&h, 8);
	for (i = 0, taken = 0; i < 10000; i++) {
		cfs_hedging_earn(&h);
		taken += cfs_hedging_take(&h);
	}
	assert_in_range(taken, 200 / 8, (200 + CFS_HEDGE_BURST) / 8 + 1);
	cfs_hedging_share(&h, 10000);
	for (i = 0; i < 1000000; i++)
		cfs_hedging_earn(&h);
	assert_true(cfs_hedging_take(&h));
	cfs_hedging_init(&h, 0);
	cfs_hedging_earn(&h);
	assert_false(cfs_hedging_take(&h));
}

/* ---- an owner that holds answers back ---- */

enum manner { AT_ONCE, SILENT, FETCHING, HAS_IT, WORKING };

static struct {
	struct cfs_transport *t;
	struct cfs_peer_request *held[512];
	_Atomic unsigned n_held, n_probes;
	_Atomic int manner;
} owner;

static uint8_t bytes[LEN];

static void answer(struct cfs_peer_request *req)
{
	static const struct iovec all = {.iov_base = bytes, .iov_len = LEN};
	static const struct iovec first = {.iov_base = bytes, .iov_len = 1};

	cfs_peer_answer(req, &(struct cfs_peer_answer){
				     .fd = -1, .iov = req->len == 1 ? &first : &all, .n_iov = 1});
}

static void serve(void *arg, struct cfs_peer_request *req)
{
	bool probe = req->flags & CFS_PEER_ONLY_CACHED;

	owner.n_probes += probe;
	if (owner.manner == AT_ONCE || (owner.manner == HAS_IT && probe)) {
		answer(req);
	} else if (owner.manner == FETCHING && probe) {
		cfs_peer_answer(req, &(struct cfs_peer_answer){.err = -ENOENT, .fd = -1});
	} else {
		if (owner.manner == WORKING)
			cfs_peer_working(req, cfs_deadline_in(10 * LONG_MS));
		owner.held[owner.n_held] = req;
		owner.n_held++;
	}
}

static void give_all(void)
{
	unsigned i, n = owner.n_held;

	owner.n_held = 0;
	for (i = 0; i < n; i++)
		answer(owner.held[i]);
}

/* ---- one who asks it ---- */

static struct cfs_peer_serve_ops ops;
static struct cfs_transport *client;
static struct cfs_peer *peer;
static struct cfs_hedging hedging;
static struct cfs_latency latency;

enum other_way { HAS_BYTES, FAILS, LOSES, NO_ROOM };

static struct other {
	struct cfs_hedge base; /* first */
	enum other_way way;
	_Atomic unsigned runs;
} other;

static int fetch(struct cfs_hedge *h, bool (*settled)(void *arg), void *arg)
{
	struct other *o = (struct other *)h;

	o->runs++;
	if (o->way == LOSES) {
		give_all();
		WAIT_FOR(settled(arg));
	}
	if (o->way == NO_ROOM)
		return -EAGAIN;
	return o->way == HAS_BYTES ? 0 : -EIO;
}

static int set_up(void **state)
{
	struct sockaddr_in addr = loopback();
	struct cfs_transport_conf conf = {.member = SERVER,
					  .listen = (struct sockaddr *)&addr,
					  .listen_len = sizeof(addr),
					  .ops = &ops};
	struct sockaddr_storage at;
	socklen_t len;
	char err[256];
	unsigned i;

	memset(&owner, 0, sizeof(owner));
	ops = (struct cfs_peer_serve_ops){.get = serve};
	memset(&latency, 0, sizeof(latency));
	cfs_slow_init(&latency.slow, NULL, NULL);
	for (i = 0; i < LEN; i++)
		bytes[i] = (uint8_t)(i * 31 + (i >> 8));
	memcpy(conf.key, keys.key[0], sizeof(conf.key));
	assert_int_equal(cfs_transport_create(&conf, &owner.t, err), 0);
	cfs_transport_address(owner.t, &at, &len);
	client = asker();
	peer = peer_at(client, &at, len);
	cfs_hedging_init(&hedging, 2);
	other = (struct other){.base.fetch = fetch};
	return 0;
}

static int tear_down(void **state)
{
	cfs_peer_close(peer);
	give_all();
	assert_int_equal(cfs_transport_destroy(client), 0);
	assert_int_equal(cfs_transport_destroy(owner.t), 0);
	return 0;
}

static ssize_t read_as(uint8_t *dst, struct cfs_hedge *hedge, const struct cfs_patience *patience)
{
	const struct cfs_peer_block b = {.slice = 1, .len = LEN};
	const struct iovec v = {.iov_base = dst, .iov_len = LEN};

	memset(dst, 0, LEN);
	return cfs_hedged_read(&hedging, &latency, peer, &b, 0, LEN, 0, &v, 1, hedge, patience);
}

static ssize_t read_until(uint8_t *dst, uint64_t patience_ms, uint64_t limit_ms)
{
	const struct cfs_patience patience = {.silent_ms = patience_ms,
					      .deadline = cfs_deadline_in(limit_ms)};

	return read_as(dst, &other.base, &patience);
}

static ssize_t read_in(uint8_t *dst, uint64_t patience_ms)
{
	return read_until(dst, patience_ms, patience_ms);
}

/* Silence of an owner that has never answered, say for lack of a connection, says nothing. */
static void know(void)
{
	unsigned i;

	for (i = 0; i < CFS_HEDGE_SAMPLES; i++)
		cfs_latency_note(&latency, 50 * 1000000); /* late from 131 ms on */
}

static void test_silence_of_a_stranger(void **state)
{
	uint8_t dst[LEN];

	owner.manner = SILENT;
	assert_int_equal(read_in(dst, PATIENCE_MS), -ETIMEDOUT);
	assert_int_equal(other.runs, 0);
}

static void test_in_time(void **state)
{
	uint8_t dst[LEN];

	assert_int_equal(read_in(dst, LONG_MS), LEN);
	assert_memory_equal(dst, bytes, LEN);
	assert_int_equal(other.runs, 0);
	assert_int_equal(owner.n_probes, 0);
}

static void test_silent_owner(void **state)
{
	uint64_t start_ms = cfs_now_ms();
	uint8_t dst[LEN], more[LEN], zeros[LEN] = {0};

	know();
	owner.manner = SILENT;
	assert_int_equal(read_in(dst, LONG_MS), -EALREADY);
	assert_in_range(cfs_now_ms() - start_ms, 131, LONG_MS / 2);
	assert_int_equal(other.runs, 1);
	assert_int_equal(hedging.wins, 1);
	/* Its late answer is discarded. */
	give_all();
	owner.manner = AT_ONCE;
	assert_int_equal(read_in(more, LONG_MS), LEN);
	assert_memory_equal(dst, zeros, LEN);
}

static void test_owner_that_fetches(void **state)
{
	uint8_t dst[LEN];

	owner.manner = FETCHING;
	assert_int_equal(read_in(dst, LONG_MS / 5), -ETIMEDOUT);
	assert_int_equal(owner.n_probes, 1);
	assert_int_equal(other.runs, 0);
	assert_int_equal(hedging.hedges, 0);
}

static void *give_when_due(void *arg)
{
	const uint64_t *due_ms = arg;

	WAIT_FOR(cfs_now_ms() >= *due_ms);
	owner.manner = AT_ONCE;
	give_all();
	return NULL;
}

/* A slow bucket: everybody waits for the one who asks it. */
static void test_owner_that_works(void **state)
{
	uint64_t due_ms = cfs_now_ms() + 2 * PATIENCE_MS;
	uint8_t dst[LEN];
	pthread_t giver;

	owner.manner = WORKING;
	assert_int_equal(pthread_create(&giver, NULL, give_when_due, &due_ms), 0);
	assert_int_equal(read_until(dst, PATIENCE_MS, LONG_MS), LEN);
	pthread_join(giver, NULL);
	assert_memory_equal(dst, bytes, LEN);
	assert_true(cfs_now_ms() >= due_ms);
	assert_int_equal(other.runs, 0);
	/* It is not what the owner takes for an answer. */
	assert_int_equal(cfs_latency_late_ms(&latency, 2000), 500);
}

/* It says so for ever. */
static void test_owner_that_never_ends(void **state)
{
	uint64_t start_ms = cfs_now_ms();
	uint8_t dst[LEN];

	owner.manner = WORKING;
	assert_int_equal(read_until(dst, PATIENCE_MS, 2 * PATIENCE_MS), -ETIMEDOUT);
	assert_in_range(cfs_now_ms() - start_ms, 2 * PATIENCE_MS - 10, LONG_MS);
	assert_int_equal(other.runs, 0);
}

static bool gives_up(void *arg, const struct cfs_peer_request *req, uint64_t since_ms,
		     uint64_t *ret_left_ms)
{
	return false;
}

/* Its bucket hangs: it stops saying so, and is given up like a silent one. */
static void test_owner_that_hangs(void **state)
{
	uint64_t start_ms = cfs_now_ms();
	uint8_t dst[LEN];

	owner.manner = WORKING;
	ops.works = gives_up;
	assert_int_equal(read_until(dst, PATIENCE_MS, 10 * LONG_MS), -ETIMEDOUT);
	assert_true(cfs_now_ms() - start_ms < LONG_MS);
}

/* ---- an owner that fetches for most of the time ---- */

#define DEADLINE_MS 5000
#define RESERVE_MS  4000

/* When the owner says that it will answer; 0: it says nothing. */
static _Atomic uint64_t expected_ms;

static bool estimates(void *arg, const struct cfs_peer_request *req, uint64_t since_ms,
		      uint64_t *ret_left_ms)
{
	uint64_t at_ms = expected_ms;

	*ret_left_ms = at_ms ? CFS_MAX(cfs_deadline_left_ms(at_ms), (uint64_t)1) : 0;
	return true;
}

/* expected_ms, give_ms: from now on; 0: never. */
static ssize_t read_from_worker(uint8_t *dst, struct cfs_hedge *hedge, uint64_t expect_ms,
				uint64_t give_ms)
{
	uint64_t start_ms = cfs_now_ms(), due_ms = start_ms + give_ms;
	const struct cfs_patience patience = {.silent_ms = PATIENCE_MS,
					      .reserve_ms = RESERVE_MS,
					      .deadline = start_ms + DEADLINE_MS};
	pthread_t giver;
	ssize_t r;

	owner.manner = WORKING;
	ops.works = estimates;
	expected_ms = expect_ms ? start_ms + expect_ms : 0;
	if (give_ms)
		assert_int_equal(pthread_create(&giver, NULL, give_when_due, &due_ms), 0);
	r = read_as(dst, hedge, &patience);
	assert_true(cfs_now_ms() < start_ms + DEADLINE_MS);
	if (give_ms)
		pthread_join(giver, NULL);
	return r;
}

/* It is slow because object storage is: the block is not fetched twice. */
static void test_owner_that_ends_in_the_reserve(void **state)
{
	uint8_t dst[LEN];

	assert_int_equal(read_from_worker(dst, &other.base, 2500, 2500), LEN);
	assert_memory_equal(dst, bytes, LEN);
	assert_int_equal(other.runs, 0);
}

/* It is an older one, and says nothing: both ways are tried, and neither's bytes are lost. */
static void test_owner_without_estimate(void **state)
{
	uint8_t dst[LEN];

	cfs_hedging_init(&hedging, 0);
	assert_int_equal(read_from_worker(dst, &other.base, 0, 0), -EALREADY);
	assert_int_equal(other.runs, 1);
	other = (struct other){.base.fetch = fetch, .way = LOSES};
	give_all();
	assert_int_equal(read_from_worker(dst, &other.base, 0, 0), LEN);
	assert_memory_equal(dst, bytes, LEN);
	assert_int_equal(other.runs, 1);
}

/* It alone is slow: the time that is left is enough for object storage. */
static void test_owner_that_would_be_too_late(void **state)
{
	uint64_t start_ms = cfs_now_ms();
	uint8_t dst[LEN];

	assert_int_equal(read_from_worker(dst, &other.base, 2 * DEADLINE_MS, 0), -EALREADY);
	assert_in_range(cfs_now_ms() - start_ms, DEADLINE_MS - RESERVE_MS,
			DEADLINE_MS - RESERVE_MS / 4 - 1);
	assert_int_equal(other.runs, 1);
}

/* It says to the end that it is about to answer. */
static void test_owner_with_wrong_estimates(void **state)
{
	uint64_t start_ms = cfs_now_ms();
	uint8_t dst[LEN];

	assert_int_equal(read_from_worker(dst, &other.base, 1, 0), -EALREADY);
	assert_true(cfs_now_ms() - start_ms >= DEADLINE_MS - RESERVE_MS / 4);
	assert_int_equal(other.runs, 1);
}

/* There is no second destination for the bytes: the caller has the reserve. */
static void test_reserve_without_hedge(void **state)
{
	uint8_t dst[LEN];

	assert_int_equal(read_from_worker(dst, NULL, 0, 0), -ETIMEDOUT);
	other.way = NO_ROOM;
	assert_int_equal(read_from_worker(dst, &other.base, 0, 0), -ECANCELED);
}

/* A client without CFS_FEATURE_LEFT would take the payload for a wrong frame. */
static void test_progress_of_each_feature(void **state)
{
	static const uint64_t features[] = {CFS_FEATURE_WORKING, CFS_FEATURES};
	uint8_t payload[CFS_WIRE_CONTROL_MAX], get[CFS_WIRE_HEADER + CFS_WIRE_CONTROL_MAX];
	struct owner at = {0};
	struct cfs_frame f;
	unsigned i;
	int fd, r;

	cfs_transport_address(owner.t, &at.addr, &at.addr_len);
	owner.manner = WORKING;
	ops.works = estimates;
	expected_ms = cfs_deadline_in(10 * LONG_MS);
	for (i = 0; i < 2; i++) {
		fd = raw_client_with(&at, &keys, features[i], &r);
		assert_int_equal(r, 1);
		assert_true(raw_send(fd, get, get_frame(get, 7, LEN, 0, LEN)));
		assert_true(raw_frame(fd, &f, payload));
		assert_int_equal(f.type, CFS_FRAME_WORKING);
		assert_int_equal(f.len, i * CFS_WIRE_WORKING_LEN);
		if (i > 0)
			assert_in_range(cfs_wire_parse_working(payload), 8 * LONG_MS, 10 * LONG_MS);
		close(fd);
	}
}

static void test_owner_is_faster(void **state)
{
	uint8_t dst[LEN];

	owner.manner = HAS_IT;
	other.way = LOSES;
	assert_int_equal(read_in(dst, LONG_MS / 4), LEN);
	assert_memory_equal(dst, bytes, LEN);
	assert_int_equal(other.runs, 1);
	assert_int_equal(hedging.hedges, 1);
	assert_int_equal(hedging.wins, 0);
}

static void *find_slow(void *arg)
{
	WAIT_FOR(owner.n_held == 1);
	assert_true(cfs_slow_begin(&latency.slow, cfs_now_ms()));
	return NULL;
}

/* Others have found that the owner is slow: who waits for it goes elsewhere at once. */
static void test_owner_is_slow(void **state)
{
	uint64_t start_ms = cfs_now_ms();
	uint8_t dst[LEN], zeros[LEN] = {0};
	pthread_t finder;

	owner.manner = SILENT;
	cfs_hedging_init(&hedging, 0);
	assert_int_equal(pthread_create(&finder, NULL, find_slow, NULL), 0);
	assert_int_equal(read_in(dst, LONG_MS), -EBUSY);
	pthread_join(finder, NULL);
	assert_true(cfs_now_ms() - start_ms < LONG_MS / 2);
	give_all();
	assert_memory_equal(dst, zeros, LEN);
}

static void *give_later(void *arg)
{
	WAIT_FOR(other.runs == 1);
	give_all();
	return NULL;
}

static void test_other_way_fails(void **state)
{
	pthread_t giver;
	uint8_t dst[LEN];

	know();
	owner.manner = SILENT;
	other.way = FAILS;
	assert_int_equal(pthread_create(&giver, NULL, give_later, NULL), 0);
	assert_int_equal(read_in(dst, LONG_MS / 2), LEN);
	assert_memory_equal(dst, bytes, LEN);
	pthread_join(giver, NULL);
}

static void test_no_room_for_another_answer(void **state)
{
	uint64_t start_ms = cfs_now_ms();
	uint8_t dst[LEN];

	know();
	owner.manner = SILENT;
	other.way = NO_ROOM;
	assert_int_equal(read_in(dst, LONG_MS), -ECANCELED);
	assert_true(cfs_now_ms() - start_ms < LONG_MS / 2);
	assert_int_equal(hedging.wins, 0);
}

/* Otherwise every read waits until it is late, for as long as the owner is frozen. */
static void test_silence_is_a_failure(void **state)
{
	uint64_t start_ms = cfs_now_ms();
	uint8_t dst[LEN];
	unsigned tries;

	assert_int_equal(read_in(dst, LONG_MS), LEN);
	know();
	owner.manner = SILENT;
	cfs_hedging_init(&hedging, 100);
	for (tries = 0; state_of(peer) == CFS_PEER_CLOSED_CIRCUIT; tries++) {
		ssize_t r = read_in(dst, 400);

		/* -ETIMEDOUT: this thread did not run when the answer was late. */
		assert_true(r == -EALREADY || r == -EHOSTDOWN || r == -ETIMEDOUT);
		assert_true(cfs_now_ms() - start_ms < LONG_MS);
	}
	/* Three failures are too many; a request and its probe are two when both time out. */
	assert_in_range(tries, 2, 20);
	assert_true(cfs_now_ms() - start_ms >= 400);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_late),
		cmocka_unit_test(test_credits),
		cmocka_unit_test_setup_teardown(test_in_time, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_silence_of_a_stranger, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_silent_owner, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_owner_that_fetches, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_owner_that_works, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_owner_that_never_ends, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_owner_that_hangs, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_owner_is_slow, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_owner_that_ends_in_the_reserve, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(test_owner_without_estimate, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_owner_that_would_be_too_late, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(test_owner_with_wrong_estimates, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_reserve_without_hedge, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_progress_of_each_feature, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_owner_is_faster, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_other_way_fails, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_no_room_for_another_answer, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_silence_is_a_failure, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
