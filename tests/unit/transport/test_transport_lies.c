/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The peer transport among owners that lie: every reader gets right bytes or an error within its
 * deadline, and who lies is soon left out.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "peer_fixture.h"
#include "transport/wire/crc.h"

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
	DRIPS,
	REPLAYS,
	OLD_ANSWERS,
	REPEATS,
	NOBODYS,
	LEAVES,
	HALF,
	EMPTY_WORKING,
};

struct liar {
	int fd;
	struct sockaddr_in sa;
	enum lie lie;
	_Atomic bool honest; /* answers with zeros */
	pthread_t thread;
	_Atomic bool stop;
	uint8_t recorded[CFS_HANDSHAKE_OUT];
	size_t n_recorded;
	uint8_t answer[CFS_WIRE_HEADER]; /* the first that was given */
	bool answered;
};

static void answer_zeros(int fd, const struct cfs_wire_get *g, struct cfs_frame *a)
{
	static const uint8_t zeros[4096];
	uint8_t header[CFS_WIRE_HEADER];

	assert_int_equal(g->len, sizeof(zeros));
	a->len = g->len;
	a->crc = cfs_crc_add(0, zeros, sizeof(zeros));
	cfs_wire_put(header, a);
	raw_send(fd, header, sizeof(header));
	raw_send(fd, zeros, sizeof(zeros));
}

/* An answer of zeros; from then on, and on any connection, always the same one. */
static void answer_once(struct liar *l, int fd, const struct cfs_wire_get *g, struct cfs_frame *a)
{
	static const uint8_t zeros[4096];

	assert_int_equal(g->len, sizeof(zeros));
	a->len = g->len;
	a->crc = cfs_crc_add(0, zeros, sizeof(zeros));
	if (!l->answered)
		cfs_wire_put(l->answer, a);
	l->answered = true;
	raw_send(fd, l->answer, sizeof(l->answer));
	raw_send(fd, zeros, sizeof(zeros));
}

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
		if (l->honest) {
			answer_zeros(fd, &g, &a);
			continue;
		}
		if (l->lie == LEAVES) {
			struct cfs_frame drain = {.type = CFS_FRAME_DRAIN};

			raw_send(fd, out, cfs_wire_control(out, &drain, NULL, 0));
		}
		if (l->lie == EMPTY_WORKING) { /* as without CFS_FEATURE_LEFT */
			a.type = CFS_FRAME_WORKING;
			raw_send(fd, out, cfs_wire_control(out, &a, NULL, 0));
			raw_is_closed(fd);
			return;
		}
		if (l->lie == NOBODYS)
			a.id++;
		if (l->lie == REPEATS || l->lie == NOBODYS || l->lie == LEAVES) {
			answer_zeros(fd, &g, &a);
			if (l->lie == REPEATS)
				answer_zeros(fd, &g, &a);
			continue;
		}
		a.len = g.len;
		a.crc = 12345;
		if (l->lie == SILENT)
			continue;
		if (l->lie == CLOSES)
			return;
		if (l->lie == OLD_ANSWERS) {
			answer_once(l, fd, &g, &a);
			continue;
		}
		if (l->lie == OTHER_LENGTH)
			a.len--;
		if (l->lie == LONG_BODY)
			a.len = CFS_PEER_BLOCK_MAX + 1;
		cfs_wire_put(out, &a);
		if (l->lie == GARBAGE)
			memset(out, 0xa5, CFS_WIRE_HEADER);
		raw_send(fd, out, CFS_WIRE_HEADER);
		if (l->lie == DRIPS) {
			while (raw_send(fd, body, 1))
				poll(NULL, 0, 20);
			return;
		}
		if (l->lie == HALF) {
			raw_send(fd, body, g.len / 2);
			return;
		}
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

/* Of a read: short where silence is to be noticed, long where a busy machine must not look silent. */
static uint64_t time_for(ssize_t wanted)
{
	return wanted == -ETIMEDOUT ? 500 : LONG_MS;
}

/* With any answer of a peer, a reader gets the right bytes or an error within its deadline. */
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
		{ECHO, -EPROTO, -EHOSTDOWN},	   {EMPTY_WORKING, -EPROTO, -EPROTO},
	};
	uint8_t *dst = malloc(1 << 20);
	unsigned i;

	(void)state;
	for (i = 0; i < CFS_ARRAY_SIZE(cases); i++) {
		bool connects = cases[i].lie != HALF_CHALLENGE;
		struct cfs_transport_conf conf = {
			.connect_timeout_ms = connects ? LONG_MS : 200,
			.probe_ms = 60000,
		};
		struct cfs_transport *t = asker_conf(&conf);
		struct liar l;
		struct cfs_peer *p;
		uint64_t began = cfs_now_ms();
		ssize_t n;

		liar_open(&l, cases[i].lie);
		p = peer_at(t, &l.sa, sizeof(l.sa));
		n = ask_within(p, NULL, 0, 4096, dst, connects ? time_for(cases[i].err) : LONG_MS);
		if (n != cases[i].err)
			fail_msg("case %u: %zd", i, n);
		n = ask_within(p, NULL, 0, 1 << 20, dst, time_for(cases[i].err_large));
		if (n != cases[i].err_large)
			fail_msg("case %u, large: %zd", i, n);
		assert_true(cfs_now_ms() - began < LONG_MS / 4);
		cfs_peer_close(p);
		cfs_transport_destroy(t);
		liar_close(&l);
	}
	free(dst);
}

/*
 * Until a thread has received an answer. On a busy machine the loop takes a connection back that
 * was unused between two requests.
 */
static void ask_until_direct(struct cfs_peer *p, uint8_t dst[4096])
{
	struct cfs_peer_stats st;
	enum cfs_peer_state circuit;

	WAIT_FOR((assert_int_equal(ask_within(p, NULL, 0, 4096, dst, LONG_MS), 4096),
		  cfs_peer_stats(p, &st, &circuit), st.direct > 0));
}

/* The same during inline receive. */
static void test_lies_to_a_thread(void **state)
{
	static const struct {
		enum lie lie;
		ssize_t ret;
		enum cfs_peer_error counted; /* CFS_PEER_E_COUNT: none */
	} cases[] = {
		{WRONG_BYTES, -EBADMSG, CFS_PEER_E_CHECKSUM},
		{SHORT_BODY, -ETIMEDOUT, CFS_PEER_E_TIMEOUT},
		{LONG_BODY, -EPROTO, CFS_PEER_E_PROTOCOL},
		{OTHER_LENGTH, -EPROTO, CFS_PEER_E_PROTOCOL},
		{GARBAGE, -EPROTO, CFS_PEER_E_PROTOCOL},
		{EMPTY_WORKING, -EPROTO, CFS_PEER_E_PROTOCOL},
		{CLOSES, -ECONNRESET, CFS_PEER_E_LOST},
		{HALF, -ECONNRESET, CFS_PEER_E_LOST},
		{SILENT, -ETIMEDOUT, CFS_PEER_E_TIMEOUT},
		{DRIPS, -ETIMEDOUT, CFS_PEER_E_TIMEOUT},
		{NOBODYS, -ETIMEDOUT, CFS_PEER_E_TIMEOUT},
		{REPEATS, 4096, CFS_PEER_E_COUNT},
		{LEAVES, 4096, CFS_PEER_E_COUNT},
	};
	static const uint8_t zeros[4096];
	uint8_t dst[4096];
	unsigned i, k;

	(void)state;
	for (i = 0; i < CFS_ARRAY_SIZE(cases); i++) {
		struct cfs_transport *t = asker();
		struct cfs_peer_stats st;
		enum cfs_peer_state circuit;
		struct liar l;
		struct cfs_peer *p;
		uint64_t began;
		ssize_t n;

		liar_open(&l, cases[i].lie);
		l.honest = true;
		p = peer_at(t, &l.sa, sizeof(l.sa));
		ask_until_direct(p, dst);
		l.honest = false;
		began = cfs_now_ms();
		memset(dst, 1, sizeof(dst));
		n = ask_within(p, NULL, 0, 4096, dst, time_for(cases[i].ret));
		if (n != cases[i].ret)
			fail_msg("case %u: %zd", i, n);
		assert_true(cfs_now_ms() - began < LONG_MS / 4);
		if (n > 0)
			assert_memory_equal(dst, zeros, sizeof(dst));
		cfs_peer_stats(p, &st, &circuit);
		for (k = 0; k < CFS_PEER_E_COUNT; k++)
			assert_int_equal(st.errors[k], k == cases[i].counted);
		/* A peer that only said it twice, or leaves, is believed again. */
		for (k = 0; n > 0 && k < 4; k++)
			assert_int_equal(ask_within(p, NULL, 0, 4096, dst, LONG_MS), 4096);
		cfs_peer_close(p);
		cfs_transport_destroy(t);
		liar_close(&l);
	}
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

/* A peer that proves its membership and then breaks the protocol is not asked for ever. */
static void test_liar_is_left_out(void **state)
{
	static const struct {
		enum lie lie;
		int err;
	} cases[] = {{GARBAGE, -EPROTO},
		     {WRONG_BYTES, -EBADMSG},
		     {CLOSES, -ECONNRESET},
		     {DRIPS, -ETIMEDOUT}};
	struct cfs_transport_conf conf = {.failures = 3, .probe_ms = 60000};
	uint8_t dst[8192];
	unsigned i, k;

	(void)state;
	for (i = 0; i < CFS_ARRAY_SIZE(cases); i++) {
		struct cfs_transport *t = asker_conf(&conf);
		struct liar l;
		struct cfs_peer *p;

		liar_open(&l, cases[i].lie);
		p = peer_at(t, &l.sa, sizeof(l.sa));
		for (k = 0; k < conf.failures; k++)
			assert_int_equal(ask_within(p, NULL, 0, 8192, dst, time_for(cases[i].err)),
					 cases[i].err);
		if (cases[i].err == -ETIMEDOUT) /* on a busy machine not each one counts */
			WAIT_FOR(ask_within(p, NULL, 0, 8192, dst, 500) == -EHOSTDOWN);
		assert_int_equal(ask_within(p, NULL, 0, 8192, dst, 500), -EHOSTDOWN);
		cfs_peer_close(p);
		cfs_transport_destroy(t);
		liar_close(&l);
	}
}

/* An answer of another connection, checksums and all, is no answer on this one. */
static void test_replayed_answer(void **state)
{
	struct cfs_transport *t = asker();
	uint8_t dst[4096];
	struct liar l;
	struct cfs_peer *p;

	(void)state;
	liar_open(&l, OLD_ANSWERS);
	p = peer_at(t, &l.sa, sizeof(l.sa));
	assert_int_equal(ask_within(p, NULL, 0, 4096, dst, 5000), 4096);
	assert_int_equal(ask_within(p, NULL, 4096, 4096, dst, 300), -ETIMEDOUT);
	cfs_peer_close(p);
	p = peer_at(t, &l.sa, sizeof(l.sa));
	assert_int_equal(ask_within(p, NULL, 8192, 4096, dst, 300), -ETIMEDOUT);
	cfs_peer_close(p);
	cfs_transport_destroy(t);
	liar_close(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lying_owners),	   cmocka_unit_test(test_lies_to_a_thread),
		cmocka_unit_test(test_replayed_challenge), cmocka_unit_test(test_replayed_answer),
		cmocka_unit_test(test_liar_is_left_out),
	};

	cfs_log_init(CFS_LOG_STDERR, CFS_LOG_ERR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
