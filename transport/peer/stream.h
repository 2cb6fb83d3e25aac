/* SPDX-License-Identifier: Apache-2.0 */
/* A client over a byte stream: stream.c; inline receive: inline.c. */
#ifndef CFS_TRANSPORT_STREAM_H
#define CFS_TRANSPORT_STREAM_H

#include "transport-internal.h"

#define CFS_PIECE_IOV 72

/*
 * The receiver of a connection is the loop, unless the connection is parked: then it is the waiting
 * thread of a request, if there is one (inline receive, inline.c). Under peer->lock.
 */
struct cfs_inline_rx {
	bool parked; /* the loop does not receive; only the loop changes this, so it may read it
		      * without the lock */
	bool taken;  /* while parked: a thread receives, or the loop takes over soon */
	bool wanted; /* the loop was asked to take over since the last tick */
	bool used;   /* a thread has received on it since the last tick */
	struct cfs_work unpark; /* returns the connection to the loop */
};

struct cfs_stream {
	struct cfs_client client; /* first */
	struct cfs_conn c;

	/* Under peer->lock */
	struct cfs_peer_get **slots;
	uint16_t *free_slots;
	unsigned n_slots, n_free;
	_Atomic unsigned n_small; /* in flight, to be received together */
	uint64_t serial;
	uint8_t *out; /* frames to be sent */
	size_t out_len, out_cap;
	bool sending; /* a thread is sending, and owns batch */
	bool blocked; /* the loop will send once there is room */
	bool dead;
	uint8_t *batch;
	size_t batch_len, batch_off, batch_cap;
	struct cfs_inline_rx inline_rx;

	/* The loop's only, or the receiving thread's during inline receive: inline.c */
	struct cfs_work sent_work;
	struct cfs_peer_get *rx; /* the request whose payload is arriving; NULL with rx_left: the
				  * payload is discarded */
	uint32_t rx_left, rx_crc;
};

/* Under the lock: frees its slot, so that no other thread ends it. */
void cfs_stream_take_out(struct cfs_stream *s, struct cfs_peer_get *g);
/* The next piece of the payload of rx; returns its length. */
uint32_t cfs_stream_next_piece(struct cfs_stream *s, struct iovec iov[CFS_PIECE_IOV], int *ret_n);
/* Accounts for n payload bytes that arrived in the request's memory. */
void cfs_stream_advance(struct cfs_stream *s, size_t n);
/* The loop receives again, from where the thread stopped. */
void cfs_stream_resume(struct cfs_stream *s);

/* On the loop: queues a control frame; drops it if the queue is full. */
void cfs_stream_control(struct cfs_stream *s, const struct cfs_frame *f, const void *payload,
			uint32_t len);

/* --- inline receive: inline.c --- */

void cfs_inline_init(struct cfs_stream *s);
/* Under the lock, on the loop: g has been received and nothing follows, so the loop may stop
 * receiving. */
void cfs_inline_park(struct cfs_stream *s, const struct cfs_peer_get *g);
/* Under the lock: g will be received on this connection; receives: by its own thread, if
 * possible. */
void cfs_inline_assign(struct cfs_stream *s, struct cfs_peer_get *g, bool receives);
void cfs_inline_tick(struct cfs_client *c);
void cfs_inline_receive(struct cfs_client *c, struct cfs_peer_get *g, cfs_deadline_t until);

#endif
