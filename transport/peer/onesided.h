/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One-sided reads of a member: what is granted to others, and what others have granted.
 *
 * The connections of peers stay byte streams, which carry requests, answers and everything that
 * goes wrong. Beside a stream on which both sides know CFS_FEATURE_RDMA the asking side may have a
 * queue pair (transport/rdma/verbs.h). A server that answers a request from a file offers the block
 * to its pool, and sends a LEASE for it once it is there. While the lease lasts, requests for the
 * block are read from the owner's memory, and no thread of the owner knows of it.
 *
 * A request that cannot be read so, for any reason and at any time, is asked for on a stream. Its
 * deadline and its errors are those of the stream.
 *
 * Memory: the pool; landing places of LANDING bytes in all, in which what was read is checked before
 * it is copied; tables of checksums of leased blocks.
 *
 * Threads: the loop, except for cfs_onesided_start() and cfs_onesided_receive(). Order of locks:
 * onesided-internal.h.
 */
#ifndef CFS_TRANSPORT_ONESIDED_H
#define CFS_TRANSPORT_ONESIDED_H

#include "transport-internal.h"
#include "transport/rdma/pool.h"

struct cfs_stream;
struct cfs_onesided;
struct cfs_reader_conn;	 /* of a stream that asks */
struct cfs_granter_conn; /* of a stream that serves */

/*
 * Opens the device that has this address. -ENODEV and others of ops->open; -EINVAL: pool_bytes is
 * less than a slot. With conf.rdma_waits a device that cannot be opened is tried again. err: one
 * line.
 */
int cfs_onesided_create(struct cfs_transport *t, const struct sockaddr *address, socklen_t len,
			uint64_t pool_bytes, const struct cfs_rdma_ops *ops,
			struct cfs_onesided **ret, char err[256]);
/* On the loop: closes the device; no stream is left. */
void cfs_onesided_stop(struct cfs_onesided *o);
/* The loop has ended. */
void cfs_onesided_free(struct cfs_onesided *o);
/* It has a device. Any thread. */
bool cfs_onesided_has_device(struct cfs_onesided *o);
/* On the loop, at every tick. True: something has a deadline. */
bool cfs_onesided_tick(struct cfs_onesided *o);

/* --- asking --- */

/* The stream is ready and knows RDMA. It is closed. */
void cfs_onesided_open(struct cfs_stream *s);
void cfs_onesided_close(struct cfs_stream *s);
/* Frames of the server. */
void cfs_onesided_session(struct cfs_stream *s, const struct cfs_wire_session *w);
void cfs_onesided_lease(struct cfs_stream *s, const struct cfs_wire_lease *w);
/*
 * Under peer->lock, any thread. True: g is being read, and ends by cfs_peer_finish() or goes on by
 * cfs_peer_again(). With g->waits its thread may poll first: then g->reads is set, and
 * cfs_onesided_receive() is called next.
 */
bool cfs_onesided_start(struct cfs_peer *p, struct cfs_peer_get *g);
/*
 * On the thread of g, which has g->reads: polls for a bounded time (polling.h), and ends g if its
 * bytes come meanwhile. Otherwise the loop goes on with it.
 */
void cfs_onesided_receive(struct cfs_peer *p, struct cfs_peer_get *g, cfs_deadline_t until);
/* Under peer->lock: moves expired and cancelled requests to *list. */
void cfs_onesided_expire(struct cfs_peer *p, uint64_t now_ms, struct cfs_get_list *list);

/* --- serving --- */

/* The client wants a session. */
void cfs_onesided_wanted(struct cfs_server *sc);
void cfs_onesided_server_closed(struct cfs_server *sc);
/* A request is answered from a.fd. */
void cfs_onesided_answered(struct cfs_server *sc, const struct cfs_served *s);

#endif
