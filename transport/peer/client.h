/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface between peers and kinds of connections, requesting side. A client is one connection
 * to a peer: it reads a range of a block into the caller's buffers.
 *
 *	callers (peer.c, scaling.c): choice and number of connections, the queue of requests
 *		without a connection, circuit breaker, deadlines, counters
 *	implementations (stream.c: a byte stream): sending requests, receiving and checking bytes,
 *		authentication
 *
 * A peer may have clients of several kinds at a time. Callers know no frames, descriptors or
 * checksums. Implementations choose no peer and retry no request.
 *
 * A request is a struct cfs_peer_get. Its memory belongs to the client from start until the request
 * ends: a client ends a request only when nothing, device or thread, writes to its memory any more.
 *
 * Locks: "under the lock" is peer->lock. "On the loop" is the transport's thread.
 */
#ifndef CFS_TRANSPORT_CLIENT_H
#define CFS_TRANSPORT_CLIENT_H

#include <cachefs/transport.h>

struct cfs_client;

struct cfs_get_list {
	struct cfs_peer_get *first, *last;
	unsigned n;
};
void cfs_gets_append(struct cfs_get_list *l, struct cfs_peer_get *g);
void cfs_gets_remove(struct cfs_get_list *l, struct cfs_peer_get *g);

struct cfs_hint {
	struct cfs_peer_block block;
	enum cfs_peer_hint what;
};

/* --- what a client does --- */

/*
 * Under the lock: queues the request for the next send; the caller has checked that there is room.
 * receives: the calling thread can receive the answer itself; the client sets g->receiver if it
 * shall. Otherwise cfs_peer_finish() ends the request. -ENOMEM, -EAGAIN: it is not queued.
 */
typedef int (*cfs_client_start_fn)(struct cfs_client *c, struct cfs_peer_get *g, bool receives);
/* Under the lock: the same for a hint. -EOPNOTSUPP: the peer does not know hints. */
typedef int (*cfs_client_hint_fn)(struct cfs_client *c, const struct cfs_hint *h);
/* Under the lock, which it may drop meanwhile: sends all that is queued, in one batch. */
typedef void (*cfs_client_send_fn)(struct cfs_client *c);
/*
 * On the thread that started g, which has g->receiver: as cfs_peer_receive(). Reports its end by
 * cfs_peer_received().
 */
typedef void (*cfs_client_receive_fn)(struct cfs_client *c, struct cfs_peer_get *g,
				      cfs_deadline_t until);
/*
 * Under the lock, on the loop: moves expired and cancelled requests to *list. A request whose
 * memory may still be written stays until a later call.
 */
typedef void (*cfs_client_expire_fn)(struct cfs_client *c, uint64_t now_ms,
				     struct cfs_get_list *list);
/* Under the lock, on the loop, at every tick. */
typedef void (*cfs_client_tick_fn)(struct cfs_client *c);
/* Under the lock, on the loop, after cfs_loop_run() of peer->work. */
typedef void (*cfs_client_service_fn)(struct cfs_client *c);
/* On the loop. cfs_peer_lost() follows within the call, once; the client frees itself. */
typedef void (*cfs_client_close_fn)(struct cfs_client *c, int err);

struct cfs_client_ops {
	cfs_client_start_fn start;
	cfs_client_hint_fn hint;
	cfs_client_send_fn send;
	cfs_client_receive_fn receive;
	cfs_client_expire_fn expire;
	cfs_client_tick_fn tick;
	cfs_client_service_fn service;
	cfs_client_close_fn close;
};

/* State that every client keeps. */
struct cfs_client {
	const struct cfs_client_ops *ops;
	struct cfs_peer *peer;
	enum cfs_peer_transport transport; /* once it is connected */

	/* Under the lock */
	bool connecting; /* until cfs_peer_connected() or cfs_peer_lost() */
	bool usable;	 /* takes requests; cleared by callers: it is closed once idle */
	unsigned inflight, max_inflight;
	uint64_t inflight_bytes, max_bytes;
	uint64_t active_ms; /* its last answer, or when it was connected */

	_Atomic uint64_t heard_ms; /* last complete answer, or progress message */
};

/* Whether an answer has come since g was started. */
static inline bool cfs_client_heard(const struct cfs_client *c, const struct cfs_peer_get *g)
{
	return c->heard_ms > g->start_ns / 1000000;
}

/* Starts a connection over a byte stream (stream.c), which is then in peer->conns. On the loop. */
int cfs_stream_connect(struct cfs_peer *p);

/* --- what a client reports: peer.c, without the lock unless said --- */

/* It is usable. On the loop. */
void cfs_peer_connected(struct cfs_peer *p, struct cfs_client *c);
/* It is gone; list: its requests. was_ready: cfs_peer_connected() was called. On the loop. */
void cfs_peer_lost(struct cfs_peer *p, struct cfs_client *c, int err, bool was_ready,
		   struct cfs_get_list *list);
/* Ends a request with 0 or an error; the client has forgotten it. Calls done. On the loop. */
void cfs_peer_finish(struct cfs_peer *p, struct cfs_peer_get *g, int err);
/*
 * Under the lock, at the end of receive. well: g has ended with 0, and the caller calls done.
 * Otherwise the loop continues with g, which is not read here. p may be freed once the lock is
 * dropped.
 */
void cfs_peer_received(struct cfs_peer *p, const struct cfs_peer_get *g, bool well);
/* Bytes of an answer have come, wanted or not. Any thread. */
void cfs_peer_note_bytes(struct cfs_peer *p, size_t n);

#endif
