/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of transport/peer: connections, peers, sessions over byte streams, admission to
 * disks, and the transport itself.
 *
 * Threads: everything belongs to the loop's thread, except fields under the locks of the transport
 * and of a peer, and connections in inline receive (stream.h). Order of locks: transport, peer,
 * loop's queue. No lock is held during a system call that does I/O, or during a callback.
 */
#ifndef CFS_TRANSPORT_INTERNAL_H
#define CFS_TRANSPORT_INTERNAL_H

#include <cachefs/transport.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "client.h"
#include "session.h"
#include "transport/link/link.h"
#include "transport/link/loop.h"
#include "transport/link/tls.h"
#include "transport/wire/frame.h"
#include "transport/wire/handshake.h"

#define CFS_CONNS_PER_PEER_MAX 16
/* Answers from this size on are spliced; below, a copy beside the header is cheaper. */
#define CFS_SPLICE_MIN (64u << 10)
/* Requests and small answers are received here; the rest is for reading files. */
#define CFS_SCRATCH_RX (64u << 10)
#define CFS_READ_MAX   (128u << 10)
/* Bytes of one connection in a round, then it is the others' turn. */
#define CFS_ROUND_BYTES (4u << 20)

struct cfs_counters {
	_Atomic uint64_t requests, bytes, direct, rdma, misses, errors[CFS_PEER_E_COUNT],
		latency_ns;
	_Atomic uint64_t latencies[CFS_PEER_LATENCIES];
	_Atomic uint64_t inflight_bytes;
	_Atomic unsigned conns[CFS_PEER_TRANSPORTS], inflight;
};
void cfs_counters_ok(struct cfs_counters *c, uint64_t bytes, uint64_t ns);
void cfs_counters_error(struct cfs_counters *c, enum cfs_peer_error kind);
void cfs_counters_read(struct cfs_counters *c, struct cfs_peer_stats *ret);
/* The class of an error that ended a request or connection; CFS_PEER_E_COUNT: not the peer's
 * fault. */
enum cfs_peer_error cfs_peer_error_of(int err);

/* --- connections: conn.c --- */

enum cfs_conn_state {
	CFS_CONN_CONNECT,
	CFS_CONN_SECURE, /* the link's own handshake */
	CFS_CONN_AUTH,	 /* the peer handshake */
	CFS_CONN_READY,
	CFS_CONN_DRAINING, /* finishes what is under way */
	CFS_CONN_CLOSED,
};

struct cfs_conn;
struct cfs_conn_ops {
	void (*ready)(struct cfs_conn *c); /* it is authenticated */
	void (*readable)(struct cfs_conn *c);
	void (*flush)(struct cfs_conn *c);	     /* has data to send, or may send again */
	void (*closed)(struct cfs_conn *c, int err); /* once, in cfs_conn_close() */
	void (*free)(struct cfs_conn *c);
};

struct cfs_conn {
	struct cfs_transport *t;
	const struct cfs_conn_ops *ops;
	struct cfs_link link;
	enum cfs_conn_state state;
	bool in_armed, out_armed, more_in, more_out, on_more;
	unsigned refs; /* held by the owner, each op in the ring, each reply */
	uint64_t peer; /* member at the other end; a server knows it once authenticated */
	uint64_t features;
	uint32_t key_id;		   /* of the key that both sides have proved */
	uint8_t secret[CFS_PEER_KEY_SIZE]; /* with CFS_FEATURE_RDMA */
	uint64_t deadline_ms; /* for connecting and authenticating; cfs_loop_ran_ms() */
	struct cfs_handshake *handshake;
	struct cfs_op in_op, out_op;
	LIST_ENTRY(cfs_conn) all; /* t->conns */
	struct cfs_conn *more_next;
	struct cfs_reader reader;
};

/* c->link is connected (or connecting); one reference is the owner's. */
void cfs_conn_init(struct cfs_conn *c, struct cfs_transport *t, const struct cfs_conn_ops *ops);
/* peer: the member that a client expects; 0: for a server. */
int cfs_conn_authenticate(struct cfs_conn *c, uint64_t peer);
/* Handles input that may have arrived; closes the connection on unexpected input. */
void cfs_conn_readable(struct cfs_conn *c);
void cfs_conn_want_in(struct cfs_conn *c);
void cfs_conn_want_out(struct cfs_conn *c);
/* Calls readable / flush once more in the next round, after the other connections. */
void cfs_conn_again(struct cfs_conn *c, bool in, bool out);
/* Closes it once; later calls do nothing. err: the reason. Drops the owner's reference. */
void cfs_conn_close(struct cfs_conn *c, int err);
/* After a change of t->keys: closes connections whose key is not among them any more. */
void cfs_conn_close_old_keys(struct cfs_transport *t);
void cfs_conn_ref(struct cfs_conn *c);
void cfs_conn_unref(struct cfs_conn *c);
/* Sends a few bytes at once. -ECONNRESET: the socket did not take all; the caller closes c. */
int cfs_conn_send_now(struct cfs_conn *c, uint8_t *data, size_t len);

/* --- peers: peer.c --- */

#define CFS_PEER_HINTS_MAX 1024 /* hints that wait for a connection, per peer */

struct cfs_peer {
	struct cfs_transport *t;
	uint64_t member;
	struct sockaddr_storage addr;
	socklen_t addr_len;
	char name[CFS_ADDRESS_MAX];
	struct cfs_counters counters;
	_Atomic uint64_t bytes_received; /* bytes of answers, whole or not, wanted or not */
	LIST_ENTRY(cfs_peer) all;	 /* t->peers */
	struct cfs_work work;		 /* cfs_peer_service */

	pthread_mutex_t lock; /* protects the rest, and fields of clients (client.h) */
	struct cfs_client *conns[CFS_CONNS_PER_PEER_MAX];
	unsigned n_conns, n_ready;
	struct cfs_get_list pending; /* requests that wait for room on a connection */
	struct cfs_hint *hints;	     /* that wait for a connection; NULL: none */
	unsigned n_hints;
	_Atomic enum cfs_peer_state circuit; /* written under the lock */
	unsigned failures;		     /* in a row */
	bool canceling;			     /* a request has `canceled` set */
	bool closing, closed;
	struct cfs_reader_conn
		*reader;      /* for reads by RDMA; NULL: none. Changed by the loop only */
	unsigned n_receiving; /* threads in a client's receive */
	pthread_cond_t closed_cond;

	/* The loop's only */
	uint64_t probe_at_ms, probe_pause_ms;
	/* Of a request without an answer, which probes repeat; failed_len 0: none */
	struct cfs_peer_block failed_block;
	uint32_t failed_off, failed_len;
	uint64_t failed_ms; /* when it failed, or when the last probe ended that repeated it */
	bool failed_missed; /* that probe found that the peer does not have the block */
	struct cfs_peer_get trial;
	struct iovec trial_dst;	 /* iov_base NULL: no trial is under way */
	uint64_t trial_received; /* bytes_received at its start */
	bool warned;		 /* a failure was logged since its last answer */
	uint64_t silent_ms;	 /* since when requests were cancelled and none answered; or 0 */
	uint64_t silent_late_ms; /* the loop's late_ms then */
	uint64_t window_ms;	 /* connection scaling: see scaling.c */
	uint64_t window_bytes;
	uint64_t paused_until_ms;
	unsigned busy_ticks;
	double rate_before;
	unsigned scaling_to;
};

/* On the loop: queues g, which RDMA has not answered, for a stream. */
void cfs_peer_again(struct cfs_peer *p, struct cfs_peer_get *g);
/* Moves pending requests to connections that have room. */
void cfs_peer_feed(struct cfs_peer *p);
/* Called every tick. True while requests or connections are under way. */
bool cfs_peer_tick(struct cfs_peer *p);
/* The longest pause between two probes. */
uint64_t cfs_probe_pause_max_ms(const struct cfs_transport *t);
/* Opens another connection, unless the maximum is reached. */
void cfs_peer_connect(struct cfs_peer *p);

/* --- connection scaling: scaling.c --- */

/* Opens no further connection for a while. */
void cfs_scaling_pause(struct cfs_peer *p);
void cfs_scaling_tick(struct cfs_peer *p);

/* --- sessions over byte streams: server.c, answer.c, disk-admission.c, pipes.c --- */

struct cfs_pipe {
	int rd, wr;
	uint32_t size, held;
	struct cfs_pipe *next;
};

struct cfs_reply;

/* An element of the send queue: bytes, or the payload of a reply. */
struct cfs_out {
	struct cfs_out *next;
	struct cfs_reply *reply;
	uint8_t *data;
	uint32_t off, len, cap;
	uint32_t requests; /* that end once it is sent */
	uint64_t bytes;	   /* of these requests */
};

struct cfs_server {
	struct cfs_conn c; /* first */
	struct cfs_session session;
	struct sockaddr_storage from;
	bool authenticated, leaving;
	LIST_ENTRY(cfs_server) unauthenticated; /* t->unauthenticated */
	struct cfs_granter_conn *granter;	/* onesided.c */
	uint64_t progress_ms;			/* cfs_loop_ran_ms() */
	struct cfs_out *out_first, **out_last;
	struct cfs_out *out_open; /* the last one, when small frames may be added */
	uint32_t copied;	  /* bytes in elements with data */
};

/* An answer that is checked and sent. */
struct cfs_reply {
	struct cfs_served s; /* first */
	struct cfs_server *sc;
	uint64_t id;
	bool canceled, busy; /* busy: op is in the ring */
	struct cfs_op op;

	TAILQ_ENTRY(cfs_reply) queue; /* of its disk */
	bool queued, has_slot;
	uint64_t queued_ms; /* when it was queued; cfs_loop_ran_ms() */

	uint32_t pos, crc; /* of the bytes up to pos, an offset in the block */
	uint8_t *buf;	   /* filled by the ring; only while it has_slot */
	uint32_t buf_off, buf_len, buf_have;

	struct cfs_out out;
	struct cfs_pipe *pipe;
	TAILQ_ENTRY(cfs_reply) block; /* t->blocked */
	bool blocked;		      /* it holds a pipe, and its receiver is slow */
	uint32_t sent;
	int iov_at;
	size_t iov_off;
};

int cfs_server_listen(struct cfs_transport *t, char err[256]);
void cfs_server_arm(struct cfs_transport *t);
void cfs_server_tick(struct cfs_transport *t, bool *ret_busy);

/* Starts sending the reply's answer. */
void cfs_answer_start(struct cfs_reply *j);
/* Continues after the reply's disk slot or bytes have arrived, or after a failure (a.err). May end
 * the reply. */
void cfs_answer_advance(struct cfs_reply *j);
/* The client has cancelled the request. May end the reply. */
void cfs_answer_cancel(struct cfs_reply *j);
/* Ends a request for so many bytes with an error. */
void cfs_answer_status(struct cfs_server *sc, uint64_t id, int err, uint64_t bytes);
/* These queue WORKING, RDMA and LEASE, unless much is queued: clients can do without them. */
void cfs_answer_working(struct cfs_server *sc, uint64_t id, uint64_t left_ms);
void cfs_answer_session(struct cfs_server *sc, const struct cfs_wire_session *w);
void cfs_answer_lease(struct cfs_server *sc, const struct cfs_wire_lease *w);
/* Queues DRAIN. */
void cfs_answer_leaving(struct cfs_server *sc);
void cfs_answer_flush(struct cfs_conn *c);
/* Drops the send queue of a closed connection. */
void cfs_answer_drop(struct cfs_server *sc);

/* --- log lines about refused connections: refusals.c --- */

#define CFS_REFUSALS 16

/* Of the addresses that share this entry; all 0: none was refused. */
struct cfs_refusals {
	char from[CFS_ADDRESS_MAX]; /* the last one */
	unsigned count;		    /* since the last line */
	uint64_t last_ms, next_ms;  /* the last refusal; no line before next_ms */
	uint64_t pause_ms;	    /* from the last line to next_ms */
};

/* A connection from there has ended before it was authenticated. warns: the administrator should
 * know. */
void cfs_refusals_note(struct cfs_transport *t, const struct sockaddr_storage *from, int err,
		       bool warns);
void cfs_refusals_tick(struct cfs_transport *t);

/* --- admission to a cache disk: disk-admission.c --- */

#define CFS_ADMISSION_DISKS 8 /* disks whose numbers are equal modulo this share a queue */
#define CFS_ADMISSION_MAX                                                                          \
	32 /* of a disk: each takes a worker of the ring, and CFS_READ_MAX bytes */

/*
 * The admission queue of a disk. A reply that must read from it waits for a slot, in which the ring
 * reads once; an answer has memory for its bytes only while it has a slot. So a disk takes a
 * bounded number of workers and bytes, and a hanging disk takes none from the others.
 *
 * A disk counts as hanging when slots are taken and none was freed for disk_timeout_ms. Replies are
 * then refused, except one per period, which probes the disk. Times are those of cfs_loop_ran_ms().
 */
struct cfs_disk_admission {
	TAILQ_HEAD(, cfs_reply) queue;
	unsigned taken;
	uint64_t heard_ms; /* last time a slot was freed, or the first one taken */
	uint64_t tried_ms; /* last probe while it hangs */
};

void cfs_admission_init(struct cfs_transport *t);
/* 0: j has a slot; -EINPROGRESS: queued, cfs_answer_advance() follows; -EBUSY: the disk hangs. */
int cfs_admission_enter(struct cfs_reply *j);
/* The read is done or not needed: j gives up its slot, or leaves the queue. */
void cfs_admission_leave(struct cfs_reply *j);
bool cfs_admission_hangs(struct cfs_transport *t, unsigned disk);
/* Gives free slots to the next replies. */
void cfs_admission_run(struct cfs_transport *t);
bool cfs_admission_is_due(const struct cfs_transport *t);
/* Refuses replies that have waited for disk_timeout_ms. True: a reply waits, or has a slot. */
bool cfs_admission_tick(struct cfs_transport *t);

/* NULL: none available, copy instead. */
struct cfs_pipe *cfs_pipe_get(struct cfs_transport *t);
void cfs_pipe_put(struct cfs_transport *t, struct cfs_pipe *p);
void cfs_pipe_blocked(struct cfs_reply *j, bool blocked);
void cfs_pipes_free(struct cfs_transport *t);

#define CFS_PIPES_MAX 60 /* an ordinary user may own 63 of 1 MiB */

struct cfs_transport {
	struct cfs_loop loop;
	struct cfs_transport_conf conf; /* with defaults filled in */
	const struct cfs_link_ops *link;
	struct cfs_tls *tls;	       /* NULL: no TLS */
	struct cfs_onesided *onesided; /* NULL: no RDMA */
	struct cfs_handshake_keys keys;
	struct cfs_counters asked, served;

	int listen_fd;
	bool listen_armed, draining;
	struct sockaddr_storage address;
	socklen_t address_len;
	struct cfs_op listen_op;

	LIST_HEAD(, cfs_conn) conns;
	struct cfs_conn *more, **more_last;
	LIST_HEAD(, cfs_server) unauthenticated;
	unsigned n_served, n_unauthenticated;
	struct cfs_refusals refusals[CFS_REFUSALS];
	LIST_HEAD(, cfs_served) workings; /* with working_until */
	uint64_t slow_tick_ms;

	struct cfs_disk_admission admission[CFS_ADMISSION_DISKS];
	uint64_t copied; /* bytes of all answers' copies, including spare room */

	struct cfs_pipe *pipes;
	unsigned n_pipes;
	uint64_t no_pipes_until_ms;	 /* the user's limit is reached, by any process */
	TAILQ_HEAD(, cfs_reply) blocked; /* oldest first */

	pthread_mutex_t lock; /* peers, and work handed to the loop below */
	LIST_HEAD(, cfs_peer) peers;
	struct cfs_handshake_keys next_keys;
	bool want_drain, want_keys, want_stop;
	int want_listen; /* descriptor; -1: none */
	struct cfs_work work;
};

#endif
