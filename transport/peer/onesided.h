/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads of blocks by RDMA: both roles of a member, the reader and the owner of the memory.
 *
 * Requests, answers and errors stay on byte streams. Where both sides have CFS_FEATURE_RDMA, the
 * client of a stream may have a queue pair beside it (transport/rdma/verbs.h). An owner that answers
 * a request from a file offers the block to its pool. Once the pool has the block, the next answer
 * comes with a LEASE. During the lease the reader reads the block from the owner's memory, and no
 * thread of the owner wakes.
 *
 * A request that RDMA does not answer goes to a stream, with the same deadline. Failures of RDMA are
 * therefore no errors of a request.
 *
 * Memory: the owner's pool; the reader's buffers, in which bytes are checked before they are copied,
 * and its checksum tables of leased blocks (CFS_READ_MEMORY in all).
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
struct cfs_reader_conn;	 /* the reader's side, of a client's stream */
struct cfs_granter_conn; /* the owner's side, of a server's stream */

/*
 * Opens the device that has this address. -ENODEV and others of ops->open; -EINVAL: pool_bytes is
 * less than a slot. With conf.rdma_waits a device that cannot be opened is no error: the tick tries
 * again. err: one line.
 */
int cfs_onesided_create(struct cfs_transport *t, const struct sockaddr *address, socklen_t len,
			uint64_t pool_bytes, const struct cfs_rdma_ops *ops,
			struct cfs_onesided **ret, char err[256]);
/* On the loop, after the last stream has closed: closes the device. */
void cfs_onesided_stop(struct cfs_onesided *o);
/* After the loop has ended. */
void cfs_onesided_free(struct cfs_onesided *o);
/* It has a device. Any thread. */
bool cfs_onesided_has_device(struct cfs_onesided *o);
/* Adds what others may read to the served side's statistics. Any thread. */
void cfs_onesided_stats(struct cfs_onesided *o, struct cfs_peer_stats *ret_served);
/* On the loop, at every tick. True: something has a deadline. */
bool cfs_onesided_tick(struct cfs_onesided *o);

/* --- asking --- */

/* A stream is ready, with or without CFS_FEATURE_RDMA; a stream is about to close. */
void cfs_onesided_open(struct cfs_stream *s);
void cfs_onesided_close(struct cfs_stream *s);
/* The server's frames RDMA and LEASE. */
void cfs_onesided_session(struct cfs_stream *s, const struct cfs_wire_session *w);
void cfs_onesided_lease(struct cfs_stream *s, const struct cfs_wire_lease *w);
/*
 * Under peer->lock, any thread. True: g is being read, and ends by cfs_peer_finish(), or continues on
 * a stream by cfs_peer_again(). If g->reads is set, its thread shall poll: it calls
 * cfs_onesided_receive() next.
 */
bool cfs_onesided_start(struct cfs_peer *p, struct cfs_peer_get *g);
/*
 * On the thread that started g, with g->reads: polls for a bounded time (polling.h), and ends g if
 * its bytes arrive meanwhile. Otherwise the loop ends g.
 */
void cfs_onesided_receive(struct cfs_peer *p, struct cfs_peer_get *g, cfs_deadline_t until);
/* Under peer->lock: moves expired and cancelled requests to *list. */
void cfs_onesided_expire(struct cfs_peer *p, uint64_t now_ms, struct cfs_get_list *list);

/* --- serving --- */

/* The client requests a session. */
void cfs_onesided_wanted(struct cfs_server *sc);
void cfs_onesided_server_closed(struct cfs_server *sc);
/* A request is answered from a.fd. */
void cfs_onesided_answered(struct cfs_server *sc, const struct cfs_served *s);

#endif
