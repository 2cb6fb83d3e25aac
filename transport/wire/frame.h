/* SPDX-License-Identifier: Apache-2.0 */
/* Frames as bytes: docs/peer-protocol.md. No I/O, no state except the arguments. */
#ifndef CFS_TRANSPORT_FRAME_H
#define CFS_TRANSPORT_FRAME_H

#include <cachefs/transport.h>
#include <stddef.h>

#define CFS_WIRE_MAGIC	     0x43465350u /* "CFSP" */
#define CFS_WIRE_VERSION     1
#define CFS_WIRE_VERSION_MIN 1
#define CFS_WIRE_HEADER	     32
#define CFS_WIRE_CONTROL_MAX 96 /* longest payload of a frame other than ANSWER */

enum cfs_frame_type {
	CFS_FRAME_HELLO = 1,
	CFS_FRAME_CHALLENGE,
	CFS_FRAME_PROOF,
	CFS_FRAME_READY,
	CFS_FRAME_REFUSE,
	CFS_FRAME_GET,
	CFS_FRAME_ANSWER,
	CFS_FRAME_CANCEL,
	CFS_FRAME_HINT,
	CFS_FRAME_DRAIN,
	CFS_FRAME_WORKING,
	CFS_FRAME_RDMA,
	CFS_FRAME_LEASE,
	CFS_FRAME_TYPES,
};

/* Flags of GET. */
#define CFS_FRAME_F_ONLY_CACHED 1u
#define CFS_FRAME_F_FAILOVER	2u

/* Feature bits of HELLO and CHALLENGE. */
#define CFS_FEATURE_HINTS    1ull
#define CFS_FEATURE_WORKING  2ull
#define CFS_FEATURE_FAILOVER 4ull
#define CFS_FEATURE_LEFT     8ull /* WORKING says how much time is left */
#define CFS_FEATURE_RDMA     16ull
#define CFS_FEATURES                                                                               \
	(CFS_FEATURE_HINTS | CFS_FEATURE_WORKING | CFS_FEATURE_FAILOVER | CFS_FEATURE_LEFT |       \
	 CFS_FEATURE_RDMA)

enum cfs_wire_status {
	CFS_STATUS_OK,
	CFS_STATUS_NOT_FOUND,
	CFS_STATUS_BUSY,
	CFS_STATUS_FAILED,
	CFS_STATUS_LEAVING,
	CFS_STATUS_AUTH,    /* REFUSE only, like the next */
	CFS_STATUS_VERSION, /* no version in common */
	CFS_STATUS_COUNT,
};

struct cfs_frame {
	uint8_t type;
	uint16_t flags;
	uint64_t id;
	uint32_t len; /* of the payload */
	uint32_t crc; /* of the payload */
	uint32_t status;
};

void cfs_wire_put(uint8_t dst[CFS_WIRE_HEADER], const struct cfs_frame *f);
/* -EPROTO unless every field is what the type allows. */
int cfs_wire_parse(const uint8_t src[CFS_WIRE_HEADER], struct cfs_frame *ret);

/* A whole control frame (f->len and f->crc are filled in) into dst; returns its length. */
size_t cfs_wire_control(uint8_t dst[CFS_WIRE_HEADER + CFS_WIRE_CONTROL_MAX], struct cfs_frame *f,
			const void *payload, uint32_t len);

#define CFS_WIRE_GET_LEN 24
struct cfs_wire_get {
	struct cfs_peer_block block;
	uint32_t off, len;
};
void cfs_wire_put_get(uint8_t dst[CFS_WIRE_GET_LEN], const struct cfs_wire_get *g);
/* -EPROTO when the range is not within the block or the block has no possible length. */
int cfs_wire_parse_get(const uint8_t src[CFS_WIRE_GET_LEN], struct cfs_wire_get *ret);

#define CFS_WIRE_HINT_LEN 20
void cfs_wire_put_hint(uint8_t dst[CFS_WIRE_HINT_LEN], const struct cfs_peer_block *b,
		       enum cfs_peer_hint hint);
int cfs_wire_parse_hint(const uint8_t src[CFS_WIRE_HINT_LEN], struct cfs_peer_block *ret,
			enum cfs_peer_hint *ret_hint);

/* Payload of WORKING with CFS_FEATURE_LEFT; without it the payload is empty. */
#define CFS_WIRE_WORKING_LEN 4
void cfs_wire_put_working(uint8_t dst[CFS_WIRE_WORKING_LEN], uint64_t left_ms);
uint64_t cfs_wire_parse_working(const uint8_t src[CFS_WIRE_WORKING_LEN]);

#define CFS_WIRE_READY_LEN 16
struct cfs_wire_ready {
	uint64_t conn_bytes; /* limit of bytes requested and not yet answered */
	uint32_t requests;   /* limit of requests not yet answered */
};
void cfs_wire_put_ready(uint8_t dst[CFS_WIRE_READY_LEN], const struct cfs_wire_ready *r);
int cfs_wire_parse_ready(const uint8_t src[CFS_WIRE_READY_LEN], struct cfs_wire_ready *ret);

/* Payload of RDMA from a server; from a client it is empty. session and port 0: no session. */
#define CFS_WIRE_SESSION_LEN 12
struct cfs_wire_session {
	uint64_t session;
	uint16_t port;
};
void cfs_wire_put_session(uint8_t dst[CFS_WIRE_SESSION_LEN], const struct cfs_wire_session *s);
int cfs_wire_parse_session(const uint8_t src[CFS_WIRE_SESSION_LEN], struct cfs_wire_session *ret);

#define CFS_WIRE_LEASE_LEN 28
struct cfs_wire_lease {
	struct cfs_peer_block block;
	uint32_t key, table_crc;
	uint32_t lease_ms; /* 1 to CFS_WIRE_LEASE_MAX_MS */
};
#define CFS_WIRE_LEASE_MAX_MS 60000
void cfs_wire_put_lease(uint8_t dst[CFS_WIRE_LEASE_LEN], const struct cfs_wire_lease *l);
int cfs_wire_parse_lease(const uint8_t src[CFS_WIRE_LEASE_LEN], struct cfs_wire_lease *ret);

enum cfs_wire_status cfs_wire_status_of(int err);
int cfs_wire_errno_of(enum cfs_wire_status status);

/*
 * Cuts a byte stream into frames. Bytes may be received into buf + have directly, up to want, and
 * then completed with an empty cfs_reader_feed().
 */
struct cfs_reader {
	uint32_t have, want; /* want: CFS_WIRE_HEADER, or the end of the control frame */
	struct cfs_frame frame;
	uint8_t buf[CFS_WIRE_HEADER + CFS_WIRE_CONTROL_MAX];
};

void cfs_reader_init(struct cfs_reader *r);
static inline const uint8_t *cfs_reader_payload(const struct cfs_reader *r)
{
	return r->buf + CFS_WIRE_HEADER;
}
/*
 * Takes bytes until a frame is complete: 1, with *ret (of an ANSWER the header only: its payload is
 * the caller's); 0: all taken, more is needed; -EPROTO; -EBADMSG: a control frame's payload does
 * not match its CRC. *data and *len move on. The payload is valid until the next call.
 */
int cfs_reader_feed(struct cfs_reader *r, const uint8_t **data, size_t *len, struct cfs_frame *ret);

#endif
