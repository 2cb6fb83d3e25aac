/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface between requests and kinds of connections, serving side. A session is one connection
 * from another member: it receives requests for a range of a block and sends the answers, which are
 * bytes in memory or a range of a file.
 *
 *	common part (session.c): limits, calling the store, progress messages, counters, the end
 *		of a request
 *	implementations (server.c, answer.c: a byte stream): receiving requests, sending answers
 *		with their checksums, authentication
 *
 * The common part knows no frames, descriptors of connections or checksums. Implementations do not
 * call the store and know no limit of the member.
 *
 * Everything runs on the loop, except cfs_peer_answer().
 */
#ifndef CFS_TRANSPORT_SESSION_H
#define CFS_TRANSPORT_SESSION_H

#include <cachefs/transport.h>
#include <sys/queue.h>

#include "transport/link/loop.h"

#define CFS_REQUESTS_PER_SESSION 1024

struct cfs_session;

/* A request being served. Implementations embed it first. */
struct cfs_served {
	struct cfs_peer_request req; /* first; set by the session */
	struct cfs_session *session;
	LIST_ENTRY(cfs_served) all; /* session->requests */
	struct cfs_peer_answer a;   /* from ops->answer on; the session may set err to fail it */
	uint64_t start_ns;

	/* session.c */
	cfs_deadline_t working_until; /* end of its progress messages; 0: it has none */
	uint64_t tell_ms;	      /* time of the next progress message */
	LIST_ENTRY(cfs_served) working;
	struct cfs_work work;
};

/* --- what a session does --- */

struct cfs_session_ops {
	/* The store has set s->a: sends it, and calls cfs_session_done() at the end, now or later. */
	void (*answer)(struct cfs_served *s);
	/* Sends a progress message; left_ms as of ops->works. Best effort. */
	void (*working)(struct cfs_served *s, uint64_t left_ms);
	/* After cfs_session_pause(): takes requests again. */
	void (*resume)(struct cfs_session *ss);
};

struct cfs_session {
	const struct cfs_session_ops *ops;
	struct cfs_transport *t;
	LIST_HEAD(, cfs_served) requests;

	/* session.c */
	bool paused;
	unsigned inflight;
	uint64_t inflight_bytes;
	uint64_t tokens, tokens_ms; /* of the request rate */
};

/* --- what a session reports --- */

void cfs_session_init(struct cfs_session *ss, struct cfs_transport *t,
		      const struct cfs_session_ops *ops);
/*
 * A request for so many bytes has arrived; they count until cfs_session_credit(). 0: it is served,
 * and cfs_session_serve() follows. -EBUSY, -ESHUTDOWN: it is answered with that.
 */
int cfs_session_admit(struct cfs_session *ss, uint64_t bytes);
/* Calls the store; all of s except req is 0. */
void cfs_session_serve(struct cfs_session *ss, struct cfs_served *s);
void cfs_session_hint(struct cfs_session *ss, uint64_t from, const struct cfs_peer_block *b,
		      enum cfs_peer_hint hint);
/* True: the session has as many requests as it may, and waits for ops->resume. */
bool cfs_session_pause(struct cfs_session *ss);
/* So many requests have ended, sent or not. */
void cfs_session_credit(struct cfs_session *ss, unsigned requests, uint64_t bytes);
/* All of the answer was sent. */
void cfs_session_count_sent(const struct cfs_served *s);
/* The answer was not sent: err; mismatch: its bytes do not match their checksums. */
void cfs_session_count_failed(const struct cfs_served *s, int err, bool mismatch);
/* Releases the answer's bytes and forgets s, which the session frees. */
void cfs_session_done(struct cfs_served *s, bool mismatch);
/* The connection is gone: the store is not asked for the progress of its requests any more. */
void cfs_session_closed(struct cfs_session *ss);

/* --- the transport --- */

/* At every tick. True: requests have progress messages. */
bool cfs_session_tick(struct cfs_transport *t);

#endif
