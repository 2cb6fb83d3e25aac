/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inline receive: the thread that waits for an answer receives it, so that the socket wakes that
 * thread instead of the loop.
 *
 * The loop parks a connection, that is, does not poll it, when it has received the answer of a
 * waiting thread (get->waits) and no other request is under way. The next request takes the parked
 * connection if its thread waits for it and it is not large. That thread receives with the same
 * steps as the loop, and parks the connection again. It handles only its own answer.
 *
 * The loop takes the connection back in its current state, even in the middle of a frame: at the
 * thread's deadline, when another request is sent on it, on any other frame, on a wrong checksum,
 * at the end of the connection, and when it was unused from one tick to the next. Only then does
 * the loop notice that the peer has closed a parked connection.
 *
 * While a thread receives, the receive state (rx, rx_left, rx_crc, c.reader, and the link's state
 * for recv and expect) and the request's memory belong to the thread. Other threads may send
 * requests. The loop may close the connection: that shuts the socket down, which ends the thread's
 * receive.
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>

#include "base/bytes.h"
#include "stream.h"

/* A page of a mount's pool. For larger requests the wake-up of the loop matters little. */
#define INLINE_MAX (128u << 10)

static struct cfs_stream *stream_of(struct cfs_work *w)
{
	return caa_container_of(w, struct cfs_stream, inline_rx.unpark);
}

/* --- the loop --- */

static void unpark(struct cfs_work *w)
{
	struct cfs_stream *s = stream_of(w);
	struct cfs_conn *c = &s->c;

	if (c->state == CFS_CONN_CLOSED) { /* its peer may be freed already */
		cfs_conn_unref(c);
		return;
	}
	pthread_mutex_lock(&s->client.peer->lock);
	s->inline_rx.parked = s->inline_rx.taken = false;
	pthread_mutex_unlock(&s->client.peer->lock);
	cfs_conn_ref(c);
	cfs_stream_resume(s);
	cfs_conn_unref(c);
}

void cfs_inline_init(struct cfs_stream *s)
{
	s->inline_rx.unpark.fn = unpark;
}

void cfs_inline_park(struct cfs_stream *s, const struct cfs_peer_get *g)
{
	struct cfs_conn *c = &s->c;

	if (g->len > INLINE_MAX || s->client.inflight > 0 || s->inline_rx.wanted ||
	    s->client.peer->pending.n > 0 || s->client.peer->warned || c->state != CFS_CONN_READY ||
	    c->link.unread || c->link.key_limit || c->in_armed || c->more_in)
		return;
	s->inline_rx.parked = true;
}

void cfs_inline_tick(struct cfs_client *c)
{
	struct cfs_stream *s = (struct cfs_stream *)c; /* its first member */
	struct cfs_inline_rx *l = &s->inline_rx;

	if (l->parked && !l->taken && !l->used) {
		l->parked = false;
		cfs_conn_want_in(&s->c);
	}
	l->wanted = l->used = false;
}

void cfs_inline_assign(struct cfs_stream *s, struct cfs_peer_get *g, bool receives)
{
	struct cfs_inline_rx *l = &s->inline_rx;

	if (!l->parked)
		return;
	if (l->taken) { /* the thread returns it when data arrives */
		l->wanted = true;
		return;
	}
	l->taken = true;
	if (receives && g->len <= INLINE_MAX) {
		g->receiver = &s->client;
		l->used = true;
		return;
	}
	l->wanted = true;
	cfs_loop_run(&s->c.t->loop, &l->unpark);
}

/* --- the thread --- */

/* 0: data, or the end of the connection, has arrived. */
static int wait_for(struct cfs_stream *s, cfs_deadline_t until)
{
	struct cfs_link *l = &s->c.link;
	struct pollfd pfd = {.fd = l->fd, .events = POLLIN | POLLRDHUP};
	int r;

	if (l->unread)
		return 0;
	if (l->ops->expect)
		l->ops->expect(l, s->rx ? s->rx_left : 1);
	r = (int)TEMP_FAILURE_RETRY(
		poll(&pfd, 1, (int)CFS_MIN(cfs_deadline_left_ms(until), (uint64_t)INT_MAX)));
	return r > 0 ? 0 : -ETIMEDOUT;
}

/* 0: the header of our answer; -EPROTO: any other frame, left to the loop. */
static int receive_header(struct cfs_stream *s, struct cfs_peer_get *g)
{
	struct cfs_reader *rd = &s->c.reader;
	struct iovec iov = {.iov_base = rd->buf + rd->have, .iov_len = CFS_WIRE_HEADER - rd->have};
	ssize_t n = s->c.link.ops->recv(&s->c.link, &iov, 1);
	struct cfs_frame f;

	if (n <= 0)
		return n < 0 ? (int)n : -ECONNRESET;
	rd->have += (uint32_t)n;
	if (rd->have < CFS_WIRE_HEADER)
		return -EAGAIN;
	if (cfs_wire_parse(rd->buf, &f) < 0 || f.type != CFS_FRAME_ANSWER || f.id != g->id ||
	    f.len != g->len)
		return -EPROTO;
	cfs_reader_init(rd);
	s->rx = g;
	s->rx_left = f.len;
	s->rx_crc = f.crc;
	return 0;
}

static int receive(struct cfs_stream *s, struct cfs_peer_get *g)
{
	struct iovec iov[CFS_PIECE_IOV];
	int r = s->rx ? 0 : receive_header(s, g), n_iov;
	ssize_t n;

	if (r < 0)
		return r;
	cfs_stream_next_piece(s, iov, &n_iov);
	n = s->c.link.ops->recv(&s->c.link, iov, n_iov);
	if (n <= 0)
		return n < 0 ? (int)n : -ECONNRESET;
	cfs_stream_advance(s, (size_t)n);
	if (s->rx_left > 0)
		return -EAGAIN;
	return g->crc == s->rx_crc ? 0 : -EBADMSG;
}

/* Under the lock. The loop has noted the peer's recovery (note_result()) before it parked. */
static void end_well(struct cfs_stream *s, struct cfs_peer_get *g)
{
	cfs_stream_take_out(s, g);
	s->rx = NULL;
	s->client.heard_ms = s->client.active_ms = cfs_now_ms();
}

/* Under the lock: leaves the connection parked, or returns it to the loop. */
static void release(struct cfs_stream *s, bool stays_parked)
{
	if (stays_parked)
		s->inline_rx.taken = false;
	else
		cfs_loop_run(&s->client.peer->t->loop, &s->inline_rx.unpark);
}

void cfs_inline_receive(struct cfs_client *c, struct cfs_peer_get *g, cfs_deadline_t until)
{
	struct cfs_stream *s = (struct cfs_stream *)c; /* its first member */
	struct cfs_peer *p = c->peer;
	bool received;
	int r;

	do {
		r = wait_for(s, until);
		if (r == 0)
			r = receive(s, g);
	} while (r == -EAGAIN);
	if (r == 0 && s->c.link.ops->expect)
		s->c.link.ops->expect(&s->c.link, 1);

	pthread_mutex_lock(&p->lock);
	received = r == 0 && !s->dead;
	if (received)
		end_well(s, g);
	release(s, received && c->inflight == 0 && !s->c.link.key_limit);
	cfs_peer_received(p, g, received);
	pthread_mutex_unlock(&p->lock);
	if (received)
		g->done(g, 0);
}
