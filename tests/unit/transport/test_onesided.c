/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One-sided reads of two members on devices of this process: a request ends once, with the right
 * bytes, whoever takes its completion, and writes nowhere later. tests/rdma has the kernel's devices.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "fake_rdma.h"
#include "peer_fixture.h"
#include "transport/peer/onesided-internal.h"

static struct owner owner;
static struct cfs_transport *reader;
static struct cfs_peer *peer;
static uint8_t got[BLOCK];

static int setup(void **state)
{
	struct sockaddr_in sa = loopback();
	struct cfs_transport_conf conf = {
		.rdma_bytes = 2 * (uint64_t)CFS_RDMA_SLOT,
		.rdma_address = (struct sockaddr *)&sa,
		.rdma_address_len = sizeof(sa),
		.rdma_ops = &fake_rdma,
		.disk_timeout_ms = LONG_MS,
	};

	(void)state;
	fake_rdma_reset();
	owner_open_conf(&owner, ODD_BLOCK, &conf);
	conf.listen = NULL;
	reader = asker_conf(&conf);
	peer = peer_at(reader, &owner.addr, owner.addr_len);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	fake_rdma_release();
	owner_part(peer, reader, &owner);
	return 0;
}

static struct cfs_peer_stats stats(void)
{
	enum cfs_peer_state state;
	struct cfs_peer_stats st;

	cfs_peer_stats(peer, &st, &state);
	return st;
}

static void read_right(uint32_t off, uint32_t len)
{
	ssize_t n;

	memset(got, 0xee, sizeof(got));
	n = ask(peer, &owner, off, len, got);
	if (n != (ssize_t)len)
		fail_msg("%zd", n);
	assert_memory_equal(got, owner.data + off, len);
}

static void get_hot(void)
{
	uint64_t before = stats().rdma;
	cfs_deadline_t until = soon();

	while (stats().rdma == before) {
		assert_false(cfs_deadline_passed(until));
		read_right(4096, 4096);
		cfs_backoff(0, 1, 1, until);
	}
}

/* The next read of one thread is polled for, unless its lease ends before. */
static void get_polled(void)
{
	cfs_deadline_t until = soon();
	unsigned before;

	get_hot();
	do {
		assert_false(cfs_deadline_passed(until));
		before = fake_ways.polled_reads;
		read_right(0, 4096);
	} while (fake_ways.polled_reads == before);
}

/* A thread that waits takes its own bytes, and wakes no other one: neither here nor at the owner. */
static void test_the_waiting_thread_polls(void **state)
{
	struct cfs_peer_stats before, after;
	uint64_t by_tcp;
	unsigned i, wakes, gets, n = 300;

	(void)state;
	get_polled(); /* from here on the queue makes no event */
	before = stats();
	wakes = fake_ways.wakes;
	gets = owner.gets;
	for (i = 0; i < n; i++)
		read_right(i * 7919, 1 + i * 13 % 9000);
	after = stats();
	/* A busy machine may take the processor away for the time of the lease, or of polling. */
	assert_in_range(owner.gets - gets, 0, n / 2);
	by_tcp = n - (after.rdma - before.rdma);
	assert_in_range(after.direct - before.direct - by_tcp, n / 2, n);
	assert_in_range(fake_ways.wakes - wakes, 0, n / 2);
	for (i = 0; i < CFS_PEER_E_COUNT; i++)
		assert_int_equal(after.errors[i], 0);
}

/* Reads that take longer than a thread polls end by the loop, and nothing is lost between the two. */
static void test_the_loop_takes_over(void **state)
{
	struct cfs_peer_stats before;
	struct many m[8];
	unsigned i, round;
	sem_t done;

	(void)state;
	sem_init(&done, 0, 0);
	get_hot();
	for (round = 0; round < 20; round++) {
		before = stats();
		fake_ways.holds = true;
		for (i = 0; i < 8; i++) {
			m[i] = (struct many){.done = &done};
			assert_int_equal(start_one(peer, &m[i], &owner, i * 60000, 50000, LONG_MS),
					 0);
		}
		fake_rdma_release();
		for (i = 0; i < 8; i++)
			wait_post(&done);
		for (i = 0; i < 8; i++) {
			assert_int_equal(m[i].err, 0);
			assert_memory_equal(m[i].dst, owner.data + i * 60000, 50000);
			free(m[i].dst);
		}
		assert_int_equal(stats().direct, before.direct);
	}
	sem_destroy(&done);
}

struct held {
	pthread_t thread;
	uint8_t bytes[8192];
	ssize_t n;
	atomic_bool ended;
};

static void *read_held(void *arg)
{
	struct held *h = arg;

	h->n = ask(peer, &owner, 8192, sizeof(h->bytes), h->bytes);
	h->ended = true;
	return NULL;
}

/* A thread reads, and its READ is held, unless its lease has just ended. */
static void start_held(struct held *h)
{
	unsigned reads = fake_ways.reads;

	fake_ways.holds = true;
	memset(h->bytes, 0xee, sizeof(h->bytes));
	h->ended = false;
	assert_int_equal(pthread_create(&h->thread, NULL, read_held, h), 0);
	WAIT_FOR(fake_ways.reads > reads || h->ended);
}

static void end_held(struct held *h)
{
	pthread_join(h->thread, NULL);
	assert_int_equal(h->n, sizeof(h->bytes));
	assert_memory_equal(h->bytes, owner.data + 8192, sizeof(h->bytes));
}

/* A thread that has polled in vain sleeps, and the loop ends its read by RDMA. */
static void test_a_thread_gives_up(void **state)
{
	cfs_deadline_t until = soon();
	uint64_t by_rdma, direct;
	unsigned watches;
	struct held h;

	(void)state;
	do {
		assert_false(cfs_deadline_passed(until));
		get_polled();
		by_rdma = stats().rdma;
		direct = stats().direct;
		watches = fake_ways.watches;
		start_held(&h);
		WAIT_FOR(fake_ways.watches > watches || h.ended);
		fake_rdma_release();
		end_held(&h);
	} while (stats().rdma == by_rdma); /* it was late, and was asked for over TCP */
	assert_int_equal(stats().direct, direct);
	assert_int_equal(state_of(peer), CFS_PEER_CLOSED_CIRCUIT);
}

/* A READ that is late is asked for over TCP; when it is done its request's memory has other bytes. */
static void test_late_read_writes_nothing(void **state)
{
	uint64_t by_rdma;
	struct held h;
	size_t i;

	(void)state;
	get_polled();
	by_rdma = stats().rdma;
	start_held(&h);
	end_held(&h);
	assert_int_equal(stats().rdma, by_rdma);
	memset(h.bytes, 0x55, sizeof(h.bytes));
	fake_rdma_release();
	get_hot();
	for (i = 0; i < sizeof(h.bytes); i++)
		assert_int_equal(h.bytes[i], 0x55);
	assert_int_equal(state_of(peer), CFS_PEER_CLOSED_CIRCUIT);
}

/* From here on a thread polls for seconds, until it has got something. */
static void poll_for_long(void)
{
	struct cfs_onesided *o = reader->onesided;

	pthread_mutex_lock(&peer->lock);
	pthread_mutex_lock(&o->lock);
	if (peer->reader)
		peer->reader->polling.budget_ns = UINT32_MAX;
	pthread_mutex_unlock(&o->lock);
	pthread_mutex_unlock(&peer->lock);
}

/* Every request has given back what it has used. */
static bool nothing_is_left(void)
{
	struct cfs_onesided *o = reader->onesided;
	bool nothing;
	unsigned i;

	pthread_mutex_lock(&o->lock);
	nothing = o->n_ops == 0 && o->n_polling == 0 && o->n_places == CFS_READ_PLACES;
	for (i = 0; i < CFS_LEASES; i++)
		nothing &= o->leases.places[i].users == 0;
	pthread_mutex_unlock(&o->lock);
	return nothing;
}

/* The loop takes a request away while its thread polls: it is late, or its connection is lost. */
static void test_taken_while_polling(void **state)
{
	struct held h;

	(void)state;
	get_polled();
	poll_for_long();
	start_held(&h);
	end_held(&h);
	fake_rdma_release();
	WAIT_FOR(nothing_is_left());

	get_polled();
	poll_for_long();
	start_held(&h);
	fake_rdma_cut();
	end_held(&h);
	WAIT_FOR(nothing_is_left());
	fake_rdma_release();

	get_polled();
	poll_for_long();
	start_held(&h);
	fake_rdma_remove();
	end_held(&h);
	WAIT_FOR(nothing_is_left());
	assert_int_equal(state_of(peer), CFS_PEER_CLOSED_CIRCUIT);
}

/* Nothing comes over TCP either: the deadline ends it, and the late READ has no effect. */
static void test_deadline(void **state)
{
	struct held h;
	size_t i;

	(void)state;
	get_polled();
	fake_ways.holds = true;
	owner.how = NEVER;
	memset(h.bytes, 0xee, sizeof(h.bytes));
	h.n = ask_within(peer, &owner, 8192, sizeof(h.bytes), h.bytes, 1000);
	assert_int_equal(h.n, -ETIMEDOUT);
	owner.how = FROM_FILE;
	fake_rdma_release();
	read_right(0, 5000); /* what was asked before has reached the owner */
	for (i = 0; i < owner.n_held; i++)
		give(&owner, owner.held[i]);
	read_right(5000, 5000);
	for (i = 0; i < sizeof(h.bytes); i++)
		assert_int_equal(h.bytes[i], 0xee);
}

/* As of tests/rdma, for a thread that polls. */
static void test_flipped_bit(void **state)
{
	uint64_t errors, by_rdma;
	unsigned i;

	(void)state;
	get_polled();
	fake_ways.shared[5 * 4096 + 77] ^= 4;
	errors = stats().errors[CFS_PEER_E_CHECKSUM];
	fake_ways.polled_reads = 0;
	for (i = 0; i < 100 && stats().errors[CFS_PEER_E_CHECKSUM] == errors; i++)
		read_right(5 * 4096, 4096);
	assert_int_equal(stats().errors[CFS_PEER_E_CHECKSUM], errors + 1);
	assert_true(fake_ways.polled_reads > 0);
	by_rdma = stats().rdma;
	for (i = 0; i < 20; i++)
		read_right(i * 4096, 4096);
	assert_int_equal(stats().rdma, by_rdma);
	assert_int_equal(state_of(peer), CFS_PEER_CLOSED_CIRCUIT);
}

/* The key is void under a lease: a polling thread sees the error, and the connection ends. */
static void test_void_key(void **state)
{
	cfs_deadline_t until = soon();
	unsigned connects;

	(void)state;
	get_polled();
	connects = fake_ways.connects;
	fake_rdma_void_keys();
	while (stats().conns_by[CFS_PEER_RDMA] > 0) {
		read_right(0, 5000);
		assert_false(cfs_deadline_passed(until));
	}
	read_right(5000, 5000);
	/* It is made again. */
	WAIT_FOR(fake_ways.connects > connects);
	assert_int_equal(stats().errors[CFS_PEER_E_CHECKSUM], 0);
	assert_int_equal(state_of(peer), CFS_PEER_CLOSED_CIRCUIT);
}

/* --- pauses between connections --- */

/* The loop reads the clock once a turn: a pause may begin so long before the event in a turn. */
#define TURN_MS 200

/* At least so many ms between the beginnings of connections i and i + 1. */
static void check_pause(unsigned i, uint64_t ms)
{
	uint64_t pause_ms;

	WAIT_FOR(fake_ways.connects > i + 1);
	pause_ms = fake_ways.connect_ms[i + 1] - fake_ways.connect_ms[i];
	if (pause_ms + TURN_MS < ms)
		fail_msg("connection %u was begun after %llu ms", i + 1,
			 (unsigned long long)pause_ms);
}

/* A second, then twice as long each time. Requests go on over TCP. */
static void test_pauses(void **state)
{
	unsigned i;

	(void)state;
	fake_ways.refuses = true;
	read_right(0, 4096);
	for (i = 0; i < 3; i++) {
		check_pause(i, (uint64_t)CFS_READ_PAUSE_MS << i);
		read_right(i * 4096, 4096);
	}
	assert_int_equal(stats().rdma, 0);
	fake_ways.refuses = false;
	assert_int_equal(state_of(peer), CFS_PEER_CLOSED_CIRCUIT);
}

/* A connection that has worked is followed by the shortest pause, one that has not by a longer one. */
static void test_pause_after_success(void **state)
{
	uint64_t lost_ms, first_ms, second_ms;
	unsigned i;

	(void)state;
	fake_ways.refuses = true;
	read_right(0, 4096);
	check_pause(0, CFS_READ_PAUSE_MS);
	fake_ways.refuses = false; /* the next pause is 2 s, the one behind it would be 4 s */
	WAIT_FOR(stats().conns_by[CFS_PEER_RDMA] == 1);
	get_hot();
	i = fake_ways.connects;
	fake_ways.refuses = true;
	lost_ms = cfs_now_ms();
	fake_rdma_void_keys();
	while (stats().conns_by[CFS_PEER_RDMA] > 0)
		read_right(0, 5000);
	check_pause(i, 2 * CFS_READ_PAUSE_MS);
	first_ms = fake_ways.connect_ms[i] - lost_ms;
	second_ms = fake_ways.connect_ms[i + 1] - fake_ways.connect_ms[i];
	assert_true(first_ms + TURN_MS >= CFS_READ_PAUSE_MS);
	/* Otherwise they would be 2 s and 4 s; a busy machine may delay one of them. */
	assert_true(first_ms < 2 * CFS_READ_PAUSE_MS || second_ms < 4 * CFS_READ_PAUSE_MS);
}

/* However many answers wait for a client that takes none of them: later it would ask for a minute in vain. */
static void test_session_behind_many_answers(void **state)
{
	enum { REQUESTS = 500, LEN = 60 << 10 };
	struct cfs_frame f = {.type = CFS_FRAME_RDMA};
	uint8_t buf[256], payload[CFS_WIRE_CONTROL_MAX];
	unsigned answers = 0, i, before = owner.gets;
	struct cfs_wire_session w;
	int r, fd = raw_client(&owner, &keys, &r);

	(void)state;
	assert_int_equal(r, 1);
	for (i = 0; i < REQUESTS; i++)
		raw_send(fd, buf,
			 get_frame(buf, i + 1, owner.len, i * 4096 % (owner.len - LEN), LEN));
	WAIT_FOR(owner.gets >= before + REQUESTS);
	poll(NULL, 0, TURN_MS); /* their answers are queued */
	raw_send(fd, buf, cfs_wire_control(buf, &f, NULL, 0));
	poll(NULL, 0, TURN_MS); /* the frame is taken */
	do {
		assert_true(raw_frame(fd, &f, payload));
		if (f.type != CFS_FRAME_ANSWER)
			continue;
		assert_int_equal(f.status, 0);
		assert_int_equal(recv(fd, got, f.len, MSG_WAITALL), f.len);
		answers++;
	} while (f.type != CFS_FRAME_RDMA);
	assert_int_equal(cfs_wire_parse_session(payload, &w), 0);
	assert_true(w.port > 0 && w.session > 0);
	assert_true(answers > 0);
	close(fd);
}

/* --- all at once --- */

struct thread {
	pthread_t id;
	unsigned seed;
	const atomic_bool *stop;
	_Atomic unsigned long reads;
	unsigned long wrong;
};

static void *read_at_random(void *arg)
{
	struct thread *t = arg;
	uint8_t *bytes = malloc(200000);

	while (!*t->stop) {
		uint32_t off = (uint32_t)rand_r(&t->seed) % (owner.len - 200000);
		uint32_t len =
			1 + (uint32_t)rand_r(&t->seed) % (rand_r(&t->seed) % 4 ? 9000 : 200000 - 1);

		memset(bytes, 0xee, len);
		t->wrong += ask(peer, &owner, off, len, bytes) != (ssize_t)len ||
			    memcmp(bytes, owner.data + off, len) != 0;
		t->reads++;
	}
	free(bytes);
	return NULL;
}

static unsigned long reads_of(const struct thread threads[6])
{
	unsigned long n = 0;
	unsigned i;

	for (i = 0; i < 6; i++)
		n += threads[i].reads;
	return n;
}

/*
 * Threads read while completions come late, connections end and devices go: each request ends with
 * its bytes. The sanitizers watch.
 */
static void test_churn(void **state)
{
	const char *thorough = getenv("CACHEFS_LONG");
	unsigned rounds = thorough && *thorough ? 30 : 2, i;
	struct thread threads[6];
	atomic_bool stop = false;
	unsigned long before;

	(void)state;
	get_hot();
	for (i = 0; i < 6; i++) {
		threads[i] = (struct thread){.seed = i + 1, .stop = &stop};
		assert_int_equal(pthread_create(&threads[i].id, NULL, read_at_random, &threads[i]),
				 0);
	}
	for (i = 0; i < 10 * rounds; i++) {
		uint64_t by_rdma = stats().rdma;
		unsigned reads = fake_ways.reads;

		fake_ways.holds = true;
		WAIT_FOR(fake_ways.reads > reads);
		if (i % 10 == 9)
			fake_rdma_cut();
		if (i % 100 == 99)
			fake_rdma_remove();
		fake_rdma_release();
		WAIT_FOR(stats().rdma > by_rdma + 50);
	}
	fake_ways.holds = true;
	before = reads_of(threads);
	fake_rdma_remove();
	WAIT_FOR(reads_of(threads) > before + 100);
	stop = true;
	for (i = 0; i < 6; i++) {
		pthread_join(threads[i].id, NULL);
		assert_true(threads[i].reads > 0);
		assert_int_equal(threads[i].wrong, 0);
	}
	assert_int_equal(stats().errors[CFS_PEER_E_CHECKSUM], 0);
	assert_int_equal(state_of(peer), CFS_PEER_CLOSED_CIRCUIT);
	WAIT_FOR(nothing_is_left());
}

/* --- the parts --- */

static void test_polling_adapts(void **state)
{
	struct cfs_polling p;
	unsigned i, tries = 0, reads = 100000;

	(void)state;
	cfs_polling_init(&p);
	/* A good network: twice its time. */
	for (i = 0; i < 100; i++) {
		assert_true(cfs_polling_begin(&p) > 0);
		cfs_polling_won(&p, 8000);
	}
	assert_in_range(cfs_polling_begin(&p), 15000, 16000);
	cfs_polling_won(&p, 1000000000);
	assert_in_range(cfs_polling_begin(&p), 16000, CFS_POLL_MAX_NS);
	for (i = 0; i < 100; i++)
		cfs_polling_won(&p, 1);
	assert_int_equal(cfs_polling_begin(&p), CFS_POLL_MIN_NS);
	/* It becomes a bad one: few reads are tried. */
	for (i = 0; i < reads; i++) {
		uint32_t ns = cfs_polling_begin(&p);

		assert_in_range(ns, 0, CFS_POLL_MAX_NS);
		if (ns > 0) {
			tries++;
			cfs_polling_lost(&p);
		}
	}
	assert_in_range(tries, 2, reads / CFS_POLL_REST);
	/* And a good one again: that is noticed. */
	for (i = 0; i <= CFS_POLL_REST_MAX && cfs_polling_begin(&p) == 0; i++)
		;
	assert_in_range(i, 0, CFS_POLL_REST_MAX);
	cfs_polling_won(&p, 8000);
	assert_true(cfs_polling_begin(&p) > 0);
	assert_true(cfs_polling_begin(&p) > 0);

	assert_int_equal(cfs_polling_threads(1), 1);
	assert_int_equal(cfs_polling_threads(4), 2);
	assert_int_equal(cfs_polling_threads(200), 4);
	assert_int_equal(cfs_polling_threads(-1), 1);
}

int main(int argc, char **argv)
{
#define WITH_BOTH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
	const struct CMUnitTest tests[] = {
		WITH_BOTH(test_the_waiting_thread_polls),
		WITH_BOTH(test_the_loop_takes_over),
		WITH_BOTH(test_a_thread_gives_up),
		WITH_BOTH(test_late_read_writes_nothing),
		WITH_BOTH(test_taken_while_polling),
		WITH_BOTH(test_deadline),
		WITH_BOTH(test_flipped_bit),
		WITH_BOTH(test_void_key),
		WITH_BOTH(test_pauses),
		WITH_BOTH(test_pause_after_success),
		WITH_BOTH(test_session_behind_many_answers),
		WITH_BOTH(test_churn),
		cmocka_unit_test(test_polling_adapts),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
