/* SPDX-License-Identifier: Apache-2.0 */
/* The two roles of the peer handshake, and what is derived from the group's key. */
#include "handshake.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <string.h>

#include "base/bytes.h"
#include "frame.h"

#define LABEL_LEN 32
#define NONCE_LEN 32
#define MAC_LEN	  32
/* CHALLENGE without its MAC: what both MACs cover, after the label and HELLO. */
#define CHALLENGE_OPEN (CFS_CHALLENGE_LEN - MAC_LEN)

static const char label_id[LABEL_LEN] = "cachefs peer key id";
static const char label_server[LABEL_LEN] = "cachefs peer server proof";
static const char label_client[LABEL_LEN] = "cachefs peer client proof";
static const char label_rdma[LABEL_LEN] = "cachefs peer rdma secret";
/* Input of HKDF-Expand (RFC 5869) for one block, with the block's number at its end. */
static const char label_tls[] = "cachefs peer tls key\1";

static int hmac(const uint8_t key[CFS_PEER_KEY_SIZE], const uint8_t *data, size_t len,
		uint8_t ret[MAC_LEN])
{
	unsigned n = MAC_LEN;

	return HMAC(EVP_sha256(), key, CFS_PEER_KEY_SIZE, data, len, ret, &n) ? 0 : -EIO;
}

int cfs_handshake_key_id(const uint8_t key[CFS_PEER_KEY_SIZE], uint32_t *ret)
{
	uint8_t mac[MAC_LEN];
	int r = hmac(key, (const uint8_t *)label_id, LABEL_LEN, mac);

	if (r == 0)
		*ret = cfs_get_be32(mac);
	return r;
}

bool cfs_handshake_knows(const struct cfs_handshake_keys *keys, uint32_t id)
{
	uint32_t known;
	unsigned i;

	for (i = 0; i < keys->n; i++) {
		if (cfs_handshake_key_id(keys->key[i], &known) == 0 && known == id)
			return true;
	}
	return false;
}

int cfs_handshake_tls_key(const uint8_t key[CFS_PEER_KEY_SIZE], uint8_t ret[CFS_PEER_KEY_SIZE])
{
	return hmac(key, (const uint8_t *)label_tls, sizeof(label_tls) - 1, ret);
}

/*
 * The MACs bind the whole exchange. The labels differ by role, so a proof cannot be reflected. Both
 * nonces are covered, so it is void on another connection. Versions, features and both ids are
 * covered, so a man in the middle cannot change them. The secret of the TLS connection is covered,
 * so a man in the middle cannot hold one connection with each side.
 */
static int proof(const struct cfs_handshake *h, const char label[LABEL_LEN], uint8_t ret[MAC_LEN])
{
	uint8_t text[LABEL_LEN + CFS_HELLO_LEN + CHALLENGE_OPEN + CFS_HANDSHAKE_BINDING];
	size_t len = sizeof(text) - (h->bound ? 0 : CFS_HANDSHAKE_BINDING);

	memcpy(text, label, LABEL_LEN);
	memcpy(text + LABEL_LEN, h->hello, CFS_HELLO_LEN);
	memcpy(text + LABEL_LEN + CFS_HELLO_LEN, h->challenge, CHALLENGE_OPEN);
	memcpy(text + LABEL_LEN + CFS_HELLO_LEN + CHALLENGE_OPEN, h->binding, sizeof(h->binding));
	return hmac(h->key, text, len, ret);
}

int cfs_handshake_secret(const struct cfs_handshake *h, uint8_t ret[CFS_PEER_KEY_SIZE])
{
	return proof(h, label_rdma, ret);
}

static size_t put_frame(uint8_t *out, uint8_t type, uint32_t status, const void *payload,
			uint32_t len)
{
	struct cfs_frame f = {.type = type, .status = status};

	return cfs_wire_control(out, &f, payload, len);
}

void cfs_handshake_server(struct cfs_handshake *h, uint64_t self,
			  const struct cfs_handshake_keys *keys)
{
	*h = (struct cfs_handshake){
		.server = true,
		.self = self,
		.keys = keys,
		.next = CFS_FRAME_HELLO,
	};
}

int cfs_handshake_client(struct cfs_handshake *h, uint64_t self, uint64_t peer,
			 const struct cfs_handshake_keys *keys, uint8_t out[CFS_HANDSHAKE_OUT],
			 size_t *ret_len)
{
	uint32_t id = 0;

	*h = (struct cfs_handshake){
		.self = self,
		.peer = peer,
		.keys = keys,
		.next = CFS_FRAME_CHALLENGE,
	};
	memcpy(h->key, keys->key[0], sizeof(h->key));
	if (cfs_handshake_key_id(h->key, &id) < 0 || RAND_bytes(h->hello + 32, NONCE_LEN) != 1)
		return -EIO;
	cfs_put_be16(h->hello, CFS_WIRE_VERSION);
	cfs_put_be16(h->hello + 2, CFS_WIRE_VERSION_MIN);
	cfs_put_be32(h->hello + 4, id);
	cfs_put_be64(h->hello + 8, CFS_FEATURES);
	cfs_put_be64(h->hello + 16, h->self);
	cfs_put_be64(h->hello + 24, h->peer);
	*ret_len = put_frame(out, CFS_FRAME_HELLO, 0, h->hello, CFS_HELLO_LEN);
	return 0;
}

static int refuse(int err, uint8_t *out, size_t *ret_len)
{
	*ret_len =
		put_frame(out, CFS_FRAME_REFUSE,
			  err == -EPROTONOSUPPORT ? CFS_STATUS_VERSION : CFS_STATUS_AUTH, NULL, 0);
	return err;
}

void cfs_handshake_bind(struct cfs_handshake *h, const uint8_t binding[CFS_HANDSHAKE_BINDING])
{
	h->bound = true;
	memcpy(h->binding, binding, CFS_HANDSHAKE_BINDING);
}

static int server_hello(struct cfs_handshake *h, const uint8_t *payload, uint8_t *out,
			size_t *ret_len)
{
	uint16_t high = cfs_get_be16(payload), low = cfs_get_be16(payload + 2);
	uint32_t id = 0;
	unsigned i;

	memcpy(h->hello, payload, CFS_HELLO_LEN);
	if (low > high || high < CFS_WIRE_VERSION_MIN || low > CFS_WIRE_VERSION)
		return refuse(-EPROTONOSUPPORT, out, ret_len);
	h->peer = cfs_get_be64(payload + 16);
	/* Our own id comes from a copy of this member, or is our own message reflected. */
	if (h->peer == 0 || h->peer == h->self || cfs_get_be64(payload + 24) != h->self)
		return refuse(-EACCES, out, ret_len);
	for (i = 0; i < h->keys->n; i++) {
		if (cfs_handshake_key_id(h->keys->key[i], &id) < 0)
			return -EIO;
		if (id == cfs_get_be32(payload + 4))
			break;
	}
	if (i == h->keys->n)
		return refuse(-EACCES, out, ret_len);
	memcpy(h->key, h->keys->key[i], sizeof(h->key));
	h->features = cfs_get_be64(payload + 8) & CFS_FEATURES;
	cfs_put_be16(h->challenge, CFS_MIN(high, CFS_WIRE_VERSION));
	cfs_put_be64(h->challenge + 8, h->features);
	cfs_put_be64(h->challenge + 16, h->self);
	cfs_put_be64(h->challenge + 24, h->peer);
	if (RAND_bytes(h->challenge + 32, NONCE_LEN) != 1 ||
	    proof(h, label_server, h->challenge + CHALLENGE_OPEN) < 0)
		return -EIO;
	h->next = CFS_FRAME_PROOF;
	*ret_len = put_frame(out, CFS_FRAME_CHALLENGE, 0, h->challenge, CFS_CHALLENGE_LEN);
	return 0;
}

static int client_challenge(struct cfs_handshake *h, const uint8_t *payload, uint8_t *out,
			    size_t *ret_len)
{
	uint8_t mac[MAC_LEN];
	uint16_t version = cfs_get_be16(payload);

	memcpy(h->challenge, payload, CFS_CHALLENGE_LEN);
	if (version < CFS_WIRE_VERSION_MIN || version > CFS_WIRE_VERSION)
		return -EPROTONOSUPPORT;
	h->features = cfs_get_be64(payload + 8);
	if (cfs_get_be16(payload + 2) != 0 || cfs_get_be32(payload + 4) != 0 ||
	    (h->features & ~CFS_FEATURES))
		return -EPROTO;
	if (cfs_get_be64(payload + 16) != h->peer || cfs_get_be64(payload + 24) != h->self)
		return -EACCES;
	if (proof(h, label_server, mac) < 0)
		return -EIO;
	if (CRYPTO_memcmp(mac, payload + CHALLENGE_OPEN, MAC_LEN) != 0)
		return -EACCES;
	if (proof(h, label_client, mac) < 0)
		return -EIO;
	h->next = CFS_FRAME_READY;
	*ret_len = put_frame(out, CFS_FRAME_PROOF, 0, mac, MAC_LEN);
	return 0;
}

static int server_proof(struct cfs_handshake *h, const uint8_t *payload, uint8_t *out,
			size_t *ret_len)
{
	uint8_t mac[MAC_LEN];

	if (proof(h, label_client, mac) < 0)
		return -EIO;
	if (CRYPTO_memcmp(mac, payload, MAC_LEN) != 0)
		return refuse(-EACCES, out, ret_len);
	return 1;
}

int cfs_handshake_frame(struct cfs_handshake *h, const struct cfs_frame *f, const uint8_t *payload,
			uint8_t out[CFS_HANDSHAKE_OUT], size_t *ret_len)
{
	*ret_len = 0;
	if (f->type == CFS_FRAME_REFUSE && !h->server)
		return f->status ? cfs_wire_errno_of(f->status) : -EPROTO;
	if (f->type != h->next)
		return -EPROTO;
	switch (f->type) {
	case CFS_FRAME_HELLO:
		return server_hello(h, payload, out, ret_len);
	case CFS_FRAME_CHALLENGE:
		return client_challenge(h, payload, out, ret_len);
	case CFS_FRAME_PROOF:
		return server_proof(h, payload, out, ret_len);
	case CFS_FRAME_READY:
		return 1;
	default:
		return -EPROTO;
	}
}
