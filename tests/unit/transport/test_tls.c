/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members that speak TLS, among those who do not, who have another key, or who sit in between:
 * nobody without the group's key is answered, nothing is sent in the clear, others go on.
 */
#include <errno.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "peer_fixture.h"

static _Atomic unsigned accepted;

/* In place of libc's: counts the connections that an owner has accepted. */
int accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags)
{
	int r = (int)syscall(SYS_accept4, fd, addr, len, flags);

	accepted += r >= 0;
	return r;
}

static _Atomic unsigned sessions;

SSL *__real_SSL_new(SSL_CTX *ctx);
SSL *__wrap_SSL_new(SSL_CTX *ctx);

/* The linker's --wrap. */
SSL *__wrap_SSL_new(SSL_CTX *ctx)
{
	sessions++;
	return __real_SSL_new(ctx);
}

static uint64_t served_errors(struct owner *o, enum cfs_peer_error kind)
{
	struct cfs_peer_stats st;

	cfs_transport_stats(o->t, NULL, &st);
	return st.errors[kind];
}

static void check_served(struct cfs_peer *p, struct owner *o)
{
	uint8_t *dst = malloc(o->len);

	assert_int_equal(ask(p, o, 0, o->len, dst), o->len);
	assert_memory_equal(dst, o->data, o->len);
	free(dst);
}

/* --- who is not let in --- */

static void test_wrong_key(void **state)
{
	struct cfs_transport_conf conf = {.key = "another"};
	struct cfs_transport *t = asker_conf(&conf), *member = asker();
	struct cfs_peer *p, *good;
	uint8_t dst[4096];
	struct owner o;

	(void)state;
	owner_open(&o, BLOCK);
	p = peer_at(t, &o.addr, o.addr_len);
	good = peer_at(member, &o.addr, o.addr_len);
	assert_int_equal(ask(p, &o, 0, sizeof(dst), dst), -EACCES);
	WAIT_FOR(served_errors(&o, CFS_PEER_E_AUTH) >= 1);
	assert_int_equal(o.gets, 0);
	check_served(good, &o);
	cfs_peer_close(p);
	cfs_peer_close(good);
	cfs_transport_destroy(t);
	cfs_transport_destroy(member);
	owner_close(&o);
}

/* Members with group-tls and members without do not talk to each other, either way round. */
static void test_one_side_only(void **state)
{
	struct cfs_transport *plain, *secret = asker();
	struct owner o, o_plain;
	struct cfs_peer *p, *good;
	uint8_t dst[4096];

	(void)state;
	owner_open(&o, BLOCK);
	with_tls = false;
	plain = asker();
	owner_open(&o_plain, BLOCK);
	with_tls = true;
	p = peer_at(plain, &o.addr, o.addr_len);
	assert_true(ask(p, &o, 0, sizeof(dst), dst) < 0);
	WAIT_FOR(served_errors(&o, CFS_PEER_E_PROTOCOL) >= 1);
	cfs_peer_close(p);
	p = peer_at(secret, &o_plain.addr, o_plain.addr_len);
	assert_true(ask(p, &o_plain, 0, sizeof(dst), dst) < 0);
	WAIT_FOR(served_errors(&o_plain, CFS_PEER_E_PROTOCOL) >= 1);
	cfs_peer_close(p);
	assert_int_equal(o.gets + o_plain.gets, 0);
	good = peer_at(secret, &o.addr, o.addr_len);
	check_served(good, &o);
	cfs_peer_close(good);
	good = peer_at(plain, &o_plain.addr, o_plain.addr_len);
	check_served(good, &o_plain);
	cfs_peer_close(good);
	cfs_transport_destroy(plain);
	cfs_transport_destroy(secret);
	owner_close(&o);
	owner_close(&o_plain);
}

/* --- raw bytes --- */

#define HELLO_RECORD 0x16, 3, 1

/* Nothing that a stranger sends ends in more than the loss of his connection. */
static void test_garbage(void **state)
{
	static const struct {
		const char *what;
		uint8_t head[12];
		unsigned n, filler, times;
	} cases[] = {
		{"garbage in a record", {HELLO_RECORD, 1, 0}, 5, 256, 1},
		{"a record that is too long", {HELLO_RECORD, 0xff, 0xff}, 5, 65535, 1},
		{"an empty record, often", {HELLO_RECORD, 0, 0}, 5, 0, 4000},
		{"alerts, often", {0x15, 3, 3, 0, 2, 1, 90}, 7, 0, 4000},
		{"alerts in a row after a hello's beginning",
		 {HELLO_RECORD, 0, 4, 1, 0, 1, 0},
		 9,
		 0,
		 4000},
		{"data before a key", {0x17, 3, 3, 1, 0}, 5, 256, 1},
		{"a hello of 128 KiB", {HELLO_RECORD, 0x40, 0, 1, 1, 0xff, 0xff}, 9, 16380, 9},
	};
	struct cfs_transport *t = asker();
	uint8_t *buf = calloc(1, 1 << 20);
	struct cfs_peer *p;
	struct owner o;
	unsigned i, k;

	(void)state;
	owner_open(&o, BLOCK);
	p = peer_at(t, &o.addr, o.addr_len);
	check_served(p, &o);
	for (i = 0; i < CFS_ARRAY_SIZE(cases); i++) {
		int fd = raw_connect(&o);
		size_t len = 0;

		for (k = 0; k < cases[i].times; k++) {
			memcpy(buf + len, cases[i].head, cases[i].n);
			memset(buf + len + cases[i].n, 'x', cases[i].filler);
			len += cases[i].n + cases[i].filler;
		}
		(void)raw_send(fd, buf, len); /* it may be cut off meanwhile */
		if (!raw_is_closed(fd))
			fail_msg("%s: still connected", cases[i].what);
		close(fd);
	}
	check_served(p, &o);
	assert_int_equal(o.gets, 2);
	cfs_peer_close(p);
	cfs_transport_destroy(t);
	owner_close(&o);
	free(buf);
}

/* Half a hello, then silence: the deadline of the handshake holds, others are served meanwhile. */
static void test_half_a_hello(void **state)
{
	static const uint8_t half[] = {HELLO_RECORD, 2, 0, 1, 0, 1, 0xfc, 3, 3, 'x', 'x'};
	struct cfs_transport_conf conf = {.connect_timeout_ms = LONG_MS / 10};
	struct cfs_transport *t = asker();
	struct cfs_peer *p;
	struct owner o;
	unsigned i;
	int fds[3];

	(void)state;
	owner_open_conf(&o, BLOCK, &conf);
	for (i = 0; i < CFS_ARRAY_SIZE(fds); i++) {
		fds[i] = raw_connect(&o);
		assert_true(raw_send(fds[i], half, i == 0 ? 1 : i == 1 ? 5 : sizeof(half)));
	}
	p = peer_at(t, &o.addr, o.addr_len);
	check_served(p, &o);
	for (i = 0; i < CFS_ARRAY_SIZE(fds); i++) {
		assert_true(raw_is_closed(fds[i]));
		close(fds[i]);
	}
	check_served(p, &o);
	cfs_peer_close(p);
	cfs_transport_destroy(t);
	owner_close(&o);
}

/* --- in between --- */

enum mischief { WATCH, FLIP, CUT, HALT };

struct relay {
	int listen_fd;
	struct sockaddr_in at;
	struct owner *o;
	enum mischief mischief;
	size_t after; /* bytes from the owner */
	_Atomic bool stop;
	_Atomic unsigned done;
	uint8_t *seen; /* of both directions */
	size_t n_seen;
	pthread_t thread;
};

#define SEEN_MAX (32u << 20)

static bool pass_on(struct relay *r, int from, int to, size_t *total, bool by_owner)
{
	uint8_t buf[8192];
	ssize_t n = recv(from, buf, sizeof(buf), 0);

	if (n <= 0)
		return false;
	if (by_owner && *total < r->after && *total + (size_t)n >= r->after) {
		if (r->mischief == FLIP)
			buf[r->after - *total - 1] ^= 1;
		r->done += r->mischief != WATCH;
		if (r->mischief == CUT || r->mischief == HALT)
			n = (ssize_t)(r->after - *total);
	}
	*total += (size_t)n;
	if (r->n_seen + (size_t)n <= SEEN_MAX) {
		memcpy(r->seen + r->n_seen, buf, (size_t)n);
		r->n_seen += (size_t)n;
	}
	if (send(to, buf, (size_t)n, MSG_NOSIGNAL) != n)
		return false;
	if (by_owner && *total == r->after && r->mischief == HALT)
		WAIT_FOR(r->stop);
	return !by_owner || *total != r->after || r->mischief != CUT;
}

static void *relay_run(void *arg)
{
	struct relay *r = arg;

	while (!r->stop) {
		struct pollfd l = {.fd = r->listen_fd, .events = POLLIN};
		size_t total[2] = {0};
		int c, s;

		if (poll(&l, 1, 20) != 1)
			continue;
		c = accept(r->listen_fd, NULL, NULL);
		s = raw_connect(r->o);
		while (!r->stop) {
			struct pollfd p[2] = {{.fd = c, .events = POLLIN},
					      {.fd = s, .events = POLLIN}};

			if (poll(p, 2, 20) < 1)
				continue;
			if ((p[0].revents && !pass_on(r, c, s, &total[0], false)) ||
			    (p[1].revents && !pass_on(r, s, c, &total[1], true)))
				break;
		}
		close(c);
		close(s);
	}
	return NULL;
}

static void relay_start(struct relay *r, struct owner *o, enum mischief mischief, size_t after)
{
	socklen_t len = sizeof(r->at);

	memset(r, 0, sizeof(*r));
	r->o = o;
	r->mischief = mischief;
	r->after = after;
	r->seen = malloc(SEEN_MAX);
	r->at = loopback();
	r->listen_fd = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(bind(r->listen_fd, (void *)&r->at, len), 0);
	assert_int_equal(listen(r->listen_fd, 16), 0);
	getsockname(r->listen_fd, (void *)&r->at, &len);
	assert_int_equal(pthread_create(&r->thread, NULL, relay_run, r), 0);
}

static void relay_stop(struct relay *r)
{
	r->stop = true;
	pthread_join(r->thread, NULL);
	close(r->listen_fd);
}

/* An eavesdropper sees neither frames nor blocks. */
static void test_nothing_in_the_clear(void **state)
{
	bool kernel = access("/proc/net/tls_stat", F_OK) == 0;
	enum cfs_peer_transport by = kernel ? CFS_PEER_KTLS : CFS_PEER_TLS;
	struct cfs_transport *t = asker();
	struct cfs_peer_stats st;
	struct cfs_peer *p;
	struct relay r;
	struct owner o;

	(void)state;
	owner_open(&o, BLOCK);
	relay_start(&r, &o, WATCH, 0);
	p = peer_at(t, &r.at, sizeof(r.at));
	check_served(p, &o);
	cfs_transport_stats(t, &st, NULL);
	assert_int_equal(st.conns_by[CFS_PEER_TCP], 0);
	assert_true(st.conns_by[CFS_PEER_TLS] >= 1);
	cfs_transport_stats(o.t, NULL, &st);
	assert_int_equal(st.conns_by[CFS_PEER_TCP], 0);
	/* The kernel encrypts what an owner sends, where it can. */
	assert_int_equal(st.conns, st.conns_by[by]);
	cfs_peer_close(p);
	relay_stop(&r);
	assert_true(r.n_seen > BLOCK);
	assert_null(memmem(r.seen, r.n_seen, "CFSP", 4));
	assert_null(memmem(r.seen, r.n_seen, o.data + 1000, 64));
	free(r.seen);
	cfs_transport_destroy(t);
	owner_close(&o);
}

/* Any damage to the stream is an error, never wrong bytes, and the next connection works. */
static void test_altered_stream(void **state)
{
	static const enum mischief all[] = {FLIP, CUT, HALT};
	static const size_t after[] = {6, 100, 700, 5000, 40000, 1000001};
	struct cfs_transport_conf conf = {.connect_timeout_ms = LONG_MS};
	struct cfs_transport *t = asker_conf(&conf);
	struct cfs_peer *p, *good;
	struct owner o;
	struct relay r;
	unsigned i, k;
	sem_t done;

	(void)state;
	sem_init(&done, 0, 0);
	owner_open(&o, BLOCK);
	good = peer_at(t, &o.addr, o.addr_len);
	for (i = 0; i < CFS_ARRAY_SIZE(all); i++) {
		for (k = 0; k < CFS_ARRAY_SIZE(after); k++) {
			struct many m = {.done = &done};

			relay_start(&r, &o, all[i], after[k]);
			p = peer_at(t, &r.at, sizeof(r.at));
			assert_int_equal(start_one(p, &m, &o, 0, BLOCK, LONG_MS), 0);
			if (all[i] == HALT) {
				WAIT_FOR(r.done);
				cfs_peer_cancel(p, &m.get);
			}
			wait_post(&done);
			if (r.done == 0 || m.err >= 0)
				fail_msg("mischief %u after %zu: %d", all[i], after[k], m.err);
			cfs_peer_close(p);
			relay_stop(&r);
			check_served(good, &o);
			free(r.seen);
			free(m.dst);
		}
	}
	cfs_peer_close(good);
	cfs_transport_destroy(t);
	owner_close(&o);
	sem_destroy(&done);
}

/* --- an impostor with a certificate --- */

struct impostor {
	SSL_CTX *ctx;
	int fd;
	_Atomic bool stop;
	pthread_t thread;
};

static void certify(SSL_CTX *ctx)
{
	EVP_PKEY *key = EVP_EC_gen("P-256");
	X509 *x = X509_new();

	assert_non_null(key);
	ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
	X509_gmtime_adj(X509_getm_notBefore(x), -3600);
	X509_gmtime_adj(X509_getm_notAfter(x), 3600);
	X509_set_pubkey(x, key);
	assert_true(X509_sign(x, key, EVP_sha256()) > 0);
	assert_int_equal(SSL_CTX_use_certificate(ctx, x), 1);
	assert_int_equal(SSL_CTX_use_PrivateKey(ctx, key), 1);
	X509_free(x);
	EVP_PKEY_free(key);
}

static void *impostor_run(void *arg)
{
	struct impostor *m = arg;

	while (!m->stop) {
		struct pollfd p = {.fd = m->fd, .events = POLLIN};
		SSL *ssl;
		char c;
		int fd;

		if (poll(&p, 1, 20) != 1)
			continue;
		fd = accept(m->fd, NULL, NULL);
		ssl = SSL_new(m->ctx);
		SSL_set_fd(ssl, fd);
		/* A member would say HELLO next. */
		if (SSL_accept(ssl) == 1 && SSL_read(ssl, &c, 1) == 1)
			fail_msg("a member believes a certificate");
		SSL_free(ssl);
		close(fd);
	}
	return NULL;
}

static void test_certificate_is_no_key(void **state)
{
	struct impostor m = {.ctx = SSL_CTX_new(TLS_server_method())};
	struct cfs_transport *t = asker();
	struct sockaddr_in at = loopback();
	socklen_t len = sizeof(at);
	struct cfs_peer *p;
	uint8_t dst[4096];

	(void)state;
	certify(m.ctx);
	m.fd = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(bind(m.fd, (void *)&at, len), 0);
	assert_int_equal(listen(m.fd, 16), 0);
	getsockname(m.fd, (void *)&at, &len);
	assert_int_equal(pthread_create(&m.thread, NULL, impostor_run, &m), 0);
	p = peer_at(t, &at, len);
	assert_int_equal(ask(p, NULL, 0, sizeof(dst), dst), -EACCES);
	cfs_peer_close(p);
	cfs_transport_destroy(t);
	m.stop = true;
	pthread_join(m.thread, NULL);
	close(m.fd);
	SSL_CTX_free(m.ctx);
}

/* --- many who say nothing --- */

/* A client that only connects, within the limits or beyond, costs no TLS session. */
static void test_silent_connections(void **state)
{
	enum { N = 12, LIMIT = 4 };
	struct cfs_transport_conf conf = {.max_unauthenticated_per_addr = LIMIT};
	struct cfs_transport *t = asker();
	struct cfs_peer *p;
	unsigned before, cut = 0;
	struct pollfd pfd[N];
	struct owner o;
	int i;

	(void)state;
	owner_open_conf(&o, BLOCK, &conf);
	before = sessions;
	for (i = 0; i < N; i++)
		pfd[i] = (struct pollfd){.fd = raw_connect(&o), .events = POLLIN};
	for (i = LIMIT; i < N; i++)
		cut += raw_is_closed(pfd[i].fd);
	assert_int_equal(cut, N - LIMIT);
	assert_int_equal(poll(pfd, LIMIT, 0), 0);
	assert_int_equal(sessions, before);
	for (i = 0; i < N; i++)
		close(pfd[i].fd);
	WAIT_FOR(served_errors(&o, CFS_PEER_E_PROTOCOL) >= LIMIT);
	p = peer_at(t, &o.addr, o.addr_len);
	check_served(p, &o);
	assert_true(sessions >= before + 2);
	cfs_peer_close(p);
	cfs_transport_destroy(t);
	owner_close(&o);
}

/* --- keys are not used for ever --- */

static void test_worn_connection_is_replaced(void **state)
{
	struct cfs_transport_conf conf = {.tls_records = 500};
	struct cfs_transport *t = asker_conf(&conf);
	struct cfs_peer *p;
	unsigned i, before;
	struct owner o;

	(void)state;
	owner_open(&o, BLOCK); /* 256 records */
	p = peer_at(t, &o.addr, o.addr_len);
	before = accepted;
	for (i = 0; i < 12; i++)
		check_served(p, &o);
	assert_in_range(accepted - before, 3, 12);
	cfs_peer_close(p);
	cfs_transport_destroy(t);
	owner_close(&o);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_wrong_key),
		cmocka_unit_test(test_one_side_only),
		cmocka_unit_test(test_silent_connections),
		cmocka_unit_test(test_garbage),
		cmocka_unit_test(test_half_a_hello),
		cmocka_unit_test(test_nothing_in_the_clear),
		cmocka_unit_test(test_altered_stream),
		cmocka_unit_test(test_certificate_is_no_key),
		cmocka_unit_test(test_worn_connection_is_replaced),
	};

	cfs_log_init(CFS_LOG_STDERR, CFS_LOG_ERR);
	with_tls = true;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
