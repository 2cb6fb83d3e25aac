/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by onesided.c (connections and the device) and reading.c (requests).
 *
 * A request has an op (struct cfs_read_op) from its first READ to its end. Either its own thread or
 * the loop owns the op:
 *
 *	polls	the thread owns it. The completion, taken by any thread, sets `ended`.
 *		The owner then ends the request, or stops polling, which makes the loop the owner.
 *	!polls	the loop owns it. Another thread that takes the completion hands it over.
 *
 * The loop may detach the request from an op at any time (op->g), to end it or to send it on a stream.
 * The op remains until its READs are over and its thread has left it, because the device still
 * writes to its buffers.
 *
 * Order of locks: device, peer, onesided, the module's own. `device` is held during the module's
 * calls that report events, and while o->d changes. The loop never waits for `device`, as a polling
 * thread may be preempted with it. The loop sets `wanted` instead: then polling threads do not take
 * the lock, and its holder runs o->work after the unlock.
 */
#ifndef CFS_TRANSPORT_ONESIDED_INTERNAL_H
#define CFS_TRANSPORT_ONESIDED_INTERNAL_H

#include "leases.h"
#include "onesided.h"
#include "polling.h"

#define CFS_READ_PIECE	(128u << 10) /* of one READ, and of a buffer */
#define CFS_READ_PLACES 128
#define CFS_READ_OPS	CFS_READ_PLACES
#define CFS_READ_PIECES (CFS_RDMA_BLOCK_MAX / CFS_READ_PIECE + 1) /* of a request */
#define CFS_READ_MEMORY                                                                            \
	((size_t)CFS_READ_PLACES * CFS_READ_PIECE + (size_t)CFS_LEASES * CFS_RDMA_TABLE_MAX)
#define CFS_READ_PAUSE_MS 1000 /* before another connection, doubled */

_Static_assert(CFS_READ_MEMORY == CFS_PEER_RDMA_BESIDES, "the budget of a mount knows it");

/* The first member of both kinds of connections, which the module's events pass. */
struct cfs_onesided_user {
	bool serves;
};

struct cfs_reader_conn {
	struct cfs_onesided_user user; /* first */
	struct cfs_onesided *o;
	struct cfs_stream *stream;  /* NULL: closed; freed at `lost` */
	struct cfs_rdma_conn *conn; /* NULL: none */
	bool asked;		    /* RDMA was sent and has no answer yet */
	uint64_t ask_at_ms, pause_ms;
	LIST_ENTRY(cfs_reader_conn) all;

	/* Under the lock */
	bool ready;
	bool worked; /* a request was answered on conn */
	struct cfs_polling polling;
};

struct cfs_granter_conn {
	struct cfs_onesided_user user; /* first */
	struct cfs_server *sc;	       /* NULL: closed */
	uint64_t session;	       /* 0: none, or used already */
	struct cfs_rdma_conn *conn;
	bool ready;
	LIST_ENTRY(cfs_granter_conn) all;
};

/* A request that is being read. Under the lock, except for its bytes. */
struct cfs_read_op {
	bool used;
	struct cfs_reader_conn *r; /* NULL: freed meanwhile */
	struct cfs_peer *peer;	   /* of g */
	struct cfs_peer_get *g;	   /* NULL: detached */
	struct cfs_lease *lease;
	bool reads_table;
	int err;
	bool ended; /* the device does not write to its buffers any more */
	bool polls;
	struct cfs_peer *held; /* whose n_receiving includes the op until the loop has ended it */
	uint64_t start_ms, start_ns, poll_ns;
	uint32_t first_page, n_pages;
	unsigned n_places;
	uint16_t places[CFS_READ_PIECES];
	struct cfs_read_op *next; /* of o->handed */
};

struct cfs_onesided {
	struct cfs_transport *t;
	const struct cfs_rdma_ops *ops;
	struct sockaddr_storage address;
	socklen_t address_len;
	pthread_mutex_t device;
	atomic_bool wanted; /* by the loop: `device` */
	struct cfs_rdma *d; /* NULL: none at present. Changed by the loop only */
	atomic_bool has_device;
	struct cfs_rdma_pool *pool;
	struct cfs_op poll_op;
	bool polling, removed, stopped;
	uint64_t reopen_at_ms;
	LIST_HEAD(, cfs_reader_conn) readers;
	LIST_HEAD(, cfs_granter_conn) granters;

	uint8_t *memory; /* buffers of CFS_READ_PIECE, then tables */
	struct cfs_rdma_memory *mapped;
	struct cfs_work work; /* ends the handed ops; handles events */
	unsigned max_polling;

	pthread_mutex_t lock; /* the rest */
	struct cfs_leases leases;
	struct cfs_read_op ops_under_way[CFS_READ_OPS];
	unsigned n_ops, n_polling;
	struct cfs_read_op *handed;	  /* ended ops, for the loop */
	uint16_t places[CFS_READ_PLACES]; /* free buffers, by number */
	unsigned n_places;
};

/* --- onesided.c --- */

/* On the loop: handles the device's events, now or soon. */
void cfs_onesided_handle(struct cfs_onesided *o);

/* --- reading.c --- */

void cfs_reading_init(struct cfs_onesided *o);
/* The module's event read_done, on the thread that takes the completion. */
void cfs_reading_done(void *arg, void *cookie, int err);
/*
 * On the loop: moves requests of r that began by `before_ms` to streams. over: the device does not
 * write to their buffers any more.
 */
void cfs_reading_give_up(struct cfs_onesided *o, struct cfs_reader_conn *r, uint64_t before_ms,
			 bool over);
/* On the loop, before r is freed: its requests are on streams already. */
void cfs_reading_forget(struct cfs_onesided *o, struct cfs_reader_conn *r);
/* True: requests are being read. *ret_hangs: a connection with a read that takes too long, or NULL. */
bool cfs_reading_tick(struct cfs_onesided *o, uint64_t now_ms, struct cfs_rdma_conn **ret_hangs);

#endif
