/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mutual authentication before any request: HELLO, CHALLENGE, PROOF, READY. No I/O: frames in,
 * frames out. docs/peer-protocol.md lists the fields that the proofs bind.
 */
#ifndef CFS_TRANSPORT_HANDSHAKE_H
#define CFS_TRANSPORT_HANDSHAKE_H

#include <cachefs/transport.h>

#define CFS_HELLO_LEN	  64
#define CFS_CHALLENGE_LEN 96
#define CFS_PROOF_LEN	  32

struct cfs_frame;

struct cfs_handshake_keys {
	uint8_t key[2][CFS_PEER_KEY_SIZE]; /* [1]: the previous key */
	unsigned n;
};

#define CFS_HANDSHAKE_BINDING 32

struct cfs_handshake {
	bool server, bound;
	uint64_t self;
	uint64_t peer; /* a client knows its peer; a server learns it */
	uint64_t features;
	const struct cfs_handshake_keys *keys; /* borrowed; may change until HELLO has arrived */
	uint8_t key[CFS_PEER_KEY_SIZE];	       /* the key in use since then */
	unsigned char next;		       /* type of the expected frame */
	uint8_t hello[CFS_HELLO_LEN], challenge[CFS_CHALLENGE_LEN];
	uint8_t binding[CFS_HANDSHAKE_BINDING];
};

/* Room for the output of one step. */
#define CFS_HANDSHAKE_OUT 256

void cfs_handshake_server(struct cfs_handshake *h, uint64_t self,
			  const struct cfs_handshake_keys *keys);
/* *ret_len bytes of out are to be sent first. -EIO: no random numbers. */
int cfs_handshake_client(struct cfs_handshake *h, uint64_t self, uint64_t peer,
			 const struct cfs_handshake_keys *keys, uint8_t out[CFS_HANDSHAKE_OUT],
			 size_t *ret_len);
/* Binds the proofs to the TLS connection with this secret. Called before any frame. */
void cfs_handshake_bind(struct cfs_handshake *h, const uint8_t binding[CFS_HANDSHAKE_BINDING]);
/*
 * Handles one frame. *ret_len bytes of out are to be sent, also on error (a REFUSE). 0: continue;
 * 1: both sides are authenticated (a server sends READY next, a client has received it). -EACCES:
 * wrong key or unexpected member; -EPROTONOSUPPORT, -EPROTO; or the error of a received REFUSE.
 */
int cfs_handshake_frame(struct cfs_handshake *h, const struct cfs_frame *f, const uint8_t *payload,
			uint8_t out[CFS_HANDSHAKE_OUT], size_t *ret_len);

/* A secret of both sides of this connection, for RDMA; after the handshake. */
int cfs_handshake_secret(const struct cfs_handshake *h, uint8_t ret[CFS_PEER_KEY_SIZE]);

/* Identifies the key without revealing anything about it. */
int cfs_handshake_key_id(const uint8_t key[CFS_PEER_KEY_SIZE], uint32_t *ret);
/* Whether one of the keys has this id. */
bool cfs_handshake_knows(const struct cfs_handshake_keys *keys, uint32_t id);
/* Derives the key for TLS. */
int cfs_handshake_tls_key(const uint8_t key[CFS_PEER_KEY_SIZE], uint8_t ret[CFS_PEER_KEY_SIZE]);

#endif
