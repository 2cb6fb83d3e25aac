/* SPDX-License-Identifier: Apache-2.0 */
/* The frames of the peer protocol and its handshake, without sockets. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "transport/wire/crc.h"
#include "transport/wire/frame.h"
#include "transport/wire/handshake.h"

static const struct cfs_handshake_keys keys = {.key = {"0123456789abcdef0123456789abcdef"}, .n = 1};
static const struct cfs_handshake_keys other = {.key = {"x123456789abcdef0123456789abcdef"},
						.n = 1};

/* Otherwise every large answer is thrown away as wrong. */
static void test_joined_crc_is_that_of_the_whole(void **state)
{
	static uint8_t data[300000];
	uint32_t crc = 0;
	size_t i, n, pos;

	(void)state;
	for (i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)cfs_random_u64();
	for (pos = 0; pos < sizeof(data); pos += n) {
		n = CFS_MIN(sizeof(data) - pos, CFS_PEER_SEGMENT);
		crc = cfs_crc_join(crc, cfs_crc_add(0, data + pos, n), (uint32_t)n);
		assert_int_equal(crc, cfs_crc_add(0, data, pos + n));
	}
	for (n = 0; n < 70; n++)
		assert_int_equal(cfs_crc_join(cfs_crc_add(0, data, 100),
					      cfs_crc_add(0, data + 100, n), (uint32_t)n),
				 cfs_crc_add(0, data, 100 + n));
	/* RFC 3720, B.4: 32 bytes of zeros */
	memset(data, 0, 32);
	assert_int_equal(cfs_crc_add(0, data, 32), 0x8a9136aau);
}

static void put_raw(uint8_t h[CFS_WIRE_HEADER], struct cfs_frame f)
{
	cfs_wire_put(h, &f);
}

/* A header that was damaged, or made by something else, would be taken at its word. */
static void test_parser_is_strict(void **state)
{
	struct cfs_frame good = {.type = CFS_FRAME_ANSWER, .id = 7, .len = 4096, .crc = 1}, got;
	struct cfs_frame bad[] = {
		{.type = 0},
		{.type = CFS_FRAME_TYPES},
		{.type = CFS_FRAME_ANSWER, .id = 1},		   /* no data, no error */
		{.type = CFS_FRAME_ANSWER, .status = 1, .len = 1}, /* both */
		{.type = CFS_FRAME_ANSWER, .len = CFS_PEER_BLOCK_MAX + 1},
		{.type = CFS_FRAME_ANSWER, .len = 1, .flags = 1},
		{.type = CFS_FRAME_ANSWER, .status = CFS_STATUS_COUNT},
		{.type = CFS_FRAME_ANSWER, .status = CFS_STATUS_AUTH},
		{.type = CFS_FRAME_ANSWER, .status = CFS_STATUS_VERSION},
		{.type = CFS_FRAME_REFUSE},
		{.type = CFS_FRAME_REFUSE, .status = CFS_STATUS_NOT_FOUND}, /* an answer's */
		{.type = CFS_FRAME_GET, .len = CFS_WIRE_GET_LEN - 1},
		{.type = CFS_FRAME_GET, .len = CFS_WIRE_GET_LEN + 1},
		{.type = CFS_FRAME_GET, .len = CFS_WIRE_GET_LEN, .flags = 4},
		{.type = CFS_FRAME_WORKING, .len = CFS_WIRE_WORKING_LEN - 1, .id = 1},
		{.type = CFS_FRAME_WORKING, .len = CFS_WIRE_WORKING_LEN + 1, .id = 1},
		{.type = CFS_FRAME_WORKING, .status = 1, .id = 1},
		{.type = CFS_FRAME_GET, .len = CFS_WIRE_GET_LEN, .status = 1},
		{.type = CFS_FRAME_HELLO, .len = CFS_HELLO_LEN, .id = 1},
		{.type = CFS_FRAME_HELLO, .len = UINT32_MAX},
		{.type = CFS_FRAME_CANCEL, .id = 1, .crc = 1},
		{.type = CFS_FRAME_DRAIN, .id = 1},
	};
	uint8_t h[CFS_WIRE_HEADER];
	unsigned i;

	(void)state;
	put_raw(h, good);
	assert_int_equal(cfs_wire_parse(h, &got), 0);
	assert_int_equal(got.id, good.id);
	assert_int_equal(got.len, good.len);
	assert_int_equal(got.crc, good.crc);
	for (i = 0; i < CFS_WIRE_HEADER * 8; i++) {
		h[i / 8] ^= (uint8_t)(1u << i % 8);
		assert_int_equal(cfs_wire_parse(h, &got), -EPROTO);
		h[i / 8] ^= (uint8_t)(1u << i % 8);
	}
	for (i = 0; i < CFS_ARRAY_SIZE(bad); i++) {
		put_raw(h, bad[i]);
		assert_int_equal(cfs_wire_parse(h, &got), -EPROTO);
	}
}

static void test_ranges_stay_within_the_block(void **state)
{
	struct cfs_wire_get g = {{1, 2, 4 << 20}, 4096, 8192}, got;
	struct cfs_wire_get bad[] = {
		{{1, 2, 0}, 0, 1},
		{{1, 2, CFS_PEER_BLOCK_MAX + 1}, 0, 1},
		{{1, 2, 100}, 0, 0},
		{{1, 2, 100}, 0, 101},
		{{1, 2, 100}, 100, 1},
		{{1, 2, 100}, UINT32_MAX, 2},
		{{1, 2, 100}, 2, UINT32_MAX},
	};
	struct cfs_peer_block b;
	enum cfs_peer_hint hint;
	struct cfs_wire_session session = {.session = 0x123456789abcdef0, .port = 4791};
	struct cfs_wire_session session_back = {0};
	struct cfs_wire_lease lease = {.key = 77, .table_crc = 0xfedcba98, .lease_ms = 5000};
	struct cfs_wire_lease lease_back = {0};
	uint8_t buf[CFS_WIRE_CONTROL_MAX] = {0};
	unsigned i;

	(void)state;
	cfs_wire_put_get(buf, &g);
	assert_int_equal(cfs_wire_parse_get(buf, &got), 0);
	assert_memory_equal(&got, &g, sizeof(g));
	for (i = 0; i < CFS_ARRAY_SIZE(bad); i++) {
		cfs_wire_put_get(buf, &bad[i]);
		assert_int_equal(cfs_wire_parse_get(buf, &got), -EPROTO);
	}
	cfs_wire_put_hint(buf, &g.block, CFS_PEER_WARM);
	assert_int_equal(cfs_wire_parse_hint(buf, &b, &hint), 0);
	assert_int_equal(hint, CFS_PEER_WARM);
	cfs_wire_put_hint(buf, &g.block, (enum cfs_peer_hint)3);
	assert_int_equal(cfs_wire_parse_hint(buf, &b, &hint), -EPROTO);
	cfs_wire_put_session(buf, &session);
	assert_int_equal(cfs_wire_parse_session(buf, &session_back), 0);
	assert_true(session_back.session == session.session && session_back.port == session.port);
	buf[11] = 1;
	assert_int_equal(cfs_wire_parse_session(buf, &session_back), -EPROTO);
	session.port = 0;
	cfs_wire_put_session(buf, &session);
	assert_int_equal(cfs_wire_parse_session(buf, &session_back), -EPROTO);
	lease.block = g.block;
	cfs_wire_put_lease(buf, &lease);
	assert_int_equal(cfs_wire_parse_lease(buf, &lease_back), 0);
	assert_memory_equal(&lease.block, &lease_back.block, sizeof(lease.block));
	assert_true(lease_back.key == lease.key && lease_back.table_crc == lease.table_crc &&
		    lease_back.lease_ms == lease.lease_ms);
	cfs_put_be32(buf + 24, CFS_WIRE_LEASE_MAX_MS + 1);
	assert_int_equal(cfs_wire_parse_lease(buf, &lease_back), -EPROTO);
	cfs_put_be32(buf + 24, 0);
	assert_int_equal(cfs_wire_parse_lease(buf, &lease_back), -EPROTO);
	cfs_put_be32(buf + 24, 1);
	cfs_put_be32(buf + 12, CFS_PEER_BLOCK_MAX + 1);
	assert_int_equal(cfs_wire_parse_lease(buf, &lease_back), -EPROTO);
}

/* TCP delivers in any pieces: a frame must not depend on them. */
static void test_reader_takes_any_pieces(void **state)
{
	uint8_t stream[400], payload[CFS_WIRE_GET_LEN];
	struct cfs_wire_get g = {{1, 2, 4096}, 0, 4096};
	struct cfs_frame f = {.type = CFS_FRAME_GET, .id = 1}, got;
	struct cfs_reader rd;
	size_t len = 0, piece, left;
	const uint8_t *p;
	unsigned frames;

	(void)state;
	cfs_wire_put_get(payload, &g);
	len += cfs_wire_control(stream + len, &f, payload, sizeof(payload));
	f = (struct cfs_frame){.type = CFS_FRAME_CANCEL, .id = 2};
	len += cfs_wire_control(stream + len, &f, NULL, 0);
	for (piece = 1; piece <= len; piece++) {
		size_t pos = 0;

		cfs_reader_init(&rd);
		for (frames = 0; pos < len; pos += CFS_MIN(piece, len - pos)) {
			p = stream + pos;
			left = CFS_MIN(piece, len - pos);
			while (cfs_reader_feed(&rd, &p, &left, &got) == 1)
				assert_int_equal(got.id, ++frames);
			assert_int_equal(left, 0);
		}
		assert_int_equal(frames, 2);
	}
	stream[CFS_WIRE_HEADER] ^= 1; /* payload */
	cfs_reader_init(&rd);
	p = stream;
	left = len;
	assert_int_equal(cfs_reader_feed(&rd, &p, &left, &got), -EBADMSG);
}

/* --- handshake --- */

struct side {
	struct cfs_handshake h;
	uint8_t out[CFS_HANDSHAKE_OUT];
	size_t len;
	int result;
};

/* What `from` has said last reaches `to`. */
static int deliver(struct side *from, struct side *to)
{
	struct cfs_reader rd;
	const uint8_t *p = from->out;
	struct cfs_frame f;
	size_t left = from->len;

	cfs_reader_init(&rd);
	assert_int_equal(cfs_reader_feed(&rd, &p, &left, &f), 1);
	to->result = cfs_handshake_frame(&to->h, &f, cfs_reader_payload(&rd), to->out, &to->len);
	return to->result;
}

static void begin(struct side *client, struct side *server, const struct cfs_handshake_keys *ckeys)
{
	memset(client, 0, sizeof(*client));
	memset(server, 0, sizeof(*server));
	assert_int_equal(cfs_handshake_client(&client->h, 11, 22, ckeys, client->out, &client->len),
			 0);
	cfs_handshake_server(&server->h, 22, &keys);
}

/* A control frame's payload is altered on the way, its CRC corrected. */
static void alter(struct side *s, size_t at, uint8_t mask)
{
	struct cfs_frame f = {.type = s->out[5]};
	uint8_t payload[CFS_WIRE_CONTROL_MAX];
	uint32_t len = (uint32_t)s->len - CFS_WIRE_HEADER;

	memcpy(payload, s->out + CFS_WIRE_HEADER, len);
	payload[at] ^= mask;
	cfs_wire_control(s->out, &f, payload, len);
}

static void test_handshake_of_two_members(void **state)
{
	struct side c, s;
	struct cfs_frame ready = {.type = CFS_FRAME_READY};
	uint8_t payload[CFS_WIRE_READY_LEN] = {0};

	(void)state;
	begin(&c, &s, &keys);
	assert_int_equal(deliver(&c, &s), 0);
	assert_int_equal(deliver(&s, &c), 0);
	assert_int_equal(deliver(&c, &s), 1);
	assert_int_equal(s.h.peer, 11);
	assert_int_equal(s.h.features, CFS_FEATURES);
	assert_int_equal(cfs_handshake_frame(&c.h, &ready, payload, c.out, &c.len), 1);
}

/* Somebody without the key would read the volume, or feed wrong blocks to it. */
static void test_wrong_key(void **state)
{
	struct side c, s;
	uint32_t id;

	(void)state;
	begin(&c, &s, &other);
	id = cfs_get_be32(c.h.hello + 4);
	assert_int_equal(deliver(&c, &s), -EACCES);
	assert_int_equal(deliver(&s, &c), -EACCES); /* is told so */

	/* Pretends to have the key by its id: cannot prove it. */
	begin(&c, &s, &keys);
	assert_int_not_equal(id, cfs_get_be32(c.h.hello + 4));
	memcpy(c.h.key, other.key[0], CFS_PEER_KEY_SIZE);
	assert_int_equal(deliver(&c, &s), 0);
	assert_int_equal(deliver(&s, &c), -EACCES); /* nor can it check the server's proof */
	c.len = CFS_WIRE_HEADER + CFS_PROOF_LEN;
	{
		struct cfs_frame f = {.type = CFS_FRAME_PROOF};
		uint8_t guess[CFS_PROOF_LEN] = {1};

		cfs_wire_control(c.out, &f, guess, sizeof(guess));
	}
	assert_int_equal(deliver(&c, &s), -EACCES);

	/* A server without the key. */
	begin(&c, &s, &keys);
	s.h.keys = &other;
	assert_int_equal(deliver(&c, &s), -EACCES);
}

static void test_key_rotation(void **state)
{
	struct cfs_handshake_keys both = {.n = 2};
	struct side c, s;

	(void)state;
	memcpy(both.key[0], other.key[0], CFS_PEER_KEY_SIZE);
	memcpy(both.key[1], keys.key[0], CFS_PEER_KEY_SIZE);
	begin(&c, &s, &keys);
	s.h.keys = &both;
	assert_int_equal(deliver(&c, &s), 0);
	assert_int_equal(deliver(&s, &c), 0);
	assert_int_equal(deliver(&c, &s), 1);
}

static void swap_keys(struct cfs_handshake_keys *k)
{
	struct cfs_handshake_keys was = *k;

	memcpy(k->key[0], was.key[1], CFS_PEER_KEY_SIZE);
	memcpy(k->key[1], was.key[0], CFS_PEER_KEY_SIZE);
}

/* Another key comes first while two members that know both shake hands. */
static void test_key_rotation_meanwhile(void **state)
{
	struct cfs_handshake_keys of_c = {.n = 2}, of_s;
	struct side c, s;

	(void)state;
	memcpy(of_c.key[0], keys.key[0], CFS_PEER_KEY_SIZE);
	memcpy(of_c.key[1], other.key[0], CFS_PEER_KEY_SIZE);
	of_s = of_c;
	for (int when = 0; when < 3; when++) {
		begin(&c, &s, &of_c);
		s.h.keys = &of_s;
		if (when == 0)
			swap_keys(&of_c);
		assert_int_equal(deliver(&c, &s), 0);
		if (when == 1)
			swap_keys(&of_s);
		assert_int_equal(deliver(&s, &c), 0);
		if (when == 2)
			swap_keys(&of_s);
		assert_int_equal(deliver(&c, &s), 1);
	}
}

/* Recorded frames must be worth nothing on another connection. */
static void test_replay(void **state)
{
	struct side c, s, s2;
	struct side hello, proof;

	(void)state;
	begin(&c, &s, &keys);
	hello = c;
	assert_int_equal(deliver(&c, &s), 0);
	assert_int_equal(deliver(&s, &c), 0);
	proof = c;
	assert_int_equal(deliver(&c, &s), 1);

	memset(&s2, 0, sizeof(s2));
	cfs_handshake_server(&s2.h, 22, &keys);
	assert_int_equal(deliver(&hello, &s2), 0);
	assert_int_equal(deliver(&proof, &s2), -EACCES);
	/* And a recorded CHALLENGE to another HELLO. */
	{
		struct side c2, s3, recorded = {0};

		begin(&c2, &s3, &keys);
		assert_int_equal(deliver(&c2, &s3), 0);
		recorded.len = cfs_wire_control(recorded.out,
						&(struct cfs_frame){.type = CFS_FRAME_CHALLENGE},
						s.h.challenge, CFS_CHALLENGE_LEN);
		assert_int_equal(deliver(&recorded, &c2), -EACCES);
	}
}

/* A member's own words sent back to it must not authenticate whoever sends them. */
static void test_reflection(void **state)
{
	struct side c, s, back;

	(void)state;
	/* The server's HELLO-taker gets a HELLO with its own id. */
	begin(&c, &s, &keys);
	assert_int_equal(cfs_handshake_client(&back.h, 22, 22, &keys, back.out, &back.len), 0);
	assert_int_equal(deliver(&back, &s), -EACCES);
	/* The server's own proof is not a client's. */
	begin(&c, &s, &keys);
	assert_int_equal(deliver(&c, &s), 0);
	back.len =
		cfs_wire_control(back.out, &(struct cfs_frame){.type = CFS_FRAME_PROOF},
				 s.h.challenge + CFS_CHALLENGE_LEN - CFS_PROOF_LEN, CFS_PROOF_LEN);
	assert_int_equal(deliver(&back, &s), -EACCES);
	/* A client that gets its HELLO back. */
	begin(&c, &s, &keys);
	assert_int_equal(deliver(&c, &c), -EPROTO);
}

/* A relay with one TLS connection to each side cannot pass their proofs on. */
static void test_other_channel(void **state)
{
	static const uint8_t one[CFS_HANDSHAKE_BINDING] = "one", two[CFS_HANDSHAKE_BINDING] = "two";
	const uint8_t *sides[][2] = {{one, one}, {one, two}, {one, NULL}, {NULL, one}};
	struct side c, s;
	size_t i;

	(void)state;
	for (i = 0; i < CFS_ARRAY_SIZE(sides); i++) {
		begin(&c, &s, &keys);
		if (sides[i][0])
			cfs_handshake_bind(&c.h, sides[i][0]);
		if (sides[i][1])
			cfs_handshake_bind(&s.h, sides[i][1]);
		assert_int_equal(deliver(&c, &s), 0);
		assert_int_equal(deliver(&s, &c), i == 0 ? 0 : -EACCES);
		if (i == 0)
			assert_int_equal(deliver(&c, &s), 1);
	}
	/* Nor a server alone take a proof of another channel. */
	begin(&c, &s, &keys);
	assert_int_equal(deliver(&c, &s), 0);
	assert_int_equal(deliver(&s, &c), 0);
	cfs_handshake_bind(&s.h, one);
	assert_int_equal(deliver(&c, &s), -EACCES);
}

/* The key of TLS as any implementation of HKDF-Expand (RFC 5869) has it. */
static void test_derived_key(void **state)
{
	static const uint8_t want[CFS_PEER_KEY_SIZE] = {
		0xff, 0x0d, 0x67, 0x39, 0xb9, 0x44, 0xa9, 0xe6, 0x4c, 0x62, 0xaa,
		0x68, 0x80, 0x32, 0x2d, 0xd7, 0x39, 0x07, 0x62, 0x6d, 0xc0, 0x23,
		0x7e, 0x48, 0x72, 0x63, 0x23, 0xcf, 0xce, 0x9f, 0x52, 0xca};
	uint8_t got[CFS_PEER_KEY_SIZE];

	(void)state;
	assert_int_equal(cfs_handshake_tls_key(keys.key[0], got), 0);
	assert_memory_equal(got, want, sizeof(want));
}

/* A relay cannot choose an older version, fewer features or another member. */
static void test_every_byte_is_bound(void **state)
{
	struct side c, s;
	size_t at;
	int step;

	(void)state;
	for (at = 0; at < CFS_HELLO_LEN; at++) {
		begin(&c, &s, &keys);
		alter(&c, at, 1);
		step = deliver(&c, &s);
		if (step == 0)
			step = deliver(&s, &c);
		assert_true(step < 0);
	}
	for (at = 0; at < CFS_CHALLENGE_LEN; at++) {
		begin(&c, &s, &keys);
		assert_int_equal(deliver(&c, &s), 0);
		alter(&s, at, 1);
		assert_true(deliver(&s, &c) < 0);
	}
	for (at = 0; at < CFS_PROOF_LEN; at++) {
		begin(&c, &s, &keys);
		assert_int_equal(deliver(&c, &s), 0);
		assert_int_equal(deliver(&s, &c), 0);
		alter(&c, at, 0x80);
		assert_int_equal(deliver(&c, &s), -EACCES);
	}
}

static void test_versions(void **state)
{
	struct side c, s;

	(void)state;
	begin(&c, &s, &keys);
	alter(&c, 1, CFS_WIRE_VERSION ^ 9); /* speaks 9 down to 1: the server's own is chosen */
	assert_int_equal(deliver(&c, &s), 0);
	assert_int_equal(cfs_get_be16(s.h.challenge), CFS_WIRE_VERSION);
	begin(&c, &s, &keys);
	alter(&c, 0, 1); /* 257 down to 1 */
	alter(&c, 2, 1); /* 257 down to 257 */
	assert_int_equal(deliver(&c, &s), -EPROTONOSUPPORT);
	assert_int_equal(deliver(&s, &c), -EPROTONOSUPPORT);
}

/* Nothing but the next step is looked at before both sides are known. */
static void test_order(void **state)
{
	uint8_t type, payload[CFS_WIRE_CONTROL_MAX] = {0};
	struct side c, s;

	(void)state;
	for (type = 1; type < CFS_FRAME_TYPES; type++) {
		struct cfs_frame f = {.type = type};

		begin(&c, &s, &keys);
		if (type != CFS_FRAME_HELLO)
			assert_int_equal(cfs_handshake_frame(&s.h, &f, payload, s.out, &s.len),
					 -EPROTO);
		if (type != CFS_FRAME_CHALLENGE && type != CFS_FRAME_REFUSE)
			assert_int_equal(cfs_handshake_frame(&c.h, &f, payload, c.out, &c.len),
					 -EPROTO);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_joined_crc_is_that_of_the_whole),
		cmocka_unit_test(test_parser_is_strict),
		cmocka_unit_test(test_ranges_stay_within_the_block),
		cmocka_unit_test(test_reader_takes_any_pieces),
		cmocka_unit_test(test_handshake_of_two_members),
		cmocka_unit_test(test_wrong_key),
		cmocka_unit_test(test_key_rotation),
		cmocka_unit_test(test_key_rotation_meanwhile),
		cmocka_unit_test(test_replay),
		cmocka_unit_test(test_reflection),
		cmocka_unit_test(test_other_channel),
		cmocka_unit_test(test_derived_key),
		cmocka_unit_test(test_every_byte_is_bound),
		cmocka_unit_test(test_versions),
		cmocka_unit_test(test_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
