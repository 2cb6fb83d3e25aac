/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The frames and the handshake of the peer transport, fed by libFuzzer or, from files, by
 * replay.c. The first byte of an input says how the rest is used:
 *
 *	0	a byte stream, cut into pieces, as it comes from a socket
 *	4	the same, but the checksums of headers are made right
 *	1, 2	frames for a server's, a client's handshake: type, status, payload; CRCs are made
 *		right, so that what lies behind them is reached
 *	3	payloads of requests, hints, READY, RDMA and LEASE; private data of queue pairs
 *	5, 6	as 1, 2, inside TLS
 *
 * No input admits a peer that does not have the key.
 */
#include <openssl/hmac.h>

#include "base/bytes.h"
#include "fuzz.h"
#include "transport/rdma/binding.h"
#include "transport/wire/crc.h"
#include "transport/wire/frame.h"
#include "transport/wire/handshake.h"

int RAND_bytes(unsigned char *buf, int num);

/* In place of libcrypto's: an input must always do the same. */
int RAND_bytes(unsigned char *buf, int num)
{
	memset(buf, 0x5a, (size_t)num);
	return 1;
}

static const struct cfs_handshake_keys keys = {.key = {"fuzz", "zzuf"}, .n = 2};

static const uint8_t binding[CFS_HANDSHAKE_BINDING] = "of this connection";

static void stream(const uint8_t *data, size_t size)
{
	struct cfs_reader rd;
	struct cfs_frame f;
	size_t piece, left, before;

	if (size == 0)
		return;
	piece = data[0] + 1u;
	data++;
	size--;
	cfs_reader_init(&rd);
	while (size > 0) {
		const uint8_t *p = data;
		int r;

		left = before = CFS_MIN(piece, size);
		while ((r = cfs_reader_feed(&rd, &p, &left, &f)) == 1) {
			uint8_t again[CFS_WIRE_HEADER];

			check(p + left == data + before);
			cfs_wire_put(again, &f);
			check(memcmp(again, rd.buf, sizeof(again)) == 0);
			check(f.type == CFS_FRAME_ANSWER || f.len <= CFS_WIRE_CONTROL_MAX);
		}
		if (r < 0)
			return;
		check(left == 0 && rd.have < rd.want && rd.want <= sizeof(rd.buf));
		data += before;
		size -= before;
	}
}

/* Headers that begin where the one before has said that it ends. */
static void seal(uint8_t *data, size_t size)
{
	while (size >= CFS_WIRE_HEADER) {
		/* The payload of an answer is not the reader's. */
		size_t len = data[5] == CFS_FRAME_ANSWER ? 0 : cfs_get_be32(data + 16);

		cfs_put_be32(data, CFS_WIRE_MAGIC);
		data[4] = 1;
		if (len > 0 && len <= size - CFS_WIRE_HEADER)
			cfs_put_be32(data + 20, cfs_crc_add(0, data + CFS_WIRE_HEADER, len));
		cfs_put_be32(data + 28, cfs_crc_add(0, data, 28));
		len = CFS_MIN(CFS_WIRE_HEADER + len, size);
		data += len;
		size -= len;
	}
}

static void sealed_stream(const uint8_t *data, size_t size)
{
	uint8_t *copy = malloc(size);

	check(copy != NULL);
	memcpy(copy, data, size);
	seal(copy + 1, size - 1);
	stream(copy, size);
	free(copy);
}

/* A proof that a client accepts: its nonce is a constant, so that a seed can hold the proof. */
static bool is_proven(const struct cfs_handshake *h)
{
	static const char label[32] = "cachefs peer server proof";
	const size_t open_len = CFS_CHALLENGE_LEN - CFS_PROOF_LEN;
	uint8_t text[sizeof(label) + CFS_HELLO_LEN + CFS_CHALLENGE_LEN - CFS_PROOF_LEN +
		     sizeof(binding)];
	size_t len = sizeof(text) - (h->bound ? 0 : sizeof(binding));
	uint8_t mac[CFS_PROOF_LEN];
	unsigned n = sizeof(mac);

	memcpy(text, label, sizeof(label));
	memcpy(text + sizeof(label), h->hello, CFS_HELLO_LEN);
	memcpy(text + sizeof(label) + CFS_HELLO_LEN, h->challenge, open_len);
	memcpy(text + sizeof(label) + CFS_HELLO_LEN + open_len, binding, sizeof(binding));
	check(HMAC(EVP_sha256(), keys.key[0], CFS_PEER_KEY_SIZE, text, len, mac, &n));
	return memcmp(mac, h->challenge + open_len, sizeof(mac)) == 0;
}

static void handshake(bool server, bool bound, const uint8_t *data, size_t size)
{
	struct cfs_handshake h;
	uint8_t out[CFS_HANDSHAKE_OUT], payload[CFS_WIRE_CONTROL_MAX];
	size_t len = 0;
	int r = 0;

	if (server)
		cfs_handshake_server(&h, 2, &keys);
	else
		check(cfs_handshake_client(&h, 1, 2, &keys, out, &len) == 0);
	if (bound)
		cfs_handshake_bind(&h, binding);
	while (r == 0 && size > 2) {
		struct cfs_frame f = {.type = data[0], .status = data[1] % CFS_STATUS_COUNT};
		size_t n = CFS_MIN(size - 2, sizeof(payload));

		memset(payload, 0, sizeof(payload));
		memcpy(payload, data + 2, n);
		data += 2 + n;
		size -= 2 + n;
		r = cfs_handshake_frame(&h, &f, payload, out, &len);
		check(len <= sizeof(out));
	}
	check(r != 1 || (!server && is_proven(&h)));
}

static void payloads(const uint8_t *data, size_t size)
{
	uint8_t src[CFS_WIRE_CONTROL_MAX] = {0}, again[CFS_WIRE_CONTROL_MAX] = {0};
	struct cfs_wire_ready ready;
	struct cfs_wire_session session;
	struct cfs_wire_lease lease;
	struct cfs_wire_get get;
	struct cfs_peer_block b;
	enum cfs_peer_hint hint;

	memcpy(src, data, CFS_MIN(size, sizeof(src)));
	if (cfs_wire_parse_get(src, &get) == 0) {
		check(get.len > 0 && (uint64_t)get.off + get.len <= get.block.len &&
		      get.block.len <= CFS_PEER_BLOCK_MAX);
		cfs_wire_put_get(again, &get);
		check(memcmp(again, src, CFS_WIRE_GET_LEN) == 0);
	}
	if (cfs_wire_parse_hint(src, &b, &hint) == 0) {
		cfs_wire_put_hint(again, &b, hint);
		check(memcmp(again, src, CFS_WIRE_HINT_LEN) == 0);
	}
	if (cfs_wire_parse_session(src, &session) == 0) {
		cfs_wire_put_session(again, &session);
		check(memcmp(again, src, CFS_WIRE_SESSION_LEN) == 0);
	}
	if (cfs_wire_parse_lease(src, &lease) == 0) {
		check(lease.block.len > 0 && lease.block.len <= CFS_PEER_BLOCK_MAX &&
		      lease.lease_ms > 0 && lease.lease_ms <= CFS_WIRE_LEASE_MAX_MS);
		cfs_wire_put_lease(again, &lease);
		check(memcmp(again, src, CFS_WIRE_LEASE_LEN) == 0);
	}
	if (cfs_wire_parse_ready(src, &ready) == 0) {
		cfs_wire_put_ready(again, &ready);
		check(memcmp(again, src, CFS_WIRE_READY_LEN) == 0);
	}
}

/* Private data of a queue pair is taken only if a holder of the secret has made it for this one. */
static void private_data(const uint8_t *data, size_t size)
{
	enum { READER = 17, OWNER = 18 };
	static const uint8_t secret[CFS_RDMA_SECRET] = "secret of two members";
	uint8_t ask[CFS_RDMA_ASK_LEN], give[CFS_RDMA_GIVE_LEN];
	uint64_t session = 0x1122334455667788;

	check(cfs_rdma_give(give, session, secret, READER, OWNER) == 0);
	check((cfs_rdma_check_give(data, size, session, secret, READER, OWNER) == 0) ==
	      (size >= sizeof(give) && memcmp(data, give, sizeof(give)) == 0));
	check((cfs_rdma_session_of(data, size, &session) == 0) == (size >= sizeof(ask)));
	check(cfs_rdma_ask(ask, session, secret, READER) == 0);
	check((cfs_rdma_check_ask(data, size, secret, READER) == 0) ==
	      (size >= sizeof(ask) && memcmp(data, ask, sizeof(ask)) == 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0)
		return 0;
	switch (data[0] % 4) {
	case 0:
		if (data[0] & 4 && size > 1)
			sealed_stream(data + 1, size - 1);
		else
			stream(data + 1, size - 1);
		break;
	case 1:
	case 2:
		handshake(data[0] % 4 == 1, data[0] & 4, data + 1, size - 1);
		break;
	default:
		payloads(data + 1, size - 1);
		private_data(data + 1, size - 1);
	}
	return 0;
}
