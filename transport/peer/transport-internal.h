/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who owns what: the loop's thread owns every connection and everything here, except what the two
 * locks protect and what is lent (lend.c). Order: transport, peer, loop's queue. No lock is held
 * across a system call that does I/O, nor while a callback runs.
 */
#ifndef CFS_TRANSPORT_INTERNAL_H
#define CFS_TRANSPORT_INTERNAL_H

#include <cachefs/transport.h>
#include <pthread.h>
#include <stdatomic.h>

#include "transport/link/link.h"
#include "transport/link/loop.h"
#include "transport/link/tls.h"
#include "transport/wire/handshake.h"
#include "transport/wire/wire.h"

#define CFS_CONNS_PER_PEER_MAX 16
#define CFS_REQUESTS_PER_CONN  1024
/* Answers from here on are spliced; below, a copy beside the header is cheaper. */
#define CFS_SPLICE_MIN (64u << 10)
/* Requests and small answers are received here; the rest is for reading files. */
#define CFS_SCRATCH_RX (64u << 10)
#define CFS_READ_MAX   (128u << 10)
/* A connection gives way to the others after so much. */
#define CFS_TURN_BYTES (4u << 20)

struct cfs_counters {
	_Atomic uint64_t requests, bytes, direct, misses, errors[CFS_PEER_E_COUNT], latency_ns;
	_Atomic uint64_t latencies[CFS_PEER_LATENCIES];
	_Atomic uint64_t inflight_bytes;
	_Atomic unsigned conns[CFS_PEER_TLS_COUNT], inflight;
};
void cfs_counters_ok(struct cfs_counters *c, uint64_t bytes, uint64_t ns);
void cfs_counters_error(struct cfs_counters *c, enum cfs_peer_error kind);
void cfs_counters_read(struct cfs_counters *c, struct cfs_peer_stats *ret);
/* By what a request or a connection has ended with; CFS_PEER_E_COUNT: not an error of the peer. */
enum cfs_peer_error cfs_peer_error_of(int err);

/* --- connections: conn.c --- */

enum cfs_conn_state {
	CFS_CONN_CONNECT,
	CFS_CONN_SECURE, /* the link's own handshake */
	CFS_CONN_AUTH,	 /* the handshake's own state says which step */
	CFS_CONN_READY,
	CFS_CONN_DRAINING, /* finishes what is under way */
	CFS_CONN_CLOSED,
};

struct cfs_conn;
struct cfs_conn_ops {
	void (*ready)(struct cfs_conn *c); /* authenticated */
	void (*readable)(struct cfs_conn *c);
	void (*flush)(struct cfs_conn *c);	     /* has something to send, or may again */
	void (*closed)(struct cfs_conn *c, int err); /* first thing after a failure */
	void (*free)(struct cfs_conn *c);
};

struct cfs_conn {
	struct cfs_transport *t;
	const struct cfs_conn_ops *ops;
	struct cfs_link link;
	enum cfs_conn_state state;
	bool in_armed, out_armed, more_in, more_out, on_more;
	unsigned refs; /* the owner's, each op's in the ring, each job's */
	uint64_t peer; /* member at the other end; a server knows it once authenticated */
	uint64_t features;
	cfs_deadline_t deadline; /* of connecting and authenticating */
	struct cfs_handshake *handshake;
	struct cfs_op in_op, out_op;
	struct cfs_conn *prev, *next; /* t->conns */
	struct cfs_conn *more_next;
	struct cfs_reader reader;
};

/* c->link is connected (or connecting); one reference is the owner's. */
void cfs_conn_init(struct cfs_conn *c, struct cfs_transport *t, const struct cfs_conn_ops *ops);
/* peer: the member that a client wants; 0: a server. */
int cfs_conn_authenticate(struct cfs_conn *c, uint64_t peer);
/* Something may have come; closes the connection when it must not. */
void cfs_conn_readable(struct cfs_conn *c);
void cfs_conn_want_in(struct cfs_conn *c);
void cfs_conn_want_out(struct cfs_conn *c);
/* readable / flush once more in the next round, after the others. */
void cfs_conn_again(struct cfs_conn *c, bool in, bool out);
/* Once; later calls do nothing. err: why. Gives up the owner's reference. */
void cfs_conn_close(struct cfs_conn *c, int err);
void cfs_conn_ref(struct cfs_conn *c);
void cfs_conn_unref(struct cfs_conn *c);
/* Sends a few bytes that must fit; closes the connection when they do not. */
int cfs_conn_send_now(struct cfs_conn *c, uint8_t *data, size_t len);

/* --- the client side: peer.c, client.c --- */

struct cfs_client;

struct cfs_get_list {
	struct cfs_peer_get *first, *last;
	unsigned n;
};
void cfs_gets_append(struct cfs_get_list *l, struct cfs_peer_get *g);
void cfs_gets_remove(struct cfs_get_list *l, struct cfs_peer_get *g);

#define CFS_PIECE_IOV 72

#define CFS_PEER_HINTS_MAX 1024 /* that wait for a connection, per peer */

struct cfs_hint {
	struct cfs_peer_block block;
	enum cfs_peer_hint what;
};

struct cfs_peer {
	struct cfs_transport *t;
	uint64_t member;
	struct sockaddr_storage addr;
	socklen_t addr_len;
	char name[CFS_ADDRESS_MAX];
	struct cfs_counters counters;
	_Atomic uint64_t came;	      /* bytes of answers, whole or not, wanted or not */
	struct cfs_peer *prev, *next; /* t->peers */
	struct cfs_work work;	      /* cfs_peer_service */

	pthread_mutex_t lock; /* the rest, and what cfs_client says */
	struct cfs_client *conns[CFS_CONNS_PER_PEER_MAX];
	unsigned n_conns, n_ready;
	struct cfs_get_list pending; /* no connection has room */
	struct cfs_hint *hints;	     /* there is no connection; NULL: none */
	unsigned n_hints;
	enum cfs_peer_state circuit;
	unsigned failures; /* in a row */
	bool canceling;	   /* a request is marked */
	bool closing, closed;
	unsigned n_lent; /* connections, to threads */
	pthread_cond_t closed_cond;

	/* The loop's only */
	uint64_t probe_at_ms, probe_pause_ms;
	bool complained;    /* logged since it last answered */
	uint64_t silent_ms; /* since when nothing was answered and requests were given up; or 0 */
	uint64_t window_ms; /* growth: see growth.c */
	uint64_t window_bytes;
	uint64_t hold_until_ms;
	unsigned busy_ticks;
	double rate_before;
	unsigned growing_to;
};

/*
 * Who receives on a connection: the loop, or for a while nobody and a thread in turns. See lend.c.
 * Under peer->lock.
 */
struct cfs_lending {
	bool away;   /* the loop does not; it alone changes this, so it may look without the lock */
	bool lent;   /* away: a thread does, or it is on its way back to the loop */
	bool wanted; /* the loop has been asked for it since the last tick */
	bool used;   /* lent since the last tick */
	struct cfs_work back; /* the way back */
};

struct cfs_client {
	struct cfs_conn c;
	struct cfs_peer *peer;

	/* peer->lock */
	struct cfs_peer_get **slots;
	uint16_t *free_slots;
	unsigned n_slots, n_free;
	_Atomic unsigned n_small; /* in flight, to be received together */
	uint64_t serial;
	uint64_t inflight_bytes;
	unsigned inflight;
	struct cfs_wire_ready limits;
	uint8_t *out; /* frames to be sent */
	size_t out_len, out_cap;
	bool usable;  /* READY */
	bool sending; /* somebody is; batch is theirs */
	bool blocked; /* the sender is the loop, once there is room */
	bool dead;
	uint8_t *batch;
	size_t batch_len, batch_off, batch_cap;
	struct cfs_lending lending;

	/* The loop's only, or what a thread borrows: lend.c */
	struct cfs_work sent_work;
	struct cfs_peer_get *rx; /* whose payload is arriving; NULL with rx_left: nobody's */
	uint32_t rx_left, rx_crc;
	uint64_t active_ms;
	_Atomic uint64_t heard_ms; /* an answer has come, all of it; or one is worked on */
};

/* A connection attempt begins; its end is reported by cfs_peer_connected / _unconnected. */
int cfs_client_connect(struct cfs_peer *p);
/* Under the lock: room for another request of len bytes? */
bool cfs_client_has_room(const struct cfs_client *cc, uint32_t len);
/*
 * Under the lock: the request is on its way with the next send. lend: cfs_peer_receive() will
 * follow. -ENOMEM.
 */
int cfs_client_assign(struct cfs_client *cc, struct cfs_peer_get *g, bool lend);
/* Under the lock, given up in between: sends, unless somebody is at it. */
void cfs_client_send(struct cfs_client *cc);
/* Under the lock: requests that have expired or been cancelled are moved to *list. */
void cfs_client_expire(struct cfs_client *cc, uint64_t now_ms, struct cfs_get_list *list);
/* Under the lock: its slot is free, and nobody else ends it. */
void cfs_client_take_out(struct cfs_client *cc, struct cfs_peer_get *g);
/* What is next of the payload of rx, at most a piece of it; returns its length. */
uint32_t cfs_client_next_piece(struct cfs_client *cc, struct iovec iov[CFS_PIECE_IOV], int *ret_n);
/* n bytes of it have arrived in the request's memory. */
void cfs_client_advance(struct cfs_client *cc, size_t n);
/* The loop receives again, from wherever a thread has left it. */
void cfs_client_resume(struct cfs_client *cc);
/* Something has been answered since g was started. */
bool cfs_client_heard(const struct cfs_client *cc, const struct cfs_peer_get *g);
int cfs_client_put_frame(struct cfs_client *cc, const struct cfs_frame *f, const void *payload,
			 uint32_t len);

/* --- a connection lent to a thread: lend.c --- */

void cfs_lend_init(struct cfs_client *cc);
/* Under the lock, the loop: g has been received, nothing follows: it may leave the connection. */
void cfs_lend_rest(struct cfs_client *cc, const struct cfs_peer_get *g);
/* Under the lock: g will be received on it; lend: by its thread, if that can be. */
void cfs_lend_assign(struct cfs_client *cc, struct cfs_peer_get *g, bool lend);
/* Every tick, under the lock, the loop. */
void cfs_lend_tick(struct cfs_client *cc);

/* Reports from client.c, without the lock. */
void cfs_peer_connected(struct cfs_peer *p, struct cfs_client *cc);
/* The connection is gone; list: requests it had. was_ready: it had been in use. */
void cfs_peer_lost(struct cfs_peer *p, struct cfs_client *cc, int err, bool was_ready,
		   struct cfs_get_list *list);
/* A request has ended with 0 or an error; it is in no list any more. Calls done. */
void cfs_peer_finish(struct cfs_peer *p, struct cfs_peer_get *g, int err);
/* Its statistics. */
void cfs_peer_count_end(struct cfs_peer *p, const struct cfs_peer_get *g, int err);
/* A connection may have room again. */
void cfs_peer_feed(struct cfs_peer *p);
/* Every tick. True while something is under way. */
bool cfs_peer_tick(struct cfs_peer *p);
/* Another connection, unless there are as many as there may be. */
void cfs_peer_connect(struct cfs_peer *p);

/* --- how many connections a peer has: growth.c --- */

/* None more for a while. */
void cfs_growth_hold(struct cfs_peer *p);
void cfs_growth_tick(struct cfs_peer *p);

/* --- the server side: server.c, answer.c, turns.c, pipes.c --- */

struct cfs_pipe {
	int rd, wr;
	uint32_t size, held;
	struct cfs_pipe *next;
};

struct cfs_job;

/* Something in the order in which it is sent: bytes, or the payload of a job. */
struct cfs_out {
	struct cfs_out *next;
	struct cfs_job *job;
	uint8_t *data;
	uint32_t off, len, cap;
	uint32_t requests; /* that end with it */
	uint64_t bytes;	   /* same */
};

struct cfs_server {
	struct cfs_conn c;
	struct sockaddr_storage from;
	bool authenticated, paused, leaving;
	unsigned inflight;
	uint64_t inflight_bytes;
	uint64_t progress_ms;
	uint64_t tokens, tokens_ms; /* of the request rate */
	struct cfs_job *jobs;
	struct cfs_out *out_first, **out_last;
	struct cfs_out *out_open; /* the last one, when small frames may be added */
	uint32_t copied;	  /* bytes of those that are not a job's */
};

/* Checking and sending an answer. */
struct cfs_job {
	struct cfs_peer_request req; /* first */
	struct cfs_server *sc;
	uint64_t id, start_ns;
	struct cfs_peer_answer a;
	bool canceled, answered, busy; /* busy: op is in the ring */
	cfs_deadline_t working_until;  /* not answered, and the asker is told so; or 0 */
	uint64_t tell_ms;	       /* when that is next */
	struct cfs_job *working_prev, *working_next; /* t->workings */
	struct cfs_work work;
	struct cfs_op op;
	struct cfs_job *prev, *next; /* sc->jobs */

	struct cfs_job *turn_prev, *turn_next; /* of its disk's line */
	bool in_line, has_turn;
	uint64_t line_ms; /* since when it is in line */

	uint32_t pos, crc; /* checked so far: offset in the block */
	uint8_t *buf;	   /* read by the ring; only while it has_turn */
	uint32_t buf_off, buf_len, buf_have;

	struct cfs_out out;
	struct cfs_pipe *pipe;
	struct cfs_job *blocked_prev, *blocked_next; /* t->blocked */
	bool blocked;				     /* holds a pipe, its receiver is slow */
	uint32_t sent;
	int iov_at;
	size_t iov_off;
};

int cfs_server_listen(struct cfs_transport *t, char err[256]);
void cfs_server_arm(struct cfs_transport *t);
void cfs_server_tick(struct cfs_transport *t, bool *ret_busy);
/* The job leaves the connection. ended: its bytes need not be accounted for by an out. */
void cfs_server_job_done(struct cfs_job *j);
/* Requests have been sent: others may come. */
void cfs_server_credit(struct cfs_server *sc, unsigned requests, uint64_t bytes);

/* The job has an answer. */
void cfs_answer_start(struct cfs_job *j);
/* Goes on with what it waited for: its turn, or bytes. Or has failed (a.err). May end it. */
void cfs_answer_advance(struct cfs_job *j);
/* Nobody wants it any more. May end it. */
void cfs_answer_cancel(struct cfs_job *j);
void cfs_answer_status(struct cfs_server *sc, uint64_t id, int err, uint64_t bytes);
/* The answer is worked on. Not said where enough waits to be sent. */
void cfs_answer_working(struct cfs_server *sc, uint64_t id);
/* Says so behind the answers that are on their way. */
void cfs_answer_leaving(struct cfs_server *sc);
void cfs_answer_flush(struct cfs_conn *c);
/* The connection is closed: forgets what was to be sent. */
void cfs_answer_drop(struct cfs_server *sc);

/* --- whose turn it is to have a cache disk read: turns.c --- */

#define CFS_TURN_DISKS 8  /* disks whose numbers differ by this are taken for one */
#define CFS_TURNS_MAX  32 /* of a disk: each takes a worker of the ring, and CFS_READ_MAX bytes */

/*
 * A disk. What must be read from it waits in line for a turn, in which the ring reads once; no
 * answer has memory for its bytes but in its turn. So disks take a bounded number of workers and
 * bytes, and one that hangs takes none from the others.
 *
 * It hangs when turns were taken and none has ended for disk_timeout_ms. Then nobody gets in line,
 * but for one in so much time, who finds out whether it answers others.
 */
struct cfs_turns {
	struct cfs_job *first, *last; /* in line */
	unsigned taken;
	uint64_t heard_ms; /* a turn has ended, or the first one begun */
	uint64_t tried_ms; /* since it hangs */
};

/* 0: it is j's turn; -EINPROGRESS: once it is, cfs_answer_advance(); -EBUSY: the disk hangs. */
int cfs_turn_take(struct cfs_job *j);
/* What was to be read has been, or is not needed: j has no turn, and is not in line. */
void cfs_turn_end(struct cfs_job *j);
bool cfs_turns_hang(struct cfs_transport *t, unsigned disk);
/* Whoever is next. */
void cfs_turns_run(struct cfs_transport *t);
bool cfs_turns_are_due(const struct cfs_transport *t);
/* Who has waited for disk_timeout_ms is refused. True: somebody waits, or has a turn. */
bool cfs_turns_tick(struct cfs_transport *t);

/* NULL: none to be had, copy instead. */
struct cfs_pipe *cfs_pipe_get(struct cfs_transport *t);
void cfs_pipe_put(struct cfs_transport *t, struct cfs_pipe *p);
void cfs_pipe_blocked(struct cfs_job *j, bool blocked);
void cfs_pipes_free(struct cfs_transport *t);

#define CFS_PIPES_MAX 60 /* an ordinary user may own 63 of 1 MiB */

struct cfs_transport {
	struct cfs_loop loop;
	struct cfs_transport_conf conf; /* with defaults filled in */
	const struct cfs_link_ops *link;
	struct cfs_tls *tls; /* NULL: without */
	struct cfs_handshake_keys keys;
	struct cfs_counters asked, served;

	int listen_fd;
	bool listen_armed, draining;
	struct sockaddr_storage address;
	socklen_t address_len;
	struct cfs_op listen_op;

	struct cfs_conn *conns, *more, **more_last;
	unsigned n_served, n_unauthenticated;
	struct cfs_job *workings; /* with working_until */
	uint64_t slow_tick_ms;

	struct cfs_turns turns[CFS_TURN_DISKS];
	uint64_t copied; /* bytes of all answers' copies, with room for more */

	struct cfs_pipe *pipes;
	unsigned n_pipes;
	uint64_t no_pipes_until_ms; /* the user has too many, of whatever process */
	struct cfs_job *blocked;    /* oldest first */

	pthread_mutex_t lock; /* peers, and what is handed to the loop below */
	struct cfs_peer *peers;
	struct cfs_handshake_keys next_keys;
	bool want_drain, want_keys, want_stop;
	struct cfs_work work;
};

#endif
