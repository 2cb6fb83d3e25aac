/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of one-sided reads: onesided.c has the connections and the device, reading.c the requests.
 *
 * A request is an op from its first READ to its end. It ends on the loop, or on the thread that waits
 * for it and polls meanwhile:
 *
 *	polls	the thread looks after the op. Taking the last completion only sets `ended`;
 *		the thread then ends the request with its bytes, or gives up polling.
 *	!polls	the loop looks after it. A thread that takes the last completion hands it over.
 *
 * The loop may take the request out of an op at any time (op->g), to end it or to ask for it on a
 * stream. The op stays until its READs are over, and its thread has left it: the device writes to its
 * places.
 *
 * Order of locks: device, peer, onesided, the module's own. `device` is held during the module's
 * calls that report events, and while o->d changes. The loop does not wait for it: a thread that polls
 * may lose its processor with the lock held. The loop sets `wanted`; then threads take it no more to
 * poll, and the one that has it runs o->work when it lets go.
 */
#ifndef CFS_TRANSPORT_ONESIDED_INTERNAL_H
#define CFS_TRANSPORT_ONESIDED_INTERNAL_H

#include "leases.h"
#include "onesided.h"
#include "polling.h"

#define CFS_READ_PIECE	(128u << 10) /* of one READ, and a landing place */
#define CFS_READ_PLACES 128
#define CFS_READ_OPS	CFS_READ_PLACES
#define CFS_READ_PIECES (CFS_RDMA_BLOCK_MAX / CFS_READ_PIECE + 1) /* of a request */
#define CFS_READ_MEMORY                                                                            \
	((size_t)CFS_READ_PLACES * CFS_READ_PIECE + (size_t)CFS_LEASES * CFS_RDMA_TABLE_MAX)
#define CFS_READ_PAUSE_MS 1000 /* before another connection, doubled */

_Static_assert(CFS_READ_MEMORY == CFS_PEER_RDMA_BESIDES, "the budget of a mount knows it");

/* Both kinds of connections, as the module's events name them. */
struct cfs_onesided_user {
	bool serves;
};

struct cfs_reader_conn {
	struct cfs_onesided_user user; /* first */
	struct cfs_onesided *o;
	struct cfs_stream *stream;  /* NULL: closed, and only `lost` is waited for */
	struct cfs_rdma_conn *conn; /* NULL: none */
	bool asked;		    /* for a session */
	uint64_t ask_at_ms, pause_ms;
	LIST_ENTRY(cfs_reader_conn) all;

	/* Under the lock */
	bool ready;
	bool worked; /* a request was read on conn */
	struct cfs_polling polling;
};

struct cfs_granter_conn {
	struct cfs_onesided_user user; /* first */
	struct cfs_server *sc;	       /* NULL: closed */
	uint64_t session;	       /* 0: it has been used */
	struct cfs_rdma_conn *conn;
	bool ready;
	LIST_ENTRY(cfs_granter_conn) all;
};

/* A request that is being read. Under the lock, but for its bytes. */
struct cfs_read_op {
	bool used;
	struct cfs_reader_conn *r; /* NULL: freed meanwhile */
	struct cfs_peer *peer;	   /* of g */
	struct cfs_peer_get *g;	   /* NULL: given up */
	struct cfs_lease *lease;
	bool reads_table;
	unsigned left; /* READs */
	int err;
	bool ended; /* the device writes no more for it */
	bool polls;
	struct cfs_peer *held; /* its n_receiving counts the op until the loop has ended it */
	uint64_t start_ms, start_ns, poll_ns;
	uint32_t first_page, n_pages;
	unsigned n_places;
	uint16_t places[CFS_READ_PIECES];
	struct cfs_read_op *next; /* of those that were handed to the loop */
};

struct cfs_onesided {
	struct cfs_transport *t;
	const struct cfs_rdma_ops *ops;
	struct sockaddr_storage address;
	socklen_t address_len;
	pthread_mutex_t device;
	atomic_bool wanted; /* the loop waits for `device` */
	struct cfs_rdma *d; /* NULL: there is none at present. The loop changes it */
	atomic_bool has_device;
	struct cfs_rdma_pool *pool;
	struct cfs_op poll_op;
	bool polling, removed, stopped;
	uint64_t reopen_at_ms;
	LIST_HEAD(, cfs_reader_conn) readers;
	LIST_HEAD(, cfs_granter_conn) granters;

	uint8_t *memory; /* landing places, then tables */
	struct cfs_rdma_memory *mapped;
	struct cfs_work work; /* ends what was handed to the loop; handles events */
	unsigned max_polling;

	pthread_mutex_t lock; /* the rest */
	struct cfs_leases leases;
	struct cfs_read_op ops_under_way[CFS_READ_OPS];
	unsigned n_ops, n_polling;
	struct cfs_read_op *handed;	  /* to the loop */
	uint16_t places[CFS_READ_PLACES]; /* free ones */
	unsigned n_places;
};

/* --- onesided.c --- */

/* On the loop: handles the device's events, now or soon. */
void cfs_onesided_handle(struct cfs_onesided *o);

/* --- reading.c --- */

void cfs_reading_init(struct cfs_onesided *o);
/* The event of the module, on the thread that takes the completion. */
void cfs_reading_done(void *arg, void *cookie, int err);
/*
 * On the loop: moves requests of r that began by `before_ms` to streams. over: the device writes no
 * more for them.
 */
void cfs_reading_give_up(struct cfs_onesided *o, struct cfs_reader_conn *r, uint64_t before_ms,
			 bool over);
/* On the loop: r is about to be freed. Its requests are given up. */
void cfs_reading_forget(struct cfs_onesided *o, struct cfs_reader_conn *r);
/* True: requests are being read. *ret_hangs: a connection on which one takes too long, or NULL. */
bool cfs_reading_tick(struct cfs_onesided *o, uint64_t now_ms, struct cfs_rdma_conn **ret_hangs);

#endif
