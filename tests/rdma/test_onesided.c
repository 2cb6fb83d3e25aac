/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers that read each other by RDMA, on two devices with a wire between them (tests/rdma/run):
 * every request ends with the right bytes, whatever happens to RDMA, and hot ones do not reach the
 * owner.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "transport/peer/onesided-internal.h"
#include "unit/transport/peer_fixture.h"

#define OWNER  "10.77.0.1"
#define READER "10.77.0.2"
#define SLOTS  2
/* The guest's processor is slow, and may be shared; only a failed test takes so long. */
#define RDMA_MS 90000

static struct sockaddr_in address(const char *ip)
{
	struct sockaddr_in a = {.sin_family = AF_INET};

	assert_int_equal(inet_pton(AF_INET, ip, &a.sin_addr), 1);
	return a;
}

/* The pool as the owner sees it, with ways to break it. */
static struct cfs_rdma_ops owner_ops_table;
static struct shared {
	struct cfs_rdma_memory memory; /* first: what the owner knows */
	struct cfs_rdma *d;
	struct cfs_rdma_memory *real; /* NULL: not mapped any more */
	uint8_t *start;
} shared[64];
static _Atomic unsigned n_shared;
static _Atomic uint32_t wrong_key; /* bits of it */
static _Atomic uint16_t owner_port;

static int map_and_note(struct cfs_rdma *d, void *start, size_t len, enum cfs_rdma_access access,
			struct cfs_rdma_memory **ret)
{
	int r = cfs_rdma_verbs.map(d, start, len, access, ret);
	struct shared *s = &shared[n_shared];

	if (r < 0 || access != CFS_RDMA_SHARED)
		return r;
	assert_in_range(n_shared, 0, CFS_ARRAY_SIZE(shared) - 1);
	*s = (struct shared){.d = d, .real = *ret, .start = start};
	s->memory.key = s->real->key ^ wrong_key;
	n_shared++;
	*ret = &s->memory;
	return 0;
}

static void unmap_shared(struct cfs_rdma *d, struct cfs_rdma_memory *m)
{
	struct shared *s = (struct shared *)m;

	if (s < shared || s >= shared + CFS_ARRAY_SIZE(shared)) {
		cfs_rdma_verbs.unmap(d, m);
		return;
	}
	if (s->real)
		cfs_rdma_verbs.unmap(d, s->real);
	s->real = NULL;
}

static uint16_t note_port(const struct cfs_rdma *d)
{
	return owner_port = cfs_rdma_verbs.port(d);
}

static struct cfs_rdma_ops reader_ops_table;
static _Atomic unsigned n_reads;

static int read_and_count(struct cfs_rdma_conn *c, const struct cfs_rdma_read *reads, unsigned n,
			  void *cookie, bool polled)
{
	n_reads += n;
	return cfs_rdma_verbs.read(c, reads, n, cookie, polled);
}

static struct owner owner;
static struct cfs_transport *reader;
static struct cfs_peer *peer;

static void open_owner(uint32_t len)
{
	struct sockaddr_in sa = address(OWNER);
	struct cfs_transport_conf conf = {
		.member = SERVER,
		.listen = (struct sockaddr *)&sa,
		.listen_len = sizeof(sa),
		.ops = &owner_ops,
		.ops_arg = &owner,
		.disk_timeout_ms = RDMA_MS,
		.rdma_bytes = SLOTS * CFS_RDMA_SLOT,
		.rdma_address = (struct sockaddr *)&sa,
		.rdma_address_len = sizeof(sa),
		.rdma_ops = &owner_ops_table,
	};
	char err[256];

	owner_ops_table = cfs_rdma_verbs;
	owner_ops_table.map = map_and_note;
	owner_ops_table.unmap = unmap_shared;
	owner_ops_table.port = note_port;
	n_shared = 0;
	owner_fill(&owner, len);
	memcpy(conf.key, keys.key[0], CFS_PEER_KEY_SIZE);
	if (cfs_transport_create(&conf, &owner.t, err) < 0)
		fail_msg("%s", err);
	cfs_transport_address(owner.t, &owner.addr, &owner.addr_len);
}

static int setup(void **state)
{
	struct sockaddr_in sa = address(READER);
	struct cfs_transport_conf conf = {
		.member = CLIENT,
		.rdma_bytes = CFS_RDMA_SLOT,
		.rdma_address = (struct sockaddr *)&sa,
		.rdma_address_len = sizeof(sa),
		.rdma_ops = &reader_ops_table,
	};
	char err[256];

	(void)state;
	reader_ops_table = cfs_rdma_verbs;
	reader_ops_table.read = read_and_count;
	n_reads = 0;
	open_owner(ODD_BLOCK);
	memcpy(conf.key, keys.key[0], CFS_PEER_KEY_SIZE);
	if (cfs_transport_create(&conf, &reader, err) < 0)
		fail_msg("%s", err);
	peer = peer_at(reader, &owner.addr, owner.addr_len);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	cfs_peer_close(peer);
	assert_int_equal(cfs_transport_destroy(reader), 0);
	owner_close(&owner);
	return 0;
}

static struct cfs_peer_stats stats(void)
{
	enum cfs_peer_state state;
	struct cfs_peer_stats st;

	cfs_peer_stats(peer, &st, &state);
	return st;
}

static uint8_t got[BLOCK];

static void read_right(uint32_t off, uint32_t len)
{
	ssize_t n;

	memset(got, 0xee, sizeof(got));
	n = ask(peer, &owner, off, len, got);
	if (n != (ssize_t)len)
		fail_msg("%zd", n);
	assert_memory_equal(got, owner.data + off, len);
}

/* Asks until a request was read by RDMA. */
static void get_hot(void)
{
	cfs_deadline_t until = cfs_deadline_in(RDMA_MS);
	uint64_t before = stats().rdma;

	while (stats().rdma == before) {
		if (cfs_deadline_passed(until))
			fail_msg("nothing is read by RDMA");
		read_right(4096, 4096);
	}
}

static void test_hot_reads(void **state)
{
	struct cfs_peer_stats before, after;
	uint64_t began_ms, renewals;
	unsigned gets, i;

	(void)state;
	get_hot();
	before = stats();
	began_ms = cfs_now_ms();
	gets = owner.gets;
	for (i = 0; i < 500; i++)
		read_right(i * 7919, 1 + i * 13 % 9000);
	read_right(0, owner.len);
	read_right(owner.len - 1, 1);
	after = stats();
	/* A lease ends after 5 s, and the next request renews it; one may be late for its time. */
	renewals = (cfs_now_ms() - began_ms) / CFS_RDMA_LEASE_MS + 2;
	assert_true(owner.gets - gets <= renewals);
	assert_true(after.rdma - before.rdma >= 502 - renewals);
	assert_int_equal(after.conns_by[CFS_PEER_RDMA], 1);
	for (i = 0; i < CFS_PEER_E_COUNT; i++)
		assert_int_equal(after.errors[i], 0);
}

/*
 * A thread that polls takes its own bytes. The guest has one processor, on which a READ takes longer
 * than threads poll: here they do so for seconds.
 */
static void test_polling(void **state)
{
	cfs_deadline_t until = cfs_deadline_in(RDMA_MS);
	struct cfs_onesided *o = reader->onesided;
	struct cfs_peer_stats before, now;
	uint64_t by_tcp;
	unsigned i = 0;

	(void)state;
	get_hot();
	before = stats();
	do {
		assert_false(cfs_deadline_passed(until));
		pthread_mutex_lock(&peer->lock);
		pthread_mutex_lock(&o->lock);
		if (peer->reader)
			peer->reader->polling.budget_ns = UINT32_MAX;
		pthread_mutex_unlock(&o->lock);
		pthread_mutex_unlock(&peer->lock);
		read_right(i++ * 7919, 9000);
		now = stats();
		by_tcp = i - (now.rdma - before.rdma); /* they may be direct, too */
	} while (now.direct - before.direct < by_tcp + 20);
	assert_int_equal(state_of(peer), CFS_PEER_CLOSED_CIRCUIT);
}

static void test_many_at_once(void **state)
{
	struct many m[64];
	sem_t done;
	unsigned i, round;

	(void)state;
	sem_init(&done, 0, 0);
	get_hot();
	for (round = 0; round < 10; round++) {
		for (i = 0; i < 64; i++) {
			m[i] = (struct many){.done = &done};
			assert_int_equal(start_one(peer, &m[i], &owner, i * 60000, 50000, LONG_MS),
					 0);
		}
		for (i = 0; i < 64; i++)
			wait_post(&done);
		for (i = 0; i < 64; i++) {
			assert_int_equal(m[i].err, 0);
			assert_memory_equal(m[i].dst, owner.data + i * 60000, 50000);
			free(m[i].dst);
		}
	}
	assert_true(stats().rdma > 64);
	sem_destroy(&done);
}

/* A bit of the pool has flipped: the bytes are asked for again, on TCP, and the block is left alone. */
static void test_flipped_bit(void **state)
{
	uint64_t errors, by_rdma;
	unsigned i;

	(void)state;
	get_hot();
	assert_int_equal(n_shared, 1);
	shared[0].start[5 * 4096 + 77] ^= 4;
	errors = stats().errors[CFS_PEER_E_CHECKSUM];
	read_right(5 * 4096, 4096);
	assert_int_equal(stats().errors[CFS_PEER_E_CHECKSUM], errors + 1);
	by_rdma = stats().rdma;
	for (i = 0; i < 20; i++)
		read_right(i * 4096, 4096);
	assert_int_equal(stats().rdma, by_rdma);
	assert_int_equal(state_of(peer), CFS_PEER_CLOSED_CIRCUIT);
}

/* The same in the checksums, before they were read. */
static void test_flipped_bit_of_the_table(void **state)
{
	cfs_deadline_t until = cfs_deadline_in(RDMA_MS);

	(void)state;
	while (n_shared == 0) {
		read_right(0, 4096);
		assert_false(cfs_deadline_passed(until));
	}
	shared[0].start[cfs_rdma_table_off(owner.len) + 8] ^= 1;
	while (stats().errors[CFS_PEER_E_CHECKSUM] == 0) {
		read_right(0, 100);
		assert_false(cfs_deadline_passed(until));
	}
	assert_int_equal(stats().rdma, 0);
	read_right(0, owner.len);
}

/* Leases name a key that is not the memory's: no byte comes by it, and requests end as ever. */
static void test_wrong_key(void **state)
{
	cfs_deadline_t until = cfs_deadline_in(RDMA_MS);
	unsigned i;

	(void)state;
	wrong_key = 0x55;
	while (n_reads == 0 || stats().conns_by[CFS_PEER_RDMA] > 0) {
		read_right(0, 4096);
		assert_false(cfs_deadline_passed(until));
	}
	wrong_key = 0;
	for (i = 0; i < 20; i++)
		read_right(i * 5000, 5000);
	assert_int_equal(stats().rdma, 0);
	assert_int_equal(stats().errors[CFS_PEER_E_CHECKSUM], 0);
	assert_int_equal(state_of(peer), CFS_PEER_CLOSED_CIRCUIT);
}

static void start_many(struct many m[32], sem_t *done)
{
	unsigned i;

	for (i = 0; i < 32; i++) {
		m[i] = (struct many){.done = done};
		assert_int_equal(start_one(peer, &m[i], &owner, i * 100000, 90000, RDMA_MS), 0);
	}
}

static void end_right(struct many m[32], sem_t *done)
{
	unsigned i;

	for (i = 0; i < 32; i++)
		wait_post(done);
	for (i = 0; i < 32; i++) {
		assert_int_equal(m[i].err, 0);
		assert_memory_equal(m[i].dst, owner.data + i * 100000, 90000);
		free(m[i].dst);
	}
}

/*
 * The owner takes its memory back while it is read, and the lease lasts: what is under way and what
 * comes later ends with the right bytes, over TCP. The owner goes on to grant the void key.
 */
static void test_stale_lease(void **state)
{
	cfs_deadline_t until = cfs_deadline_in(RDMA_MS);
	struct cfs_rdma_memory *real;
	struct many m[32];
	unsigned i, reads;
	sem_t done;

	(void)state;
	sem_init(&done, 0, 0);
	get_hot();
	start_many(m, &done);
	real = shared[0].real;
	shared[0].real = NULL;
	cfs_rdma_verbs.unmap(shared[0].d, real);
	end_right(m, &done);
	reads = n_reads;
	while (stats().conns_by[CFS_PEER_RDMA] > 0) {
		read_right(0, 5000);
		assert_false(cfs_deadline_passed(until));
	}
	/* Another queue pair, another lease, the same void key. */
	while (n_reads <= reads + 1 || stats().conns_by[CFS_PEER_RDMA] > 0) {
		read_right(0, 5000);
		assert_false(cfs_deadline_passed(until));
	}
	for (i = 0; i < 20; i++)
		read_right(i * 5000, 5000);
	assert_int_equal(stats().errors[CFS_PEER_E_CHECKSUM], 0);
	assert_int_equal(state_of(peer), CFS_PEER_CLOSED_CIRCUIT);
	sem_destroy(&done);
}

/* --- strangers --- */

static unsigned refused;

static int asked_of_a_stranger(void *arg, uint64_t session, struct cfs_rdma_conn *c,
			       uint8_t ret_secret[CFS_RDMA_SECRET], void **ret_user)
{
	(void)arg;
	(void)session;
	(void)c;
	(void)ret_secret;
	(void)ret_user;
	return -ENOENT;
}

static void stranger_is_ready(void *arg, void *user)
{
	(void)arg;
	(void)user;
	fail_msg("a queue pair without a session is connected");
}

static void stranger_is_lost(void *arg, void *user, int err)
{
	(void)arg;
	(void)user;
	(void)err;
	refused++;
}

static size_t resident(void)
{
	FILE *f = fopen("/proc/self/statm", "re");
	unsigned long pages = 0;

	assert_non_null(f);
	assert_int_equal(fscanf(f, "%*u %lu", &pages), 1);
	fclose(f);
	return pages * 4096;
}

/* Queue pairs without a session are all refused, and the owner keeps nothing of them. */
static void test_strangers(void **state)
{
	static const struct cfs_rdma_events of_a_stranger = {
		.asked = asked_of_a_stranger,
		.ready = stranger_is_ready,
		.lost = stranger_is_lost,
	};
	const char *thorough = getenv("CACHEFS_LONG");
	unsigned n = thorough && *thorough ? 10000 : 300, asked = 0;
	struct sockaddr_in from = address(READER), to = address(OWNER);
	const struct cfs_rdma_conf conf = {
		.local = (struct sockaddr *)&from,
		.local_len = sizeof(from),
		.max_conns = 32,
		.max_reads = 1,
		.events = &of_a_stranger,
	};
	cfs_deadline_t until = cfs_deadline_in((uint64_t)n * 1000);
	uint8_t secret[CFS_RDMA_SECRET] = {0};
	struct cfs_rdma_conn *c;
	struct cfs_rdma *d;
	size_t before = 0;
	char err[256];

	(void)state;
	get_hot();
	refused = 0;
	assert_int_equal(cfs_rdma_verbs.open(&conf, &d, err), 0);
	to.sin_port = htons(owner_port);
	while (refused < n) {
		struct pollfd p = {.fd = cfs_rdma_verbs.fd(d), .events = POLLIN};

		while (asked < n && cfs_rdma_verbs.connect(d, (struct sockaddr *)&to, asked + 1,
							   secret, NULL, &c) == 0)
			asked++;
		(void)poll(&p, 1, 20);
		cfs_rdma_verbs.poll(d);
		(void)cfs_rdma_verbs.tick(d, cfs_now_ms());
		if (!before && refused > 100)
			before = resident();
		read_right(refused * 100, 100);
		assert_false(cfs_deadline_passed(until));
	}
	assert_true(resident() < before + (8u << 20));
	cfs_rdma_verbs.close(d);
	get_hot();
	assert_int_equal(state_of(peer), CFS_PEER_CLOSED_CIRCUIT);
}

static void shell(const char *command)
{
	if (system(command) != 0)
		fail_msg("%s", command);
}

static void test_loss(void **state)
{
	unsigned i;

	(void)state;
	get_hot();
	shell("tc qdisc add dev ra root netem loss 1%");
	shell("tc qdisc add dev rb root netem loss 1%");
	for (i = 0; i < 60; i++)
		read_right(i * 65536, 65536 - 100);
	shell("tc qdisc del dev ra root");
	shell("tc qdisc del dev rb root");
	assert_int_equal(state_of(peer), CFS_PEER_CLOSED_CIRCUIT);
}

/* RDMA alone is cut off: requests go on over TCP, which is on another wire, and come back. */
static void test_cut(void **state)
{
	cfs_deadline_t until = cfs_deadline_in(RDMA_MS);
	unsigned i;

	(void)state;
	get_hot();
	shell("tc qdisc add dev ra root netem loss 100%");
	for (i = 0; i < 20; i++)
		read_right(i * 5000, 5000);
	while (stats().conns_by[CFS_PEER_RDMA] > 0) {
		read_right(0, 1);
		assert_false(cfs_deadline_passed(until));
	}
	shell("tc qdisc del dev ra root");
	get_hot();
	assert_int_equal(state_of(peer), CFS_PEER_CLOSED_CIRCUIT);
}

static void removed(const char *device, const char *net)
{
	char command[160];
	cfs_deadline_t until = cfs_deadline_in(RDMA_MS);
	struct many m[32];
	sem_t done;

	sem_init(&done, 0, 0);
	get_hot();
	start_many(m, &done);
	snprintf(command, sizeof(command), "rdma link delete %s &", device);
	shell(command);
	end_right(m, &done);
	snprintf(command, sizeof(command), "/sys/class/infiniband/%s", device);
	while (access(command, F_OK) == 0 || stats().conns_by[CFS_PEER_RDMA] > 0) {
		read_right(0, 5000);
		assert_false(cfs_deadline_passed(until));
	}
	snprintf(command, sizeof(command), "rdma link add %s type rxe netdev %s", device, net);
	shell(command);
	get_hot();
	sem_destroy(&done);
}

static void test_owners_device_is_removed(void **state)
{
	(void)state;
	removed("rxa", "ra");
}

static void test_readers_device_is_removed(void **state)
{
	(void)state;
	removed("rxb", "rb");
}

/* The owner leaves in the middle, and comes back. */
static void test_owner_ends(void **state)
{
	struct sockaddr_storage addr = owner.addr;
	struct many m[32];
	sem_t done;
	unsigned i;

	(void)state;
	(void)addr;
	sem_init(&done, 0, 0);
	get_hot();
	start_many(m, &done);
	assert_int_equal(cfs_transport_destroy(owner.t), 0);
	for (i = 0; i < 32; i++)
		wait_post(&done);
	for (i = 0; i < 32; i++) {
		if (m[i].err == 0)
			assert_memory_equal(m[i].dst, owner.data + i * 100000, 90000);
		free(m[i].dst);
	}
	sem_destroy(&done);
	open_owner(ODD_BLOCK);
	cfs_peer_close(peer);
	peer = peer_at(reader, &owner.addr, owner.addr_len);
	get_hot();
}

/* A member without RDMA is asked over TCP, and asks so. */
static void test_one_side_only(void **state)
{
	struct cfs_transport_conf conf = {0};
	struct cfs_transport *plain = asker_conf(&conf);
	struct cfs_peer *p = peer_at(plain, &owner.addr, owner.addr_len);
	unsigned i;

	(void)state;
	for (i = 0; i < 20; i++) {
		assert_int_equal(ask(p, &owner, 0, 4096, got), 4096);
		assert_memory_equal(got, owner.data, 4096);
	}
	cfs_peer_close(p);
	assert_int_equal(cfs_transport_destroy(plain), 0);
}

int main(int argc, char **argv)
{
#define WITH_BOTH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
	const struct CMUnitTest tests[] = {
		WITH_BOTH(test_hot_reads),
		WITH_BOTH(test_polling),
		WITH_BOTH(test_many_at_once),
		WITH_BOTH(test_flipped_bit),
		WITH_BOTH(test_flipped_bit_of_the_table),
		WITH_BOTH(test_wrong_key),
		WITH_BOTH(test_stale_lease),
		WITH_BOTH(test_strangers),
		WITH_BOTH(test_loss),
		WITH_BOTH(test_cut),
		WITH_BOTH(test_owner_ends),
		WITH_BOTH(test_one_side_only),
		WITH_BOTH(test_owners_device_is_removed),
		WITH_BOTH(test_readers_device_is_removed),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
