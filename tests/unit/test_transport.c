/* SPDX-License-Identifier: Apache-2.0 */
/* The peer transport over real sockets on the loopback, with honest and with other peers. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <cachefs/transport.h>

#include "../../transport/crc.h"
#include "../../transport/handshake.h"
#include "../../transport/wire.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"

#define BLOCK	  (4u << 20)
#define ODD_BLOCK (BLOCK - 12345) /* its last segment is short */
#define CLIENT	  11
#define SERVER	  22
#define PATIENCE  20000 /* ms; only a failed test takes so long */

static const struct cfs_handshake_keys keys = {.key = {"0123456789abcdef0123456789abcdef"}, .n = 1};

/* --- an owner --- */

enum serve_how { FROM_FILE, FILE_NO_CRC, FROM_MEMORY, LATER, NEVER };

struct owner {
	struct cfs_transport *t;
	struct sockaddr_storage addr;
	socklen_t addr_len;
	int fd;
	uint8_t *data;
	uint32_t len;
	uint32_t crcs[BLOCK / CFS_PEER_SEGMENT];
	unsigned n_crcs;
	_Atomic int how;
	_Atomic unsigned gets, releases, mismatches, hints;
	struct cfs_peer_request *held[64]; /* NEVER */
	_Atomic unsigned n_held;
};

struct given {
	struct owner *o;
	struct iovec iov[2];
};

static void released(void *arg, bool mismatch)
{
	struct given *g = arg;

	g->o->releases++;
	g->o->mismatches += mismatch;
	free(g);
}

static void give(struct owner *o, struct cfs_peer_request *req)
{
	struct given *g = malloc(sizeof(*g));
	struct cfs_peer_answer a = {.fd = -1, .release = released, .arg = g};

	g->o = o;
	if (req->block.slice == 404) {
		a.err = -ENOENT;
	} else if (o->how == FROM_MEMORY) {
		g->iov[0].iov_base = o->data + req->off;
		g->iov[0].iov_len = req->len / 3;
		g->iov[1].iov_base = o->data + req->off + req->len / 3;
		g->iov[1].iov_len = req->len - req->len / 3;
		a.iov = g->iov;
		a.n_iov = 2;
	} else {
		a.fd = o->fd;
		a.crcs = o->crcs;
		a.n_crcs = o->how == FILE_NO_CRC ? 0 : o->n_crcs;
	}
	cfs_peer_answer(req, &a);
}

static void *give_later(void *arg)
{
	struct cfs_peer_request *req = arg;
	struct owner *o = (struct owner *)(uintptr_t)req->block.slice;

	give(o, req);
	return NULL;
}

static void on_get(void *arg, struct cfs_peer_request *req)
{
	struct owner *o = arg;
	pthread_t thread;

	o->gets++;
	if (o->how == LATER) {
		assert_int_equal(pthread_create(&thread, NULL, give_later, req), 0);
		pthread_detach(thread);
	} else if (o->how == NEVER) {
		o->held[o->n_held++] = req;
	} else {
		give(o, req);
	}
}

static void on_hint(void *arg, uint64_t from, const struct cfs_peer_block *b,
		    enum cfs_peer_hint hint)
{
	struct owner *o = arg;

	assert_int_equal(from, CLIENT);
	o->hints += b->slice == 5 && hint == CFS_PEER_FORGET;
}

static const struct cfs_peer_serve_ops ops = {.get = on_get, .hint = on_hint};

static struct sockaddr_in loopback(void)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

	return sa;
}

static void owner_open_conf(struct owner *o, uint32_t len, struct cfs_transport_conf *conf)
{
	struct sockaddr_in sa = loopback();
	char err[256];
	uint32_t i;

	memset(o, 0, sizeof(*o));
	o->len = len;
	o->fd = memfd_create("block", MFD_CLOEXEC);
	assert_int_equal(ftruncate(o->fd, len), 0);
	o->data = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, o->fd, 0);
	for (i = 0; i < len; i++)
		o->data[i] = (uint8_t)(i * 2654435761u >> 13);
	o->n_crcs = CFS_DIV_UP(len, CFS_PEER_SEGMENT);
	for (i = 0; i < o->n_crcs; i++)
		o->crcs[i] = cfs_crc_add(0, o->data + i * CFS_PEER_SEGMENT,
					 CFS_MIN(CFS_PEER_SEGMENT, len - i * CFS_PEER_SEGMENT));
	conf->member = SERVER;
	conf->listen = (struct sockaddr *)&sa;
	conf->listen_len = sizeof(sa);
	conf->ops = &ops;
	conf->ops_arg = o;
	memcpy(conf->key, keys.key[0], CFS_PEER_KEY_SIZE);
	assert_int_equal(cfs_transport_create(conf, &o->t, err), 0);
	cfs_transport_address(o->t, &o->addr, &o->addr_len);
}

static void owner_open(struct owner *o, uint32_t len)
{
	struct cfs_transport_conf conf = {0};

	owner_open_conf(o, len, &conf);
}

static void owner_close(struct owner *o)
{
	cfs_transport_destroy(o->t);
	munmap(o->data, o->len);
	close(o->fd);
}

static struct cfs_transport *asker_conf(struct cfs_transport_conf *conf)
{
	struct cfs_transport *t;
	char err[256];

	conf->member = CLIENT;
	if (conf->key[0] == 0)
		memcpy(conf->key, keys.key[0], CFS_PEER_KEY_SIZE);
	assert_int_equal(cfs_transport_create(conf, &t, err), 0);
	return t;
}

static struct cfs_transport *asker(void)
{
	struct cfs_transport_conf conf = {0};

	return asker_conf(&conf);
}

static struct cfs_peer *peer_at(struct cfs_transport *t, const void *addr, socklen_t len)
{
	struct cfs_peer *p;

	assert_int_equal(cfs_peer_open(t, SERVER, addr, len, &p), 0);
	return p;
}

/* give_later() finds the owner by it. */
static uint64_t slice_of(struct owner *o)
{
	return (uint64_t)(uintptr_t)o;
}

static ssize_t ask_within(struct cfs_peer *p, struct owner *o, uint32_t off, uint32_t len,
			  uint8_t *dst, uint64_t timeout_ms)
{
	struct cfs_peer_block b = {.slice = o ? slice_of(o) : 1, .len = o ? o->len : BLOCK};
	struct iovec iov = {.iov_base = dst, .iov_len = len};

	return cfs_peer_read(p, &b, off, len, 0, &iov, 1, cfs_deadline_in(timeout_ms));
}

static ssize_t ask(struct cfs_peer *p, struct owner *o, uint32_t off, uint32_t len, uint8_t *dst)
{
	return ask_within(p, o, off, len, dst, PATIENCE);
}

#define WAIT_FOR(condition)                                                                        \
	do {                                                                                       \
		cfs_deadline_t until_ = cfs_deadline_in(PATIENCE);                                 \
		while (!(condition)) {                                                             \
			if (cfs_deadline_passed(until_))                                           \
				fail_msg("never came true: %s", #condition);                       \
			poll(NULL, 0, 2);                                                          \
		}                                                                                  \
	} while (0)

static enum cfs_peer_state state_of(struct cfs_peer *p)
{
	struct cfs_peer_stats st;
	enum cfs_peer_state state;

	cfs_peer_stats(p, &st, &state);
	return state;
}

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

		owner_open(&o, lens[i]);
		p = peer_at(t, &o.addr, o.addr_len);
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
		cfs_peer_close(p);
		cfs_transport_destroy(t);
		owner_close(&o);
	}
	assert_true(peak >= 1);
}

struct many {
	struct cfs_peer_get get;
	struct iovec iov[3];
	uint8_t *dst;
	struct owner *o;
	sem_t *done;
	int err;
};

static void many_done(struct cfs_peer_get *g, int err)
{
	struct many *m = (struct many *)g;

	m->err = err;
	sem_post(m->done);
}

static int start_one(struct cfs_peer *p, struct many *m, struct owner *o, uint32_t off,
		     uint32_t len, uint64_t timeout_ms)
{
	uint32_t third = len / 3;

	m->o = o;
	m->err = 1;
	m->dst = calloc(1, len);
	m->iov[0] = (struct iovec){m->dst, third};
	m->iov[1] = (struct iovec){m->dst + third, third};
	m->iov[2] = (struct iovec){m->dst + 2 * third, len - 2 * third};
	m->get = (struct cfs_peer_get){
		.block = {.slice = slice_of(o), .len = o->len},
		.off = off,
		.len = len,
		.dst = m->iov,
		.n_dst = 3,
		.deadline = cfs_deadline_in(timeout_ms),
		.done = many_done,
	};
	return cfs_peer_start(p, &m->get);
}

static void wait_done(sem_t *s)
{
	struct timespec until = cfs_wall();

	until.tv_sec += PATIENCE / 1000;
	assert_int_equal(sem_timedwait(s, &until), 0);
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
					   PATIENCE),
				 0);
	}
	for (i = 0; i < N; i++)
		wait_done(&done);
	for (i = 0; i < N; i++) {
		assert_int_equal(m[i].err, 0);
		assert_memory_equal(m[i].dst, o.data + m[i].get.off, m[i].get.len);
		free(m[i].dst);
	}
	cfs_peer_close(p);
	cfs_transport_destroy(t);
	owner_close(&o);
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

		m->err = (int)ask((struct cfs_peer *)m->get.conn, m->o, off, sizeof(dst), dst);
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
	owner_open(&o, BLOCK);
	p = peer_at(t, &o.addr, o.addr_len);
	for (i = 0; i < 8; i++) {
		m[i].o = &o;
		m[i].get.conn = p;
		assert_int_equal(pthread_create(&threads[i], NULL, threads_ask, &m[i]), 0);
	}
	for (i = 0; i < 8; i++) {
		pthread_join(threads[i], &bad);
		assert_null(bad);
	}
	cfs_peer_close(p);
	cfs_transport_destroy(t);
	owner_close(&o);
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
	owner_open(&o, BLOCK);
	p = peer_at(t, &o.addr, o.addr_len);
	for (i = 0; i < 10; i++)
		assert_int_equal(
			cfs_peer_read(p, &b, 0, sizeof(dst), 0, &iov, 1, cfs_deadline_in(PATIENCE)),
			-ENOENT);
	cfs_peer_hint(p, &hinted, CFS_PEER_FORGET);
	WAIT_FOR(o.hints == 1);
	cfs_peer_stats(p, &st, &circuit);
	assert_int_equal(st.misses, 10);
	assert_int_equal(circuit, CFS_PEER_CLOSED_CIRCUIT);
	cfs_peer_close(p);
	cfs_transport_destroy(t);
	owner_close(&o);
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
	owner_open(&o, BLOCK);
	p = peer_at(t, &o.addr, o.addr_len);
	o.data[5000] ^= 1;
	/* Same segment, other bytes: the owner reads the segment and notices. */
	assert_int_equal(ask(p, &o, 20000, 4096, dst), -EREMOTEIO);
	assert_int_equal(ask(p, &o, 4096, 200000, dst), -EREMOTEIO);
	WAIT_FOR(o.mismatches == 2);
	/* Whole segments are not read by the owner: the receiver notices. */
	assert_int_equal(ask(p, &o, 0, BLOCK, dst), -EBADMSG);
	assert_int_equal(ask(p, &o, CFS_PEER_SEGMENT, 4096, dst), 4096);
	assert_int_equal(ask(p, &o, CFS_PEER_SEGMENT, 131072, dst), 131072);
	cfs_peer_close(p);
	cfs_transport_destroy(t);
	owner_close(&o);
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
	assert_int_equal(start_one(p, &m[0], &o, 0, 4096, PATIENCE), 0);
	WAIT_FOR(o.n_held == 1);
	cfs_peer_cancel(p, &m[0].get);
	wait_done(&done);
	assert_int_equal(m[0].err, -ECANCELED);
	began = cfs_now_ms();
	assert_int_equal(start_one(p, &m[1], &o, 0, 100000, 100), 0);
	wait_done(&done);
	assert_int_equal(m[1].err, -ETIMEDOUT);
	assert_in_range(cfs_now_ms() - began, 90, 2000);
	/* The late answers go nowhere. */
	WAIT_FOR(o.n_held == 2);
	o.how = FROM_FILE;
	for (i = 0; i < 2; i++)
		give(&o, o.held[i]);
	assert_int_equal(ask(p, &o, 0, 4096, dst), 4096);
	WAIT_FOR(o.releases == o.gets);
	free(m[0].dst);
	free(m[1].dst);
	cfs_peer_close(p);
	cfs_transport_destroy(t);
	owner_close(&o);
	sem_destroy(&done);
}

/* --- limits --- */

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

		busy += poll(&pfd, 1, i < 4 ? 0 : PATIENCE) == 1;
	}
	assert_int_equal(busy, 8);
	cfs_transport_stats(o.t, NULL, &st);
	assert_int_equal(st.conns, 1);
	for (i = 0; i < 12; i++)
		close(fds[i]);
	cfs_peer_close(p);
	cfs_transport_destroy(t);
	owner_close(&o);
}

static void test_public_address_is_refused(void **state)
{
	struct sockaddr_in sa = {.sin_family = AF_INET}; /* any */
	struct cfs_transport_conf conf = {
		.member = SERVER,
		.listen = (struct sockaddr *)&sa,
		.listen_len = sizeof(sa),
		.ops = &ops,
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

/* --- raw connections --- */

static int raw_connect(struct owner *o)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(connect(fd, (void *)&o->addr, o->addr_len), 0);
	return fd;
}

static bool raw_send(int fd, const void *data, size_t len)
{
	return send(fd, data, len, MSG_NOSIGNAL) == (ssize_t)len;
}

/* False when the other side closes (or says nothing for PATIENCE). */
static bool raw_frame(int fd, struct cfs_frame *ret, uint8_t payload[CFS_WIRE_CONTROL_MAX])
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};
	uint8_t header[CFS_WIRE_HEADER];

	if (poll(&pfd, 1, PATIENCE) != 1 ||
	    recv(fd, header, sizeof(header), MSG_WAITALL) != sizeof(header) ||
	    cfs_wire_parse(header, ret) < 0)
		return false;
	return ret->type == CFS_FRAME_ANSWER || ret->len == 0 ||
	       recv(fd, payload, ret->len, MSG_WAITALL) == (ssize_t)ret->len;
}

static bool raw_is_closed(int fd)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};
	char c[4096];

	while (poll(&pfd, 1, PATIENCE) == 1) {
		if (recv(fd, c, sizeof(c), 0) <= 0)
			return true;
	}
	return false;
}

/* Both sides of a handshake over a blocking socket. */
static int raw_handshake(int fd, struct cfs_handshake *h, uint8_t *out, size_t len)
{
	uint8_t payload[CFS_WIRE_CONTROL_MAX];
	struct cfs_frame f;
	int r = 0;

	while (r == 0) {
		if (len > 0 && !raw_send(fd, out, len))
			return -ECONNRESET;
		if (!raw_frame(fd, &f, payload))
			return -ECONNRESET;
		r = cfs_handshake_frame(h, &f, payload, out, &len);
		if (r != 0 && len > 0)
			raw_send(fd, out, len);
	}
	return r;
}

static int raw_client(struct owner *o, const struct cfs_handshake_keys *k, int *ret_result)
{
	uint8_t out[CFS_HANDSHAKE_OUT];
	struct cfs_handshake h;
	size_t len;
	int fd = raw_connect(o);

	assert_int_equal(cfs_handshake_client(&h, CLIENT, SERVER, k, out, &len), 0);
	*ret_result = raw_handshake(fd, &h, out, len);
	return fd;
}

static size_t get_frame(uint8_t *buf, uint64_t id, uint32_t block_len, uint32_t off, uint32_t len)
{
	struct cfs_frame f = {.type = CFS_FRAME_GET, .id = id};
	struct cfs_wire_get g = {{1, 0, block_len}, off, len};
	uint8_t payload[CFS_WIRE_GET_LEN];

	cfs_wire_put_get(payload, &g);
	return cfs_wire_control(buf, &f, payload, sizeof(payload));
}

/* Garbage before or after the handshake ends that connection, and nothing else. */
static void test_owner_survives_garbage(void **state)
{
	static const struct cfs_handshake_keys wrong = {.key = {"wrong"}, .n = 1};
	struct cfs_transport *t = asker();
	uint8_t buf[512], dst[4096];
	struct cfs_frame f;
	struct owner o;
	struct cfs_peer *p;
	unsigned i;
	int fd, r;

	(void)state;
	owner_open(&o, BLOCK);
	p = peer_at(t, &o.addr, o.addr_len);
	assert_int_equal(ask(p, &o, 0, 4096, dst), 4096);

	memset(buf, 'x', sizeof(buf));
	fd = raw_connect(&o);
	assert_true(raw_send(fd, buf, sizeof(buf)));
	assert_true(raw_is_closed(fd));
	close(fd);
	/* A request without a handshake */
	fd = raw_connect(&o);
	assert_true(raw_send(fd, buf, get_frame(buf, 1, BLOCK, 0, 4096)));
	assert_true(raw_is_closed(fd));
	close(fd);
	/* The wrong key is told so. */
	fd = raw_client(&o, &wrong, &r);
	assert_int_equal(r, -EACCES);
	assert_true(raw_is_closed(fd));
	close(fd);
	/* After the handshake: garbage, an answer, an impossible range */
	for (i = 0; i < 3; i++) {
		size_t len = sizeof(buf);

		fd = raw_client(&o, &keys, &r);
		assert_int_equal(r, 1);
		memset(buf, 'x', sizeof(buf));
		if (i == 1) {
			f = (struct cfs_frame){.type = CFS_FRAME_ANSWER, .id = 1, .status = 1};
			len = cfs_wire_control(buf, &f, NULL, 0);
		} else if (i == 2) {
			len = get_frame(buf, 1, 4096, 4000, 97);
		}
		assert_true(raw_send(fd, buf, len));
		assert_true(raw_is_closed(fd));
		close(fd);
	}
	assert_int_equal(ask(p, &o, 0, 4096, dst), 4096);
	cfs_peer_close(p);
	cfs_transport_destroy(t);
	owner_close(&o);
}

/* Half a hello, half a request, then silence: others are served, the handshake has its deadline. */
static void test_owner_survives_silence(void **state)
{
	struct cfs_transport_conf conf = {.connect_timeout_ms = 300};
	struct cfs_transport *t = asker();
	uint8_t buf[CFS_HANDSHAKE_OUT], dst[4096];
	struct cfs_handshake h;
	struct owner o;
	struct cfs_peer *p;
	size_t len;
	int half, slow, r;

	(void)state;
	owner_open_conf(&o, BLOCK, &conf);
	half = raw_connect(&o);
	assert_int_equal(cfs_handshake_client(&h, CLIENT, SERVER, &keys, buf, &len), 0);
	assert_true(raw_send(half, buf, len / 2));
	slow = raw_client(&o, &keys, &r);
	assert_int_equal(r, 1);
	get_frame(buf, 1, BLOCK, 0, 4096);
	assert_true(raw_send(slow, buf, 40));
	p = peer_at(t, &o.addr, o.addr_len);
	assert_int_equal(ask(p, &o, 0, 4096, dst), 4096);
	assert_true(raw_is_closed(half));
	assert_int_equal(ask(p, &o, 0, 4096, dst), 4096);
	close(half);
	close(slow);
	cfs_peer_close(p);
	cfs_transport_destroy(t);
	owner_close(&o);
}

/* Who asks for much and takes nothing is cut off, and holds up nobody meanwhile. */
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
	cfs_peer_close(p);
	cfs_transport_destroy(t);
	owner_close(&o);
	free(dst);
}

/* --- owners that lie --- */

enum lie {
	WRONG_BYTES,
	SHORT_BODY,
	LONG_BODY,
	OTHER_LENGTH,
	GARBAGE,
	CLOSES,
	SILENT,
	HALF_CHALLENGE,
	WRONG_KEY,
	WRONG_MEMBER,
	ECHO,
	REPLAYS,
};

struct liar {
	int fd;
	struct sockaddr_in sa;
	enum lie lie;
	pthread_t thread;
	_Atomic bool stop;
	uint8_t recorded[CFS_HANDSHAKE_OUT];
	size_t n_recorded;
};

static void lie(struct liar *l, int fd)
{
	static const struct cfs_handshake_keys wrong = {.key = {"wrong"}, .n = 1};
	uint8_t payload[CFS_WIRE_CONTROL_MAX], out[CFS_HANDSHAKE_OUT], body[8192] = {1};
	struct cfs_frame f, ready = {.type = CFS_FRAME_READY};
	struct cfs_wire_ready limits = {1ull << 30, 100};
	struct cfs_handshake h;
	size_t len = 0;

	cfs_handshake_server(&h, l->lie == WRONG_MEMBER ? 23 : SERVER, &keys);
	if (!raw_frame(fd, &f, payload))
		return;
	if (l->lie == WRONG_MEMBER) /* as if it had been meant */
		cfs_put_be64(payload + 24, 23);
	if (l->lie == ECHO) {
		raw_send(fd, out, cfs_wire_control(out, &f, payload, f.len));
		raw_is_closed(fd);
		return;
	}
	if (l->lie == WRONG_KEY) { /* pretends to know it */
		struct cfs_handshake probe;

		h.keys = &wrong;
		assert_int_equal(cfs_handshake_client(&probe, CLIENT, SERVER, &wrong, out, &len),
				 0);
		memcpy(payload + 4, probe.hello + 4, 4);
	}
	if (cfs_handshake_frame(&h, &f, payload, out, &len) < 0)
		return;
	if (l->lie == REPLAYS) {
		if (l->n_recorded > 0) {
			raw_send(fd, l->recorded, l->n_recorded);
			raw_is_closed(fd);
			return;
		}
		memcpy(l->recorded, out, len);
		l->n_recorded = len;
	}
	if (l->lie == HALF_CHALLENGE) {
		raw_send(fd, out, len / 2);
		raw_is_closed(fd);
		return;
	}
	raw_send(fd, out, len);
	if (!raw_frame(fd, &f, payload) || cfs_handshake_frame(&h, &f, payload, out, &len) != 1)
		return;
	cfs_wire_put_ready(payload, &limits);
	raw_send(fd, out, cfs_wire_control(out, &ready, payload, CFS_WIRE_READY_LEN));
	if (l->lie == REPLAYS) /* an honest one the first time */
		return;
	while (raw_frame(fd, &f, payload)) {
		struct cfs_wire_get g;
		struct cfs_frame a = {.type = CFS_FRAME_ANSWER, .id = f.id};

		if (f.type == CFS_FRAME_CANCEL)
			continue;
		assert_int_equal(cfs_wire_parse_get(payload, &g), 0);
		a.len = g.len;
		a.crc = 12345;
		if (l->lie == SILENT)
			continue;
		if (l->lie == CLOSES)
			return;
		if (l->lie == OTHER_LENGTH)
			a.len--;
		if (l->lie == LONG_BODY)
			a.len = CFS_PEER_BLOCK_MAX + 1;
		cfs_wire_put(out, &a);
		if (l->lie == GARBAGE)
			memset(out, 0xa5, CFS_WIRE_HEADER);
		raw_send(fd, out, CFS_WIRE_HEADER);
		if (l->lie == SHORT_BODY) {
			raw_send(fd, body, 100);
			continue;
		}
		for (len = 0; len < g.len; len += sizeof(body))
			raw_send(fd, body, CFS_MIN(sizeof(body), g.len - len));
	}
}

static void *liar_run(void *arg)
{
	struct liar *l = arg;
	int fd;

	while (!l->stop) {
		fd = accept(l->fd, NULL, NULL);
		if (fd < 0)
			break;
		lie(l, fd);
		close(fd);
	}
	return NULL;
}

static void liar_open(struct liar *l, enum lie what)
{
	socklen_t len = sizeof(l->sa);

	memset(l, 0, sizeof(*l));
	l->lie = what;
	l->sa = loopback();
	l->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(l->fd, (void *)&l->sa, len), 0);
	assert_int_equal(listen(l->fd, 10), 0);
	getsockname(l->fd, (void *)&l->sa, &len);
	assert_int_equal(pthread_create(&l->thread, NULL, liar_run, l), 0);
}

static void liar_close(struct liar *l)
{
	l->stop = true;
	shutdown(l->fd, SHUT_RDWR);
	pthread_join(l->thread, NULL);
	close(l->fd);
}

/* Whatever a peer answers, a reader gets the right bytes or an error within its deadline. */
static void test_lying_owners(void **state)
{
	static const struct {
		enum lie lie;
		int err, err_large;
	} cases[] = {
		{WRONG_BYTES, -EBADMSG, -EBADMSG}, {SHORT_BODY, -ETIMEDOUT, -ETIMEDOUT},
		{LONG_BODY, -EPROTO, -EPROTO},	   {OTHER_LENGTH, -EPROTO, -EPROTO},
		{GARBAGE, -EPROTO, -EPROTO},	   {CLOSES, -ECONNRESET, -ECONNRESET},
		{SILENT, -ETIMEDOUT, -ETIMEDOUT},  {HALF_CHALLENGE, -ETIMEDOUT, -EHOSTDOWN},
		{WRONG_KEY, -EACCES, -EHOSTDOWN},  {WRONG_MEMBER, -EACCES, -EHOSTDOWN},
		{ECHO, -EPROTO, -EHOSTDOWN},
	};
	uint8_t *dst = malloc(1 << 20);
	unsigned i;

	(void)state;
	for (i = 0; i < CFS_ARRAY_SIZE(cases); i++) {
		struct cfs_transport_conf conf = {.connect_timeout_ms = 200, .probe_ms = 60000};
		struct cfs_transport *t = asker_conf(&conf);
		struct liar l;
		struct cfs_peer *p;
		uint64_t began = cfs_now_ms();
		ssize_t n;

		liar_open(&l, cases[i].lie);
		p = peer_at(t, &l.sa, sizeof(l.sa));
		n = ask_within(p, NULL, 0, 4096, dst, 300);
		if (n != cases[i].err)
			fail_msg("case %u: %zd", i, n);
		n = ask_within(p, NULL, 0, 1 << 20, dst, 300);
		if (n != cases[i].err_large)
			fail_msg("case %u, large: %zd", i, n);
		assert_true(cfs_now_ms() - began < 5000);
		cfs_peer_close(p);
		cfs_transport_destroy(t);
		liar_close(&l);
	}
	free(dst);
}

/* A recorded CHALLENGE does not make a server. */
static void test_replayed_challenge(void **state)
{
	struct cfs_transport_conf conf = {.probe_ms = 10};
	struct cfs_transport *t = asker_conf(&conf);
	struct cfs_peer_stats st;
	enum cfs_peer_state circuit;
	struct liar l;
	struct cfs_peer *p;
	uint8_t dst[4096];

	(void)state;
	liar_open(&l, REPLAYS);
	p = peer_at(t, &l.sa, sizeof(l.sa));
	assert_true(ask_within(p, NULL, 0, 4096, dst, 1000) < 0); /* recorded, then closed */
	WAIT_FOR((ask_within(p, NULL, 0, 4096, dst, 1000), cfs_peer_stats(p, &st, &circuit),
		  st.errors[CFS_PEER_E_AUTH] > 0));
	assert_int_equal(st.requests, 0);
	cfs_peer_close(p);
	cfs_transport_destroy(t);
	liar_close(&l);
}

/* --- owners that die --- */

/* A peer that fails is left out at once and used again as soon as it answers. */
static void test_closed_port_and_return(void **state)
{
	struct cfs_transport_conf conf = {.probe_ms = 20}, serve = {0};
	struct cfs_transport *t = asker_conf(&conf);
	struct sockaddr_in sa = loopback();
	socklen_t len = sizeof(sa);
	uint8_t dst[4096];
	struct cfs_peer *p;
	struct owner o;
	uint64_t began;
	char err[256];
	int fd, n;

	(void)state;
	/* A port that nobody listens on */
	fd = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(bind(fd, (void *)&sa, len), 0);
	getsockname(fd, (void *)&sa, &len);
	close(fd);
	p = peer_at(t, &sa, len);
	began = cfs_now_ms();
	assert_int_equal(ask(p, NULL, 0, 4096, dst), -ECONNREFUSED);
	n = (int)ask(p, NULL, 0, 4096, dst);
	assert_true(n == -EHOSTDOWN || n == -ECONNREFUSED);
	assert_true(cfs_now_ms() - began < 500);
	/* It comes back: nobody has to ask for that to be noticed. */
	owner_open(&o, BLOCK);
	cfs_transport_destroy(o.t);
	serve.member = SERVER;
	serve.listen = (struct sockaddr *)&sa;
	serve.listen_len = sizeof(sa);
	serve.ops = &ops;
	serve.ops_arg = &o;
	memcpy(serve.key, keys.key[0], CFS_PEER_KEY_SIZE);
	assert_int_equal(cfs_transport_create(&serve, &o.t, err), 0);
	WAIT_FOR(state_of(p) == CFS_PEER_CLOSED_CIRCUIT);
	assert_int_equal(ask(p, &o, 0, 4096, dst), 4096);
	/* It leaves in order: requests are told, then the peer is left out. */
	cfs_transport_drain(o.t);
	WAIT_FOR(ask(p, &o, 0, 4096, dst) != 4096);
	WAIT_FOR(state_of(p) != CFS_PEER_CLOSED_CIRCUIT || ask(p, &o, 0, 4096, dst) == -ESHUTDOWN);
	cfs_peer_close(p);
	cfs_transport_destroy(t);
	owner_close(&o);
}

struct child {
	pid_t pid;
	struct sockaddr_storage addr;
	socklen_t addr_len;
};

/* It may open no more than one connection. */
static void leave_one_descriptor(struct owner *o)
{
	struct rlimit limit;
	int next = dup(o->fd);

	close(next);
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = (rlim_t)next + 1;
	setrlimit(RLIMIT_NOFILE, &limit);
}

/* An owner in a process of its own. */
static void child_open(struct child *c, bool no_pipes)
{
	int fds[2];

	assert_int_equal(pipe(fds), 0);
	c->pid = fork();
	assert_true(c->pid >= 0);
	if (c->pid == 0) {
		struct owner *o = calloc(1, sizeof(*o));

		owner_open(o, BLOCK);
		close(fds[0]);
		if (write(fds[1], &o->addr, sizeof(o->addr)) != sizeof(o->addr))
			_exit(1);
		if (no_pipes)
			leave_one_descriptor(o);
		for (;;)
			pause();
	}
	assert_int_equal(read(fds[0], &c->addr, sizeof(c->addr)), sizeof(c->addr));
	c->addr_len = sizeof(struct sockaddr_in);
	close(fds[0]);
	close(fds[1]);
}

static void child_kill(struct child *c)
{
	kill(c->pid, SIGKILL);
	assert_int_equal(waitpid(c->pid, NULL, 0), c->pid);
}

static void test_owner_killed_in_the_middle(void **state)
{
	enum { N = 32 };
	struct child c;
	struct cfs_transport *t;
	struct cfs_peer *p;
	struct owner o = {.len = BLOCK};
	struct many m[N] = {0};
	unsigned i, failed = 0;
	uint64_t began;
	sem_t done;

	(void)state;
	child_open(&c, false); /* before there are threads */
	t = asker();
	p = peer_at(t, &c.addr, c.addr_len);
	sem_init(&done, 0, 0);
	for (i = 0; i < N; i++) {
		m[i].done = &done;
		assert_int_equal(start_one(p, &m[i], &o, 0, BLOCK, PATIENCE), 0);
	}
	wait_done(&done);
	began = cfs_now_ms();
	child_kill(&c);
	for (i = 1; i < N; i++)
		wait_done(&done);
	assert_true(cfs_now_ms() - began < 5000);
	for (i = 0; i < N; i++) {
		assert_true(m[i].err <= 0);
		failed += m[i].err < 0;
		free(m[i].dst);
	}
	(void)failed; /* on a quick machine all may have arrived before */
	assert_true(ask(p, &o, 0, 4096, (uint8_t *)&m) < 0);
	cfs_peer_close(p);
	cfs_transport_destroy(t);
	sem_destroy(&done);
}

/* A frozen owner costs its deadline a few times, then nothing, and returns. */
static void test_frozen_owner(void **state)
{
	struct cfs_transport_conf conf = {.connect_timeout_ms = 200, .probe_ms = 20};
	struct child c;
	struct cfs_transport *t;
	struct cfs_peer *p;
	struct owner o = {.len = BLOCK};
	uint8_t dst[4096];
	uint64_t began;
	unsigned i;

	(void)state;
	child_open(&c, false);
	t = asker_conf(&conf);
	p = peer_at(t, &c.addr, c.addr_len);
	assert_int_equal(ask(p, &o, 0, 4096, dst), 4096);
	kill(c.pid, SIGSTOP);
	assert_int_equal(waitpid(c.pid, NULL, WUNTRACED), c.pid);
	for (i = 0; i < 3; i++) {
		began = cfs_now_ms();
		assert_int_equal(ask_within(p, &o, 0, 4096, dst, 100), -ETIMEDOUT);
		assert_in_range(cfs_now_ms() - began, 90, 2000);
	}
	WAIT_FOR(state_of(p) != CFS_PEER_CLOSED_CIRCUIT);
	began = cfs_now_ms();
	for (i = 0; i < 100; i++)
		assert_int_equal(ask_within(p, &o, 0, 4096, dst, 100), -EHOSTDOWN);
	assert_true(cfs_now_ms() - began < 1000);
	kill(c.pid, SIGCONT);
	WAIT_FOR(ask(p, &o, 0, 4096, dst) == 4096);
	cfs_peer_close(p);
	cfs_transport_destroy(t);
	child_kill(&c);
}

/* Large answers arrive also when there are no pipes to be had. */
static void test_owner_without_pipes(void **state)
{
	struct child c;
	struct cfs_transport *t;
	struct cfs_peer *p;
	struct owner o; /* has the same bytes as the child's */
	uint8_t *dst = malloc(BLOCK);
	unsigned i;

	(void)state;
	child_open(&c, true);
	owner_open(&o, BLOCK);
	t = asker();
	p = peer_at(t, &c.addr, c.addr_len);
	for (i = 0; i < 4; i++) {
		assert_int_equal(ask(p, &o, i * 1000, BLOCK - 4000, dst), BLOCK - 4000);
		assert_memory_equal(dst, o.data + i * 1000, BLOCK - 4000);
	}
	cfs_peer_close(p);
	cfs_transport_destroy(t);
	owner_close(&o);
	child_kill(&c);
	free(dst);
}

/* --- many connections --- */

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
	cfs_peer_close(p);
	cfs_transport_destroy(t);
	owner_close(&o);
	free(fds);
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

/* What an owner holds for somebody who has left is let go, in whatever state it was. */
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
				start_one(p, &m[k], &o, 1000, k % 2 ? 3 << 20 : 5000, PATIENCE), 0);
		}
		for (k = 0; k < i % (N + 1); k++)
			wait_done(&done);
		cfs_peer_close(p);
		for (; k < N; k++)
			wait_done(&done);
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
	g->deadline = cfs_deadline_in(PATIENCE);
	if (err < 0 || *s->stop || cfs_peer_start(s->p, g) < 0)
		sem_post(s->m.done);
}

/* One connection is not all that a busy pair of machines can use. */
static void test_connections_follow_traffic(void **state)
{
	enum { N = 8 };
	struct cfs_transport *t = asker();
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
			.deadline = cfs_deadline_in(PATIENCE),
			.done = ask_again,
		};
		assert_int_equal(cfs_peer_start(s[i].p, &s[i].m.get), 0);
	}
	WAIT_FOR((cfs_peer_stats(s[0].p, &st, &circuit), st.conns >= 2));
	stop = true;
	for (i = 0; i < N; i++)
		wait_done(&done);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_owner_killed_in_the_middle),
		cmocka_unit_test(test_frozen_owner),
		cmocka_unit_test(test_owner_without_pipes),
		cmocka_unit_test(test_every_range),
		cmocka_unit_test(test_many_in_flight),
		cmocka_unit_test(test_many_threads),
		cmocka_unit_test(test_miss_and_hint),
		cmocka_unit_test(test_corrupt_file),
		cmocka_unit_test(test_cancel_and_deadline),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_public_address_is_refused),
		cmocka_unit_test(test_owner_survives_garbage),
		cmocka_unit_test(test_owner_survives_silence),
		cmocka_unit_test(test_receivers_that_take_nothing),
		cmocka_unit_test(test_lying_owners),
		cmocka_unit_test(test_replayed_challenge),
		cmocka_unit_test(test_closed_port_and_return),
		cmocka_unit_test(test_idle_connections),
		cmocka_unit_test(test_file_on_disk),
		cmocka_unit_test(test_asker_leaves),
		cmocka_unit_test(test_connections_follow_traffic),
	};

	cfs_log_init(CFS_LOG_STDERR, CFS_LOG_ERR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
