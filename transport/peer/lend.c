/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inline receive: a connection is lent to the thread that waits for an answer. The socket itself
 * then wakes that thread, without a detour through the loop.
 *
 * The loop receives on a connection until it has received the answer of a waiting thread
 * (get->waits), and nothing else is under way. Then it stops receiving: the connection is not armed
 * in the ring. The next request borrows the connection if its thread waits for it and it is not
 * large. That thread receives by the same steps as the loop would, and returns the connection. It
 * handles its own answer only. In all other cases the loop gets the connection back as it is, even
 * in the middle of a frame, and continues: at the thread's deadline, while other requests are under
 * way, on any other frame, on a wrong checksum, or at the end of the connection. The loop also
 * takes back an unarmed connection when another kind of request is sent on it, or when it was idle
 * from one tick to the next; by then the end of the connection is noticed.
 *
 * While lent, the receive state (rx and its neighbours, c.reader, the link's state behind recv and
 * expect) and the request's memory belong to the thread. Other threads still send requests, and the
 * loop may close the connection: that shuts it down, and the thread sees the end.
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>

#include "base/bytes.h"
#include "transport-internal.h"

/* The least request of a mount is a page of its pool; for larger ones a wake-up costs little. */
#define LEND_MAX (128u << 10)

static struct cfs_client *client_of(struct cfs_work *w)
{
	return (struct cfs_client *)((char *)w - offsetof(struct cfs_client, lending.back));
}

/* --- the loop --- */

static void is_back(struct cfs_work *w)
{
	struct cfs_client *cc = client_of(w);
	struct cfs_conn *c = &cc->c;

	if (c->state == CFS_CONN_CLOSED) { /* its peer may be freed already */
		cfs_conn_unref(c);
		return;
	}
	pthread_mutex_lock(&cc->peer->lock);
	cc->lending.away = cc->lending.lent = false;
	pthread_mutex_unlock(&cc->peer->lock);
	cfs_conn_ref(c);
	cfs_client_resume(cc);
	cfs_conn_unref(c);
}

void cfs_lend_init(struct cfs_client *cc)
{
	cc->lending.back.fn = is_back;
}

void cfs_lend_rest(struct cfs_client *cc, const struct cfs_peer_get *g)
{
	struct cfs_conn *c = &cc->c;

	if (g->len > LEND_MAX || cc->inflight > 0 || cc->lending.wanted ||
	    cc->peer->pending.n > 0 || c->state != CFS_CONN_READY || c->link.unread ||
	    c->link.worn || c->in_armed || c->more_in)
		return;
	cc->lending.away = true;
}

void cfs_lend_tick(struct cfs_client *cc)
{
	struct cfs_lending *l = &cc->lending;

	if (l->away && !l->lent && !l->used) {
		l->away = false;
		cfs_conn_want_in(&cc->c);
	}
	l->wanted = l->used = false;
}

void cfs_lend_assign(struct cfs_client *cc, struct cfs_peer_get *g, bool lend)
{
	struct cfs_lending *l = &cc->lending;

	if (!l->away)
		return;
	if (l->lent) { /* the thread returns it when data arrives */
		l->wanted = true;
		return;
	}
	l->lent = true;
	if (lend && g->len <= LEND_MAX) {
		g->lent = cc;
		l->used = true;
		cc->peer->n_lent++;
		return;
	}
	l->wanted = true;
	cfs_loop_run(&cc->c.t->loop, &l->back);
}

/* --- the thread --- */

/* 0: data, or the end of the connection, has arrived. */
static int wait_for(struct cfs_client *cc, cfs_deadline_t until)
{
	struct cfs_link *l = &cc->c.link;
	struct pollfd pfd = {.fd = l->fd, .events = POLLIN | POLLRDHUP};
	int r;

	if (l->unread)
		return 0;
	if (l->ops->expect)
		l->ops->expect(l, cc->rx ? cc->rx_left : 1);
	do
		r = poll(&pfd, 1, (int)CFS_MIN(cfs_deadline_left_ms(until), (uint64_t)INT_MAX));
	while (r < 0 && errno == EINTR);
	return r > 0 ? 0 : -ETIMEDOUT;
}

/* 0: the header of our answer; -EPROTO: any other frame, left to the loop. */
static int receive_header(struct cfs_client *cc, struct cfs_peer_get *g)
{
	struct cfs_reader *rd = &cc->c.reader;
	struct iovec iov = {.iov_base = rd->buf + rd->have, .iov_len = CFS_WIRE_HEADER - rd->have};
	ssize_t n = cc->c.link.ops->recv(&cc->c.link, &iov, 1);
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
	cc->rx = g;
	cc->rx_left = f.len;
	cc->rx_crc = f.crc;
	return 0;
}

static int receive(struct cfs_client *cc, struct cfs_peer_get *g)
{
	struct iovec iov[CFS_PIECE_IOV];
	int r = cc->rx ? 0 : receive_header(cc, g), n_iov;
	ssize_t n;

	if (r < 0)
		return r;
	cfs_client_next_piece(cc, iov, &n_iov);
	n = cc->c.link.ops->recv(&cc->c.link, iov, n_iov);
	if (n <= 0)
		return n < 0 ? (int)n : -ECONNRESET;
	cfs_client_advance(cc, (size_t)n);
	if (cc->rx_left > 0)
		return -EAGAIN;
	return g->crc == cc->rx_crc ? 0 : -EBADMSG;
}

/* Under the lock. Other effects of an answer on its peer were handled with the previous one. */
static void end_well(struct cfs_client *cc, struct cfs_peer_get *g)
{
	struct cfs_peer *p = cc->peer;

	cfs_client_take_out(cc, g);
	cc->rx = NULL;
	cc->heard_ms = cc->active_ms = cfs_now_ms();
	p->failures = 0;
	cfs_peer_count_end(p, g, 0);
	atomic_fetch_add_explicit(&p->counters.direct, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&p->t->asked.direct, 1, memory_order_relaxed);
	if (p->pending.n > 0)
		cfs_loop_run(&p->t->loop, &p->work);
}

/* Under the lock, after which p may be freed if it is being closed. */
static void give_back(struct cfs_client *cc, bool rest)
{
	struct cfs_peer *p = cc->peer;

	if (rest)
		cc->lending.lent = false;
	else
		cfs_loop_run(&p->t->loop, &cc->lending.back);
	p->n_lent--;
	if (p->n_lent == 0)
		pthread_cond_signal(&p->closed_cond);
}

void cfs_peer_receive(struct cfs_peer *p, struct cfs_peer_get *g, cfs_deadline_t until)
{
	struct cfs_client *cc = g->lent;
	bool received, rest;
	int r;

	if (!cc)
		return;
	do {
		r = wait_for(cc, until);
		if (r == 0)
			r = receive(cc, g);
	} while (r == -EAGAIN);
	if (r == 0 && cc->c.link.ops->expect)
		cc->c.link.ops->expect(&cc->c.link, 1);

	pthread_mutex_lock(&p->lock);
	received = r == 0 && !cc->dead;
	if (received)
		end_well(cc, g);
	rest = received && cc->inflight == 0 && !cc->c.link.worn;
	give_back(cc, rest);
	pthread_mutex_unlock(&p->lock);
	if (received)
		g->done(g, 0);
}
