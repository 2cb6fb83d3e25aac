/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions over byte streams: connections that arrive, the limits on them, and their requests. */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "onesided.h"
#include "transport-internal.h"

#define ACCEPT_BATCH 64
#define RX_BYTES     (16u << 10) /* requests that are read at a time */
#define SLOW_TICK_MS 250

static struct cfs_server *server_of(struct cfs_conn *c)
{
	return (struct cfs_server *)c; /* its first member */
}

static void end_unauthenticated(struct cfs_server *sc)
{
	LIST_REMOVE(sc, unauthenticated);
	sc->c.t->n_unauthenticated--;
}

/* --- requests --- */

static struct cfs_server *server_of_session(struct cfs_session *ss)
{
	return caa_container_of(ss, struct cfs_server, session);
}

static void answer(struct cfs_served *s)
{
	struct cfs_server *sc = ((struct cfs_reply *)s)->sc;

	if (sc->granter && sc->c.state == CFS_CONN_READY && s->a.err == 0 && s->a.fd >= 0)
		cfs_onesided_answered(sc, s);
	cfs_answer_start((struct cfs_reply *)s); /* its first member */
}

static void working(struct cfs_served *s, uint64_t left_ms)
{
	struct cfs_reply *j = (struct cfs_reply *)s;

	cfs_answer_working(j->sc, j->id, left_ms);
}

static void resume(struct cfs_session *ss)
{
	cfs_conn_want_in(&server_of_session(ss)->c);
}

static const struct cfs_session_ops session_ops = {
	.answer = answer,
	.working = working,
	.resume = resume,
};

static int got_get(struct cfs_server *sc, const struct cfs_frame *f, const uint8_t *payload)
{
	struct cfs_wire_get get;
	struct cfs_reply *j;
	int r = cfs_wire_parse_get(payload, &get);

	if (r < 0)
		return r;
	j = calloc(1, sizeof(*j));
	if (!j)
		return -ENOMEM;
	r = cfs_session_admit(&sc->session, get.len);
	if (r < 0) {
		free(j);
		cfs_answer_status(sc, f->id, r, get.len);
		return 0;
	}
	j->s.req = (struct cfs_peer_request){
		.block = get.block,
		.off = get.off,
		.len = get.len,
		.flags = (f->flags & CFS_FRAME_F_ONLY_CACHED ? CFS_PEER_ONLY_CACHED : 0u) |
			 (f->flags & CFS_FRAME_F_FAILOVER ? CFS_PEER_FAILOVER : 0u),
		.from = sc->c.peer,
		.patient = sc->c.features & CFS_FEATURE_WORKING,
	};
	j->sc = sc;
	j->id = f->id;
	cfs_conn_ref(&sc->c);
	cfs_session_serve(&sc->session, &j->s);
	return 0;
}

static void got_cancel(struct cfs_server *sc, uint64_t id)
{
	struct cfs_served *s, *next;

	for (s = LIST_FIRST(&sc->session.requests); s; s = next) {
		struct cfs_reply *j = (struct cfs_reply *)s;

		next = LIST_NEXT(s, all);
		if (j->id == id)
			cfs_answer_cancel(j);
	}
}

static int got_frame(struct cfs_server *sc, const struct cfs_frame *f)
{
	const uint8_t *payload = cfs_reader_payload(&sc->c.reader);
	struct cfs_peer_block b;
	enum cfs_peer_hint hint;
	int r;

	switch (f->type) {
	case CFS_FRAME_GET:
		return got_get(sc, f, payload);
	case CFS_FRAME_CANCEL:
		got_cancel(sc, f->id);
		return 0;
	case CFS_FRAME_HINT:
		r = cfs_wire_parse_hint(payload, &b, &hint);
		if (r == 0)
			cfs_session_hint(&sc->session, sc->c.peer, &b, hint);
		return r;
	case CFS_FRAME_RDMA:
		if (f->len > 0 || !(sc->c.features & CFS_FEATURE_RDMA))
			return -EPROTO;
		cfs_onesided_wanted(sc);
		return 0;
	default:
		return -EPROTO;
	}
}

/* Handles requests that have arrived; 1 when there may be more, 0 when not. */
static int receive(struct cfs_server *sc)
{
	struct cfs_conn *c = &sc->c;
	struct iovec iov = {.iov_base = c->t->loop.scratch, .iov_len = RX_BYTES};
	const uint8_t *data = iov.iov_base;
	ssize_t n = c->link.ops->recv(&c->link, &iov, 1);
	size_t len;
	int r = 0;

	if (n <= 0)
		return n < 0 ? (int)n : -ECONNRESET;
	for (len = (size_t)n; len > 0 && c->state != CFS_CONN_CLOSED;) {
		struct cfs_frame f;

		r = cfs_reader_feed(&c->reader, &data, &len, &f);
		if (r > 0)
			r = got_frame(sc, &f);
		if (r < 0)
			return r;
	}
	return (size_t)n == RX_BYTES;
}

static void readable(struct cfs_conn *c)
{
	struct cfs_server *sc = server_of(c);
	int r = receive(sc);

	if (c->state == CFS_CONN_CLOSED)
		return;
	if (r < 0 && r != -EAGAIN) {
		if (r == -EPROTO || r == -EBADMSG)
			cfs_counters_error(&c->t->served, CFS_PEER_E_PROTOCOL);
		cfs_conn_close(c, r);
		return;
	}
	if (cfs_session_pause(&sc->session))
		return;
	if (r > 0)
		cfs_conn_again(c, true, false);
	else
		cfs_conn_want_in(c);
}

/* --- life --- */

static void conn_ready(struct cfs_conn *c)
{
	struct cfs_server *sc = server_of(c);
	struct cfs_transport *t = c->t;
	struct cfs_wire_ready ready = {
		.conn_bytes = t->conf.conn_bytes,
		.requests = CFS_REQUESTS_PER_SESSION,
	};
	uint8_t payload[CFS_WIRE_READY_LEN], frame[CFS_WIRE_HEADER + CFS_WIRE_CONTROL_MAX];
	struct cfs_frame f = {.type = CFS_FRAME_READY};
	int r;

	sc->authenticated = true;
	end_unauthenticated(sc);
	atomic_fetch_add(&t->served.conns[c->link.ops->transport], 1);
	if (t->draining) {
		f = (struct cfs_frame){.type = CFS_FRAME_REFUSE, .status = CFS_STATUS_LEAVING};
		(void)cfs_conn_send_now(c, frame, cfs_wire_control(frame, &f, NULL, 0));
		cfs_conn_close(c, -ESHUTDOWN);
		return;
	}
	cfs_wire_put_ready(payload, &ready);
	r = cfs_conn_send_now(c, frame, cfs_wire_control(frame, &f, payload, sizeof(payload)));
	if (r < 0)
		cfs_conn_close(c, r);
	else
		cfs_conn_want_in(c);
}

static void conn_closed(struct cfs_conn *c, int err)
{
	struct cfs_server *sc = server_of(c);
	struct cfs_transport *t = c->t;
	enum cfs_peer_error kind = cfs_peer_error_of(err);

	t->n_served--;
	cfs_onesided_server_closed(sc);
	if (sc->authenticated) {
		atomic_fetch_sub(&t->served.conns[c->link.ops->transport], 1);
	} else {
		end_unauthenticated(sc);
		if (kind != CFS_PEER_E_AUTH)
			kind = CFS_PEER_E_PROTOCOL;
		cfs_counters_error(&t->served, kind);
		cfs_refusals_note(t, &sc->from, err, kind == CFS_PEER_E_AUTH || err == -EPROTOTYPE);
	}
	cfs_session_closed(&sc->session);
	cfs_answer_drop(sc);
	cfs_server_arm(t);
}

static void conn_free(struct cfs_conn *c)
{
	free(server_of(c));
}

static const struct cfs_conn_ops server_ops = {
	.ready = conn_ready,
	.readable = readable,
	.flush = cfs_answer_flush,
	.closed = conn_closed,
	.free = conn_free,
};

static bool same_address(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
	const struct sockaddr_in *a4 = (const void *)a, *b4 = (const void *)b;
	const struct sockaddr_in6 *a6 = (const void *)a, *b6 = (const void *)b;

	if (a->ss_family != b->ss_family)
		return false;
	if (a->ss_family == AF_INET)
		return a4->sin_addr.s_addr == b4->sin_addr.s_addr;
	return memcmp(&a6->sin6_addr, &b6->sin6_addr, sizeof(a6->sin6_addr)) == 0;
}

static bool is_one_too_many(struct cfs_transport *t, const struct sockaddr_storage *from)
{
	const struct cfs_server *sc;
	unsigned n = 0;

	if (t->n_served >= t->conf.max_conns || t->n_unauthenticated >= t->conf.max_unauthenticated)
		return true;
	if (t->n_unauthenticated < t->conf.max_unauthenticated_per_addr)
		return false;
	LIST_FOREACH(sc, &t->unauthenticated, unauthenticated)
	n += same_address(&sc->from, from);
	return n >= t->conf.max_unauthenticated_per_addr;
}

static int accept_one(struct cfs_transport *t)
{
	struct cfs_server *sc;
	struct cfs_link link = {.ops = t->link, .tls = t->tls};
	struct sockaddr_storage from;
	int r = t->link->accept(&link, t->listen_fd, &from);

	if (r < 0)
		return r;
	if (is_one_too_many(t, &from)) {
		cfs_counters_error(&t->served, CFS_PEER_E_BUSY);
		t->link->close(&link);
		return 0;
	}
	sc = calloc(1, sizeof(*sc));
	if (!sc) {
		t->link->close(&link);
		return -ENOMEM;
	}
	sc->c.link = link;
	sc->from = from;
	sc->out_last = &sc->out_first;
	sc->progress_ms = cfs_loop_ran_ms(&t->loop);
	cfs_session_init(&sc->session, t, &session_ops);
	t->n_served++;
	t->n_unauthenticated++;
	LIST_INSERT_HEAD(&t->unauthenticated, sc, unauthenticated);
	cfs_conn_init(&sc->c, t, &server_ops);
	r = cfs_conn_authenticate(&sc->c, 0);
	if (r < 0)
		cfs_conn_close(&sc->c, r);
	cfs_loop_touch(&t->loop); /* it has a deadline */
	return 0;
}

static void acceptable(struct cfs_op *op, int res)
{
	struct cfs_transport *t = caa_container_of(op, struct cfs_transport, listen_op);
	int i, r = 0;

	(void)res;
	t->listen_armed = false;
	if (t->listen_fd < 0)
		return;
	for (i = 0; i < ACCEPT_BATCH && (r == 0 || r == -ECONNABORTED || r == -EINTR); i++)
		r = accept_one(t);
	/* Without descriptors or memory, accept() is tried again when a connection closes, or at the
	 * next slow tick. */
	if (r == 0 || r == -EAGAIN || r == -ECONNABORTED || r == -EINTR)
		cfs_server_arm(t);
	else
		cfs_warn("peer transport: cannot accept a connection, trying again: error=%s",
			 cfs_errname(r));
}

void cfs_server_arm(struct cfs_transport *t)
{
	if (t->listen_fd < 0 || t->listen_armed)
		return;
	t->listen_armed = true;
	cfs_loop_poll(&t->loop, t->listen_fd, POLLIN, &t->listen_op);
}

int cfs_server_listen(struct cfs_transport *t, char err[256])
{
	const struct sockaddr *sa = t->conf.listen;
	char name[CFS_ADDRESS_MAX];

	cfs_address_format(sa, name);
	if (!cfs_address_is_private(sa) && !t->conf.allow_public)
		return cfs_fail(err, -EADDRNOTAVAIL,
				"%s is not a private address, group-allow-public is needed", name);
	t->listen_fd = t->link->listen(sa, t->conf.listen_len);
	if (t->listen_fd < 0) {
		snprintf(err, 256, "cannot listen on %s: %s", name, strerror(-t->listen_fd));
		return t->listen_fd;
	}
	t->listen_op.fn = acceptable;
	t->address_len = sizeof(t->address);
	if (getsockname(t->listen_fd, (struct sockaddr *)&t->address, &t->address_len) < 0)
		return -errno;
	return 0;
}

/*
 * Closes connections on which something takes too long: a handshake, receiving requested data, or
 * reading the rest of an answer, which blocks all behind it.
 */
static bool is_overdue(struct cfs_transport *t, struct cfs_conn *c)
{
	uint64_t now_ms = cfs_loop_ran_ms(&t->loop), since_ms;
	const struct cfs_out *head;
	bool reads;

	if (c->state < CFS_CONN_READY)
		return c->deadline_ms <= now_ms;
	head = c->ops == &server_ops ? server_of(c)->out_first : NULL;
	if (!head)
		return false;
	since_ms = now_ms - server_of(c)->progress_ms;
	reads = head->reply && (head->reply->busy || head->reply->queued);
	if (reads && cfs_admission_hangs(t, head->reply->s.a.disk))
		return since_ms >= t->conf.disk_timeout_ms;
	return (reads || c->out_armed) && since_ms >= t->conf.stall_timeout_ms;
}

void cfs_server_tick(struct cfs_transport *t, bool *ret_busy)
{
	struct cfs_conn *c, *next;

	*ret_busy |= cfs_session_tick(t);
	if (t->loop.now_ms - t->slow_tick_ms < SLOW_TICK_MS)
		return;
	t->slow_tick_ms = t->loop.now_ms;
	cfs_server_arm(t);
	cfs_refusals_tick(t);
	*ret_busy |= cfs_admission_tick(t);
	for (c = LIST_FIRST(&t->conns); c; c = next) {
		next = LIST_NEXT(c, all);
		*ret_busy |= c->state < CFS_CONN_READY || c->out_armed;
		if (is_overdue(t, c)) {
			if (c->state >= CFS_CONN_READY)
				cfs_counters_error(&t->served, CFS_PEER_E_TIMEOUT);
			cfs_conn_close(c, -ETIMEDOUT);
			/* Closing it may have closed others. */
			next = LIST_FIRST(&t->conns);
			continue;
		}
		if (t->draining && c->ops == &server_ops && c->state == CFS_CONN_READY &&
		    !server_of(c)->leaving) {
			server_of(c)->leaving = true;
			cfs_answer_leaving(server_of(c));
		}
	}
}
