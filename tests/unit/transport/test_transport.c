/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The peer transport over real sockets on the loopback, between honest members: as it is, and with
 * TLS.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "peer_fixture.h"

/* --- honest peers --- */

static void ranges(struct owner *o, struct cfs_peer *p)
{
	static const uint32_t lens[] = {1, 4096, 32768, 65535, 65536, 131072, 1 << 20};
	uint8_t *dst = malloc(o->len);
	unsigned i, k;

	assert_int_equal(ask(p, o, 0, o->len, dst), o->len);
	assert_memory_equal(dst, o->data, o->len);
	for (i = 0; i < CFS_ARRAY_SIZE(lens); i++) {
		for (k = 0; k < 8; k++) {
			uint32_t off = (uint32_t)(cfs_random_u64() % (o->len - lens[i]));

			if (k == 0)
				off = 0;
			if (k == 1)
				off = o->len - lens[i];
			memset(dst, 0, lens[i]);
			assert_int_equal(ask(p, o, off, lens[i], dst), lens[i]);
			assert_memory_equal(dst, o->data + off, lens[i]);
		}
	}
	free(dst);
}

/* Any range of a block arrives as it is, wherever the owner has it. */
static void test_every_range(void **state)
{
	static const uint32_t lens[] = {BLOCK, ODD_BLOCK};
	struct cfs_peer_stats asked, served;
	unsigned i, how, peak = 0;

	(void)state;
	for (i = 0; i < CFS_ARRAY_SIZE(lens); i++) {
		struct cfs_transport *t = asker();
		struct owner o;
		struct cfs_peer *p;

		p = owner_meet(t, &o, lens[i]);
		for (how = FROM_FILE; how <= LATER; how++) {
			o.how = (int)how;
			ranges(&o, p);
		}
		WAIT_FOR(o.releases == o.gets);
		assert_int_equal(o.mismatches, 0);
		cfs_transport_stats(t, &asked, NULL);
		cfs_transport_stats(o.t, NULL, &served);
		assert_int_equal(asked.requests, o.gets);
		assert_int_equal(served.requests, o.gets);
		assert_int_equal(asked.bytes, served.bytes);
		assert_int_equal(asked.inflight, 0);
		assert_int_equal(served.inflight_bytes, 0);
		peak = CFS_MAX(peak, served.conns);
		owner_part(p, t, &o);
	}
	assert_true(peak >= 1);
}

/* Requests share a connection without waiting for each other, and get their own bytes. */
static void test_many_in_flight(void **state)
{
	enum { N = 600 };
	struct many *m = calloc(N, sizeof(*m));
	struct cfs_transport *t = asker();
	struct owner o;
	struct cfs_peer *p;
	sem_t done;
	unsigned i;

	(void)state;
	owner_open(&o, ODD_BLOCK);
	sem_init(&done, 0, 0);
	p = peer_at(t, &o.addr, o.addr_len);
	for (i = 0; i < N; i++) {
		uint32_t len = i % 10 == 0 ? 300000 : 1 + (uint32_t)(cfs_random_u64() % 70000);

		m[i].done = &done;
		assert_int_equal(start_one(p, &m[i], &o,
					   (uint32_t)(cfs_random_u64() % (o.len - len)), len,
					   LONG_MS),
				 0);
	}
	for (i = 0; i < N; i++)
		wait_post(&done);
	for (i = 0; i < N; i++) {
		assert_int_equal(m[i].err, 0);
		assert_memory_equal(m[i].dst, o.data + m[i].get.off, m[i].get.len);
		free(m[i].dst);
	}
	owner_part(p, t, &o);
	sem_destroy(&done);
	free(m);
}

static void *threads_ask(void *arg)
{
	struct many *m = arg;
	uint8_t dst[8192];
	unsigned i;

	for (i = 0; i < 200; i++) {
		uint32_t off = (uint32_t)(cfs_random_u64() % (m->o->len - sizeof(dst)));

		m->err = (int)ask(m->peer, m->o, off, sizeof(dst), dst);
		if (m->err != sizeof(dst) || memcmp(dst, m->o->data + off, sizeof(dst)) != 0)
			return arg;
	}
	return NULL;
}

static void test_many_threads(void **state)
{
	struct cfs_transport *t = asker();
	struct owner o;
	struct cfs_peer *p;
	struct many m[8] = {0};
	pthread_t threads[8];
	void *bad;
	unsigned i;

	(void)state;
	p = owner_meet(t, &o, BLOCK);
	for (i = 0; i < 8; i++) {
		m[i].o = &o;
		m[i].peer = p;
		assert_int_equal(pthread_create(&threads[i], NULL, threads_ask, &m[i]), 0);
	}
	for (i = 0; i < 8; i++) {
		pthread_join(threads[i], &bad);
		assert_null(bad);
	}
	owner_part(p, t, &o);
}

/* A block that is not there is a plain miss and does not count against the peer. */
static void test_miss_and_hint(void **state)
{
	struct cfs_transport *t = asker();
	struct cfs_peer_block b = {.slice = 404, .len = 4096}, hinted = {.slice = 5, .len = 4096};
	struct cfs_peer_stats st;
	enum cfs_peer_state circuit;
	uint8_t dst[4096];
	struct iovec iov = {dst, sizeof(dst)};
	struct owner o;
	struct cfs_peer *p;
	unsigned i;

	(void)state;
	p = owner_meet(t, &o, BLOCK);
	for (i = 0; i < 10; i++)
		assert_int_equal(cfs_peer_read(p, &b, 0, sizeof(dst), 0, &iov, 1, soon()), -ENOENT);
	cfs_peer_hint(p, &hinted, CFS_PEER_FORGET);
	WAIT_FOR(o.hints == 1);
	cfs_peer_stats(p, &st, &circuit);
	assert_int_equal(st.misses, 10);
	assert_int_equal(circuit, CFS_PEER_CLOSED_CIRCUIT);
	owner_part(p, t, &o);
}

/* A member that removes a file has often never asked its owners for anything. */
static void test_hints_make_a_connection(void **state)
{
	struct cfs_transport *t = asker();
	struct cfs_peer_block hinted = {.slice = 5, .len = 4096};
	struct owner o;
	struct cfs_peer *p;
	unsigned i;

	(void)state;
	p = owner_meet(t, &o, BLOCK);
	for (i = 0; i < 100; i++)
		cfs_peer_hint(p, &hinted, CFS_PEER_FORGET);
	WAIT_FOR(o.hints == 100);
	owner_close(&o);
	/* To one that is not there any more they are dropped. */
	for (i = 0; i < 5000; i++)
		cfs_peer_hint(p, &hinted, CFS_PEER_FORGET);
	/* The first ones may have gone to the connection that the loop has not seen end. */
	WAIT_FOR((cfs_peer_hint(p, &hinted, CFS_PEER_FORGET),
		  state_of(p) != CFS_PEER_CLOSED_CIRCUIT));
	cfs_peer_close(p);
	cfs_transport_destroy(t);
}

/* A damaged cache file must not reach a reader: neither a range of it nor all of it. */
static void test_corrupt_file(void **state)
{
	struct cfs_transport_conf conf = {.failures = 100};
	struct cfs_transport *t = asker_conf(&conf);
	struct owner o;
	struct cfs_peer *p;
	uint8_t *dst = malloc(BLOCK);

	(void)state;
	p = owner_meet(t, &o, BLOCK);
	o.data[5000] ^= 1;
	/* Same segment, other bytes: the owner reads the segment and notices. */
	assert_int_equal(ask(p, &o, 20000, 4096, dst), -EREMOTEIO);
	assert_int_equal(ask(p, &o, 4096, 200000, dst), -EREMOTEIO);
	WAIT_FOR(o.mismatches == 2);
	/* Whole segments are not read by the owner: the receiver notices. */
	assert_int_equal(ask(p, &o, 0, BLOCK, dst), -EBADMSG);
	assert_int_equal(ask(p, &o, CFS_PEER_SEGMENT, 4096, dst), 4096);
	assert_int_equal(ask(p, &o, CFS_PEER_SEGMENT, 131072, dst), 131072);
	owner_part(p, t, &o);
	free(dst);
}

/* A reader that gave up gets its memory back at once, and the connection goes on. */
static void test_cancel_and_deadline(void **state)
{
	struct cfs_transport_conf conf = {.failures = 100};
	struct cfs_transport *t = asker_conf(&conf);
	struct owner o;
	struct cfs_peer *p;
	struct many m[2] = {0};
	uint8_t dst[4096];
	uint64_t began;
	sem_t done;
	unsigned i;

	(void)state;
	owner_open(&o, BLOCK);
	sem_init(&done, 0, 0);
	p = peer_at(t, &o.addr, o.addr_len);
	assert_int_equal(ask(p, &o, 0, 4096, dst), 4096);
	o.how = NEVER;
	m[0].done = m[1].done = &done;
	assert_int_equal(start_one(p, &m[0], &o, 0, 4096, LONG_MS), 0);
	WAIT_FOR(o.n_held == 1);
	cfs_peer_cancel(p, &m[0].get);
	wait_post(&done);
	assert_int_equal(m[0].err, -ECANCELED);
	began = cfs_now_ms();
	assert_int_equal(start_one(p, &m[1], &o, 0, 100000, 100), 0);
	wait_post(&done);
	assert_int_equal(m[1].err, -ETIMEDOUT);
	assert_in_range(cfs_now_ms() - began, 90, LONG_MS / 4);
	/* The late answers go nowhere. */
	WAIT_FOR(o.n_held == 2);
	o.how = FROM_FILE;
	for (i = 0; i < 2; i++)
		give(&o, o.held[i]);
	assert_int_equal(ask(p, &o, 0, 4096, dst), 4096);
	WAIT_FOR(o.releases == o.gets);
	free(m[0].dst);
	free(m[1].dst);
	owner_part(p, t, &o);
	sem_destroy(&done);
}

static void test_public_address_is_refused(void **state)
{
	struct sockaddr_in sa = {.sin_family = AF_INET}; /* any */
	struct cfs_transport_conf conf = {
		.member = SERVER,
		.listen = (struct sockaddr *)&sa,
		.listen_len = sizeof(sa),
		.ops = &owner_ops,
	};
	struct {
		const char *addr;
		bool private;
	} cases[] = {{"10.1.2.3", true},    {"172.31.0.1", true},  {"172.32.0.1", false},
		     {"192.168.9.9", true}, {"100.127.0.1", true}, {"8.8.8.8", false},
		     {"0.0.0.0", false},    {"169.254.1.1", true}};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
	struct cfs_transport *t;
	char err[256];
	unsigned i;

	(void)state;
	assert_int_equal(cfs_transport_create(&conf, &t, err), -EADDRNOTAVAIL);
	assert_non_null(strstr(err, "not a private address"));
	for (i = 0; i < CFS_ARRAY_SIZE(cases); i++) {
		assert_int_equal(inet_pton(AF_INET, cases[i].addr, &sa.sin_addr), 1);
		assert_int_equal(cfs_address_is_private((void *)&sa), cases[i].private);
	}
	assert_false(cfs_address_is_private((void *)&v6));
	inet_pton(AF_INET6, "fd12::1", &v6.sin6_addr);
	assert_true(cfs_address_is_private((void *)&v6));
	inet_pton(AF_INET6, "::ffff:8.8.8.8", &v6.sin6_addr);
	assert_false(cfs_address_is_private((void *)&v6));
	sa.sin_addr.s_addr = htonl(INADDR_ANY);
	conf.allow_public = true;
	assert_int_equal(cfs_transport_create(&conf, &t, err), 0);
	cfs_transport_destroy(t);
}

/* A file that is not in memory is read by others than the loop. */
static void test_file_on_disk(void **state)
{
	char path[] = "/var/tmp/cachefs-test-XXXXXX";
	struct cfs_transport *t = asker();
	struct owner o;
	struct cfs_peer *p;
	uint8_t *dst = malloc(BLOCK);
	int fd = mkstemp(path), memfd, i;

	(void)state;
	assert_true(fd >= 0);
	unlink(path);
	owner_open(&o, ODD_BLOCK);
	assert_int_equal(write(fd, o.data, o.len), o.len);
	assert_int_equal(fsync(fd), 0);
	memfd = o.fd;
	o.fd = fd;
	p = peer_at(t, &o.addr, o.addr_len);
	for (i = 0; i < 8; i++) {
		uint32_t len = i % 2 ? o.len - 2000 : 8000;

		o.how = i / 4 ? FILE_NO_CRC : FROM_FILE;
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		memset(dst, 0, len);
		assert_int_equal(ask(p, &o, 1000, len, dst), len);
		assert_memory_equal(dst, o.data + 1000, len);
	}
	/* Shorter than its name says: an error, not a hang. */
	assert_int_equal(ftruncate(fd, BLOCK / 2), 0);
	o.how = FROM_FILE;
	assert_true(ask(p, &o, 0, o.len, dst) < 0);
	assert_int_equal(ask(p, &o, 0, 4096, dst), 4096);
	cfs_peer_close(p);
	cfs_transport_destroy(t);
	o.fd = memfd;
	owner_close(&o);
	close(fd);
	free(dst);
}

/* An owner frees the state of a disconnected peer, in any state. */
static void test_asker_leaves(void **state)
{
	enum { N = 8 };
	char path[] = "/var/tmp/cachefs-test-XXXXXX";
	struct cfs_transport *t = asker();
	struct cfs_peer_stats st;
	struct owner o;
	struct many m[N] = {0};
	int fd = mkstemp(path), memfd, i, k;
	sem_t done;

	(void)state;
	assert_true(fd >= 0);
	unlink(path);
	sem_init(&done, 0, 0);
	owner_open(&o, BLOCK);
	assert_int_equal(write(fd, o.data, o.len), o.len);
	assert_int_equal(fsync(fd), 0);
	memfd = o.fd;
	o.fd = fd;
	for (i = 0; i < 24; i++) {
		struct cfs_peer *p = peer_at(t, &o.addr, o.addr_len);

		o.how = i % 2 ? LATER : i % 3 ? FROM_FILE : FILE_NO_CRC;
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		for (k = 0; k < N; k++) {
			m[k].done = &done;
			assert_int_equal(
				start_one(p, &m[k], &o, 1000, k % 2 ? 3 << 20 : 5000, LONG_MS), 0);
		}
		for (k = 0; k < i % (N + 1); k++)
			wait_post(&done);
		cfs_peer_close(p);
		for (; k < N; k++)
			wait_post(&done);
		for (k = 0; k < N; k++) {
			assert_true(m[k].err == 0 || m[k].err == -ESHUTDOWN);
			free(m[k].dst);
		}
	}
	WAIT_FOR((cfs_transport_stats(o.t, NULL, &st), st.conns == 0 && st.inflight == 0));
	WAIT_FOR(o.releases == o.gets);
	assert_int_equal(st.inflight_bytes, 0);
	cfs_transport_destroy(t);
	o.fd = memfd;
	owner_close(&o);
	close(fd);
	sem_destroy(&done);
}

struct steady {
	struct many m;
	struct cfs_peer *p;
	_Atomic bool *stop;
};

static void ask_again(struct cfs_peer_get *g, int err)
{
	struct steady *s = (struct steady *)g;

	s->m.err = err;
	g->deadline = soon();
	if (err < 0 || *s->stop || cfs_peer_start(s->p, g) < 0)
		sem_post(s->m.done);
}

/* One connection is not all that a busy pair of machines can use. */
static void test_connections_follow_traffic(void **state)
{
	enum { N = 8 };
	struct cfs_transport_conf conf = {.grow_bytes = 1}; /* on a machine of any speed */
	struct cfs_transport *t = asker_conf(&conf);
	struct steady s[N] = {0};
	struct cfs_peer_stats st;
	enum cfs_peer_state circuit;
	_Atomic bool stop = false;
	struct owner o;
	sem_t done;
	int i;

	(void)state;
	sem_init(&done, 0, 0);
	owner_open(&o, BLOCK);
	s[0].p = peer_at(t, &o.addr, o.addr_len);
	for (i = 0; i < N; i++) {
		s[i].p = s[0].p;
		s[i].stop = &stop;
		s[i].m.done = &done;
		s[i].m.dst = malloc(BLOCK);
		s[i].m.iov[0] = (struct iovec){s[i].m.dst, BLOCK};
		s[i].m.get = (struct cfs_peer_get){
			.block = {.slice = slice_of(&o), .len = BLOCK},
			.len = BLOCK,
			.dst = s[i].m.iov,
			.n_dst = 1,
			.deadline = soon(),
			.done = ask_again,
		};
		assert_int_equal(cfs_peer_start(s[i].p, &s[i].m.get), 0);
	}
	WAIT_FOR((cfs_peer_stats(s[0].p, &st, &circuit), st.conns >= 2));
	stop = true;
	for (i = 0; i < N; i++)
		wait_post(&done);
	for (i = 0; i < N; i++) {
		assert_int_equal(s[i].m.err, 0);
		assert_memory_equal(s[i].m.dst, o.data, BLOCK);
		free(s[i].m.dst);
	}
	cfs_peer_close(s[0].p);
	cfs_transport_destroy(t);
	owner_close(&o);
	sem_destroy(&done);
}

/* A group changes its key while it works: members that have heard of it later go on meanwhile. */
static void test_key_rotation(void **state)
{
	struct cfs_transport_conf conf = {.probe_ms = 10};
	struct cfs_transport *t = asker_conf(&conf);
	uint8_t other[CFS_PEER_KEY_SIZE] = "another", dst[4096];
	struct owner o;
	struct cfs_peer *p;

	(void)state;
	owner_open(&o, BLOCK);
	cfs_transport_set_key(o.t, other, keys.key[0]);
	p = peer_at(t, &o.addr, o.addr_len);
	assert_int_equal(ask(p, &o, 0, 4096, dst), 4096);
	cfs_transport_set_key(t, other, keys.key[0]);
	assert_int_equal(ask(p, &o, 0, 4096, dst), 4096); /* on its connection */
	cfs_peer_close(p);
	p = peer_at(t, &o.addr, o.addr_len);
	WAIT_FOR(ask(p, &o, 0, 4096, dst) == 4096);
	/* The one before is forgotten: it does not open a connection any more. */
	cfs_transport_set_key(o.t, other, NULL);
	cfs_transport_set_key(t, keys.key[0], NULL);
	cfs_peer_close(p);
	p = peer_at(t, &o.addr, o.addr_len);
	WAIT_FOR(ask(p, &o, 0, 4096, dst) == -EACCES);
	owner_part(p, t, &o);
}

static unsigned served_conns(const struct owner *o)
{
	struct cfs_peer_stats st;

	cfs_transport_stats(o->t, NULL, &st);
	return st.conns;
}

/* A process that has learned a key keeps its connection after two changes of the key. */
static void test_connections_of_an_earlier_key(void **state)
{
	static const uint8_t second[CFS_PEER_KEY_SIZE] = {2}, third[CFS_PEER_KEY_SIZE] = {3},
			     unknown[CFS_PEER_KEY_SIZE] = {4};
	struct cfs_transport *t = asker();
	uint8_t dst[4096];
	struct owner o;
	struct cfs_peer *p;

	(void)state;
	p = owner_meet(t, &o, BLOCK);
	assert_int_equal(ask(p, &o, 0, 4096, dst), 4096);
	cfs_transport_set_key(o.t, second, keys.key[0]);
	cfs_transport_set_key(t, second, keys.key[0]);
	assert_int_equal(ask(p, &o, 0, 4096, dst), 4096);
	assert_int_equal(served_conns(&o), 1);
	cfs_transport_set_key(o.t, third, second); /* the owner ends it */
	WAIT_FOR(served_conns(&o) == 0);
	WAIT_FOR(ask(p, &o, 0, 4096, dst) == 4096); /* by the second key */
	cfs_transport_set_key(t, unknown, NULL);    /* the asker ends it */
	WAIT_FOR(ask(p, &o, 0, 4096, dst) == -EACCES);
	owner_part(p, t, &o);
}

static void test_picked_address(void **state)
{
	struct sockaddr_in other = {.sin_family = AF_INET, .sin_port = htons(7000)};
	struct sockaddr_storage sa;
	char name[CFS_ADDRESS_MAX], device[IF_NAMESIZE];
	socklen_t len;
	int r = cfs_address_pick(NULL, NULL, &sa, &len, device);

	(void)state;
	/* This machine may have none. */
	assert_true(r == 0 || r == -EADDRNOTAVAIL);
	if (r == 0) {
		assert_true(cfs_address_is_private((void *)&sa));
		cfs_address_format((void *)&sa, name);
		assert_null(strstr(name, "127.0.0.1"));
		assert_true(cfs_address_is_ours((void *)&sa, len));
		assert_int_equal(cfs_address_pick(NULL, device, &sa, &len, device), 0);
	}
	assert_int_equal(cfs_address_pick(NULL, "none", &sa, &len, device), -EADDRNOTAVAIL);
	inet_pton(AF_INET, "192.0.2.77", &other.sin_addr);
	assert_false(cfs_address_is_ours((void *)&other, sizeof(other)));
	assert_int_equal(cfs_address_pick("127.0.0.0/8", NULL, &sa, &len, device), -EADDRNOTAVAIL);
	assert_int_equal(cfs_address_pick("10.0.0.0/33", NULL, &sa, &len, device), -EINVAL);
	assert_int_equal(cfs_address_pick("ten", NULL, &sa, &len, device), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_range),
		cmocka_unit_test(test_many_in_flight),
		cmocka_unit_test(test_many_threads),
		cmocka_unit_test(test_miss_and_hint),
		cmocka_unit_test(test_hints_make_a_connection),
		cmocka_unit_test(test_corrupt_file),
		cmocka_unit_test(test_cancel_and_deadline),
		cmocka_unit_test(test_public_address_is_refused),
		cmocka_unit_test(test_key_rotation),
		cmocka_unit_test(test_connections_of_an_earlier_key),
		cmocka_unit_test(test_picked_address),
		cmocka_unit_test(test_file_on_disk),
		cmocka_unit_test(test_asker_leaves),
	};
	/* It takes 40 MiB/s, which a sanitized build with TLS may not reach. */
	const struct CMUnitTest fast[] = {cmocka_unit_test(test_connections_follow_traffic)};

	cfs_log_init(CFS_LOG_STDERR, CFS_LOG_ERR);
	if (cmocka_run_group_tests_name("tcp", tests, NULL, NULL) != 0 ||
	    cmocka_run_group_tests_name("fast", fast, NULL, NULL) != 0)
		return 1;
	with_tls = true;
	return cmocka_run_group_tests_name("tls", tests, NULL, NULL);
}
