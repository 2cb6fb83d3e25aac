/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One connection of a peer, asking side. The thread that starts a request sends it, so that no
 * other thread must be woken. While one thread sends, others add to the batch that it takes next.
 *
 * Only the receiver (the loop, or a thread in inline receive: lend.c) takes a request out of its
 * slot and writes to a request's memory: after done has run, nothing writes there.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "transport-internal.h"
#include "transport/wire/crc.h"

#define SLOT_BITS 12
#define SLOT_MASK ((1u << SLOT_BITS) - 1)
#define SLOTS_MIN 16
#define OUT_LIMIT (256u << 10)
#define OUT_KEEP  (8u << 10) /* while idle */
/* Payloads from this size on are received in place; below, together with their neighbours. */
#define DIRECT_MIN (16u << 10)
/* Large payloads are received and checked in pieces that stay in the CPU's cache. */
#define PIECE	   (256u << 10)
#define EXPECT_MAX (512u << 10)

_Static_assert(CFS_REQUESTS_PER_CONN <= 1u << SLOT_BITS, "slots have numbers");

static struct cfs_client *client_of(struct cfs_conn *c)
{
	return (struct cfs_client *)c; /* its first member */
}

/* --- slots --- */

static int more_slots(struct cfs_client *cc)
{
	unsigned n = cc->n_slots ? cc->n_slots * 2 : SLOTS_MIN;
	struct cfs_peer_get **slots;
	uint16_t *free_slots;

	slots = realloc(cc->slots, n * sizeof(*slots));
	if (!slots)
		return -ENOMEM;
	cc->slots = slots;
	free_slots = realloc(cc->free_slots, n * sizeof(*free_slots));
	if (!free_slots)
		return -ENOMEM;
	cc->free_slots = free_slots;
	while (n > cc->n_slots) {
		n--;
		slots[n] = NULL;
		free_slots[cc->n_free++] = (uint16_t)n;
	}
	cc->n_slots += cc->n_free;
	return 0;
}

bool cfs_client_has_room(const struct cfs_client *cc, uint32_t len)
{
	return cc->usable && cc->inflight < CFS_REQUESTS_PER_CONN &&
	       cc->inflight < cc->limits.requests &&
	       cc->inflight_bytes + len <= cc->limits.conn_bytes;
}

int cfs_client_put_frame(struct cfs_client *cc, const struct cfs_frame *f, const void *payload,
			 uint32_t len)
{
	struct cfs_frame frame = *f;

	if (cc->out_cap - cc->out_len < CFS_WIRE_HEADER + CFS_WIRE_CONTROL_MAX) {
		size_t cap = cc->out_cap ? cc->out_cap * 2 : 512;
		uint8_t *out;

		if (cap > OUT_LIMIT)
			return -EAGAIN;
		out = realloc(cc->out, cap);
		if (!out)
			return -ENOMEM;
		cc->out = out;
		cc->out_cap = cap;
	}
	cc->out_len += cfs_wire_control(cc->out + cc->out_len, &frame, payload, len);
	return 0;
}

int cfs_client_assign(struct cfs_client *cc, struct cfs_peer_get *g, bool lend)
{
	struct cfs_wire_get wire = {.block = g->block, .off = g->off, .len = g->len};
	struct cfs_frame f = {
		.type = CFS_FRAME_GET,
		.flags = g->flags & CFS_PEER_ONLY_CACHED ? CFS_FRAME_F_ONLY_CACHED : 0,
	};
	uint8_t payload[CFS_WIRE_GET_LEN];
	unsigned slot;
	int r;

	if ((g->flags & CFS_PEER_STAND_IN) && (cc->c.features & CFS_FEATURE_STAND_IN))
		f.flags |= CFS_FRAME_F_STAND_IN;
	if (cc->n_free == 0) {
		r = more_slots(cc);
		if (r < 0)
			return r;
	}
	slot = cc->free_slots[cc->n_free - 1];
	f.id = ++cc->serial << SLOT_BITS | slot;
	cfs_wire_put_get(payload, &wire);
	r = cfs_client_put_frame(cc, &f, payload, sizeof(payload));
	if (r < 0)
		return r;
	cc->n_free--;
	cc->slots[slot] = g;
	g->id = f.id;
	g->conn = cc;
	cc->inflight++;
	cc->inflight_bytes += g->len;
	cc->n_small += g->len < DIRECT_MIN;
	cfs_lend_assign(cc, g, lend);
	return 0;
}

static struct cfs_peer_get *find(struct cfs_client *cc, uint64_t id)
{
	unsigned slot = id & SLOT_MASK;
	struct cfs_peer_get *g = slot < cc->n_slots ? cc->slots[slot] : NULL;

	return g && g->id == id ? g : NULL;
}

void cfs_client_take_out(struct cfs_client *cc, struct cfs_peer_get *g)
{
	unsigned slot = g->id & SLOT_MASK;

	cc->slots[slot] = NULL;
	cc->free_slots[cc->n_free++] = (uint16_t)slot;
	cc->inflight--;
	cc->inflight_bytes -= g->len;
	cc->n_small -= g->len < DIRECT_MIN;
	g->conn = NULL;
}

bool cfs_client_heard(const struct cfs_client *cc, const struct cfs_peer_get *g)
{
	return cc->heard_ms > g->start_ns / 1000000;
}

void cfs_client_expire(struct cfs_client *cc, uint64_t now_ms, struct cfs_get_list *list)
{
	unsigned i;

	for (i = 0; i < cc->n_slots && cc->inflight > 0; i++) {
		struct cfs_peer_get *g = cc->slots[i];
		struct cfs_frame f = {.type = CFS_FRAME_CANCEL};

		if (!g || (!g->canceled && g->deadline > now_ms))
			continue;
		if (g->lent && cc->lending.lent) /* the borrowing thread expires it */
			continue;
		f.id = g->id;
		g->heard = cfs_client_heard(cc, g);
		if (!cc->lending.lent && cc->rx == g)
			cc->rx = NULL;
		cfs_client_take_out(cc, g);
		cfs_gets_append(list, g);
		/* Without memory for the CANCEL the answer is only discarded. */
		(void)cfs_client_put_frame(cc, &f, NULL, 0);
	}
}

/* --- sending --- */

static void sender_gone(struct cfs_work *w)
{
	struct cfs_client *cc =
		(struct cfs_client *)((char *)w - offsetof(struct cfs_client, sent_work));

	cfs_conn_unref(&cc->c);
}

static void flush_by_loop(struct cfs_client *cc)
{
	struct cfs_loop *loop = &cc->c.t->loop;

	cc->blocked = true;
	/* This thread cannot arm a poll: the peer's service does it. */
	if (cfs_loop_is_self(loop))
		cfs_conn_want_out(&cc->c);
	else
		cfs_loop_run(loop, &cc->peer->work);
}

static void stop_sending(struct cfs_client *cc)
{
	cc->sending = false;
	if (cc->batch_cap > OUT_KEEP) {
		free(cc->batch);
		cc->batch = NULL;
		cc->batch_cap = cc->batch_len = cc->batch_off = 0;
	}
	/* The loop has closed it meanwhile, and left a reference to the sending thread. */
	if (cc->dead)
		cfs_loop_run(&cc->c.t->loop, &cc->sent_work);
}

static void send_batches(struct cfs_client *cc)
{
	pthread_mutex_t *lock = &cc->peer->lock;
	struct iovec iov;
	ssize_t n;

	for (;;) {
		if (cc->dead || (cc->batch_off == cc->batch_len && cc->out_len == 0)) {
			stop_sending(cc);
			return;
		}
		if (cc->batch_off == cc->batch_len) {
			uint8_t *batch = cc->batch;
			size_t cap = cc->batch_cap;

			cc->batch = cc->out;
			cc->batch_cap = cc->out_cap;
			cc->batch_len = cc->out_len;
			cc->batch_off = 0;
			cc->out = batch;
			cc->out_cap = cap;
			cc->out_len = 0;
		}
		iov.iov_base = cc->batch + cc->batch_off;
		iov.iov_len = cc->batch_len - cc->batch_off;
		pthread_mutex_unlock(lock);
		n = cc->c.link.ops->send(&cc->c.link, &iov, 1, false);
		pthread_mutex_lock(lock);
		if (n == -EAGAIN && !cc->dead) {
			flush_by_loop(cc);
			return;
		}
		if (n < 0) {
			cc->c.link.ops->cut(&cc->c.link); /* the loop notices the end */
			cc->batch_off = cc->batch_len;
			cc->out_len = 0;
			stop_sending(cc);
			return;
		}
		cc->batch_off += (size_t)n;
	}
}

void cfs_client_send(struct cfs_client *cc)
{
	if (cc->sending || cc->out_len == 0)
		return;
	/* The loop sends the batch at the end of its round. */
	if (cfs_loop_is_self(&cc->c.t->loop)) {
		cfs_conn_again(&cc->c, false, true);
		return;
	}
	cc->sending = true;
	send_batches(cc);
}

static void connected(struct cfs_client *cc)
{
	struct cfs_conn *c = &cc->c;
	int r = c->link.ops->connected(&c->link);

	if (r == 0)
		r = cfs_conn_authenticate(c, cc->peer->member);
	if (r < 0)
		cfs_conn_close(c, r);
}

static void flush(struct cfs_conn *c)
{
	struct cfs_client *cc = client_of(c);

	if (c->state == CFS_CONN_CONNECT) {
		connected(cc);
		return;
	}
	pthread_mutex_lock(&cc->peer->lock);
	if (!cc->sending || cc->blocked) {
		cc->sending = true;
		cc->blocked = false;
		send_batches(cc);
	}
	pthread_mutex_unlock(&cc->peer->lock);
}

/* --- receiving --- */

/* last: a thread waits for it, and nothing has arrived behind it. */
static void finish(struct cfs_client *cc, struct cfs_peer_get *g, int err, bool last)
{
	pthread_mutex_lock(&cc->peer->lock);
	cfs_client_take_out(cc, g);
	cc->active_ms = cc->c.t->loop.now_ms;
	if (last && err == 0)
		cfs_lend_rest(cc, g);
	pthread_mutex_unlock(&cc->peer->lock);
	cfs_peer_finish(cc->peer, g, err);
}

static void payload_ended(struct cfs_client *cc, bool last)
{
	struct cfs_peer_get *g = cc->rx;

	cc->rx = NULL;
	cc->heard_ms = cc->c.t->loop.now_ms;
	last = last && g && g->waits;
	if (last && cc->c.link.ops->expect)
		cc->c.link.ops->expect(&cc->c.link, 1);
	if (g)
		finish(cc, g, g->crc == cc->rx_crc ? 0 : -EBADMSG, last);
}

static void note_bytes(struct cfs_client *cc, size_t n)
{
	atomic_fetch_add_explicit(&cc->peer->came, n, memory_order_relaxed);
}

/* n bytes have arrived in the request's memory. */
static void advance(struct cfs_peer_get *g, size_t n)
{
	while (n > 0) {
		const struct iovec *v = &g->dst[g->at];
		size_t part = CFS_MIN(n, v->iov_len - g->at_off);

		g->crc = cfs_crc_add(g->crc, (uint8_t *)v->iov_base + g->at_off, part);
		g->at_off += (uint32_t)part;
		g->received += (uint32_t)part;
		n -= part;
		if (g->at_off == v->iov_len) {
			g->at++;
			g->at_off = 0;
		}
	}
}

static void copy_in(struct cfs_peer_get *g, const uint8_t *data, size_t n)
{
	while (n > 0) {
		const struct iovec *v = &g->dst[g->at];
		size_t part = CFS_MIN(n, v->iov_len - g->at_off);

		memcpy((uint8_t *)v->iov_base + g->at_off, data, part);
		advance(g, part);
		data += part;
		n -= part;
	}
}

/* Finishes requests under way, then closes the connection. */
static void stop_asking(struct cfs_client *cc)
{
	pthread_mutex_lock(&cc->peer->lock);
	cc->usable = false;
	pthread_mutex_unlock(&cc->peer->lock);
	cc->c.state = CFS_CONN_DRAINING;
}

static int answer_begins(struct cfs_client *cc, const struct cfs_frame *f)
{
	struct cfs_peer_get *g;

	pthread_mutex_lock(&cc->peer->lock);
	g = find(cc, f->id);
	pthread_mutex_unlock(&cc->peer->lock);
	if (f->status) {
		cc->heard_ms = cc->c.t->loop.now_ms;
		if (f->status == CFS_STATUS_LEAVING)
			stop_asking(cc);
		if (g)
			finish(cc, g, cfs_wire_errno_of(f->status), false);
		return 0;
	}
	/* An answer without a request belongs to a cancelled one. */
	if (g && f->len != g->len)
		return -EPROTO;
	cc->rx = g;
	cc->rx_left = f->len;
	cc->rx_crc = f->crc;
	return 0;
}

static void peer_works(struct cfs_client *cc, uint64_t id)
{
	uint64_t now_ms = cc->c.t->loop.now_ms;
	struct cfs_peer_get *g;

	cc->heard_ms = now_ms;
	pthread_mutex_lock(&cc->peer->lock);
	g = find(cc, id);
	if (g && g->patience_ms > 0)
		g->deadline = CFS_MAX(g->deadline, CFS_MIN(now_ms + g->patience_ms, g->limit));
	pthread_mutex_unlock(&cc->peer->lock);
	/* Only this thread could end the request. */
	if (g && g->working)
		g->working(g);
}

static int got_frame(struct cfs_client *cc, const struct cfs_frame *f)
{
	switch (f->type) {
	case CFS_FRAME_ANSWER:
		return answer_begins(cc, f);
	case CFS_FRAME_DRAIN:
		stop_asking(cc);
		return 0;
	case CFS_FRAME_WORKING:
		peer_works(cc, f->id);
		return 0;
	default:
		return -EPROTO;
	}
}

static int consume(struct cfs_client *cc, const uint8_t *data, size_t len)
{
	while (len > 0 && cc->c.state != CFS_CONN_CLOSED) {
		struct cfs_frame f;
		int r;

		if (cc->rx_left > 0) {
			size_t n = CFS_MIN(len, cc->rx_left);

			note_bytes(cc, n);
			if (cc->rx)
				copy_in(cc->rx, data, n);
			data += n;
			len -= n;
			cc->rx_left -= (uint32_t)n;
			if (cc->rx_left == 0)
				payload_ended(cc, len == 0);
			continue;
		}
		r = cfs_reader_feed(&cc->c.reader, &data, &len, &f);
		if (r > 0)
			r = got_frame(cc, &f);
		if (r < 0)
			return r;
	}
	return 0;
}

uint32_t cfs_client_next_piece(struct cfs_client *cc, struct iovec iov[CFS_PIECE_IOV], int *ret_n)
{
	const struct cfs_peer_get *g = cc->rx;
	uint32_t room = CFS_MIN(cc->rx_left, PIECE), len = 0;
	size_t off = g->at_off;
	int k, n = 0;

	for (k = g->at; len < room && n < CFS_PIECE_IOV; k++, n++) {
		iov[n].iov_base = (uint8_t *)g->dst[k].iov_base + off;
		iov[n].iov_len = CFS_MIN(g->dst[k].iov_len - off, room - len);
		len += (uint32_t)iov[n].iov_len;
		off = 0;
	}
	*ret_n = n;
	return len;
}

void cfs_client_advance(struct cfs_client *cc, size_t n)
{
	note_bytes(cc, n);
	advance(cc->rx, n);
	cc->rx_left -= (uint32_t)n;
}

/* Handles a frame, if the reader has a whole one. */
static int take_frame(struct cfs_client *cc)
{
	const uint8_t *none = NULL;
	struct cfs_frame f;
	size_t zero = 0;
	int r = cfs_reader_feed(&cc->c.reader, &none, &zero, &f);

	return r > 0 ? got_frame(cc, &f) : r;
}

/*
 * Receives the payload in place and the header behind it into the reader: one call per piece.
 * Returns the bytes received; *ret_full: as many as asked for.
 */
static ssize_t receive_direct(struct cfs_client *cc, bool *ret_full)
{
	struct cfs_reader *rd = &cc->c.reader;
	struct iovec iov[CFS_PIECE_IOV + 1];
	size_t extra = 0;
	uint32_t asked;
	ssize_t n, r;
	int n_iov;

	asked = cfs_client_next_piece(cc, iov, &n_iov);
	if (asked == cc->rx_left) {
		iov[n_iov].iov_base = rd->buf;
		iov[n_iov++].iov_len = CFS_WIRE_HEADER;
		extra = CFS_WIRE_HEADER;
	}
	n = cc->c.link.ops->recv(&cc->c.link, iov, n_iov);
	if (n <= 0)
		return n;
	*ret_full = (size_t)n == asked + extra;
	asked = (uint32_t)CFS_MIN((size_t)n, asked);
	cfs_client_advance(cc, asked);
	if (cc->rx_left > 0)
		return n;
	extra = (size_t)n - asked;
	rd->have = (uint32_t)extra;
	payload_ended(cc, extra == 0);
	if (extra == 0 || cc->c.state == CFS_CONN_CLOSED)
		return n;
	r = take_frame(cc);
	return r < 0 ? r : n;
}

static ssize_t receive(struct cfs_client *cc, bool *ret_full)
{
	struct iovec iov = {.iov_base = cc->c.t->loop.scratch, .iov_len = CFS_SCRATCH_RX};
	ssize_t n;
	int r;

	if (cc->rx && cc->rx_left >= DIRECT_MIN)
		return receive_direct(cc, ret_full);
	/* Only large answers are expected: reads no more than the header, to avoid a copy. */
	if (!cc->rx && cc->rx_left == 0 && cc->n_small == 0)
		iov.iov_len = cc->c.reader.want - cc->c.reader.have;
	n = cc->c.link.ops->recv(&cc->c.link, &iov, 1);
	if (n <= 0)
		return n;
	*ret_full = (size_t)n == iov.iov_len;
	r = consume(cc, iov.iov_base, (size_t)n);
	return r < 0 ? r : n;
}

static void readable(struct cfs_conn *c)
{
	struct cfs_client *cc = client_of(c);
	int64_t turn = CFS_TURN_BYTES;
	bool full = true;
	ssize_t n;

	while (full && turn > 0) {
		n = receive(cc, &full);
		if (c->state == CFS_CONN_CLOSED || cc->lending.away)
			return;
		if (n == -EAGAIN)
			break;
		if (n <= 0) {
			cfs_conn_close(c, n < 0 ? (int)n : -ECONNRESET);
			return;
		}
		turn -= n;
	}
	if (c->link.worn)
		stop_asking(cc);
	if (c->state == CFS_CONN_DRAINING && cc->inflight == 0) {
		cfs_conn_close(c, 0);
		return;
	}
	if (turn <= 0) {
		cfs_conn_again(c, true, false);
		return;
	}
	if (c->link.ops->expect)
		c->link.ops->expect(&c->link,
				    cc->rx ? CFS_MAX(1, CFS_MIN(cc->rx_left, EXPECT_MAX)) : 1);
	cfs_conn_want_in(c);
}

void cfs_client_resume(struct cfs_client *cc)
{
	int r = 0;

	if (cc->rx && cc->rx_left == 0)
		payload_ended(cc, false);
	else if (cc->c.reader.have > 0)
		r = take_frame(cc);
	if (r < 0)
		cfs_conn_close(&cc->c, r);
	else
		cfs_conn_readable(&cc->c);
}

/* --- life --- */

static int ready(struct cfs_client *cc)
{
	int r = cfs_wire_parse_ready(cfs_reader_payload(&cc->c.reader), &cc->limits);

	if (r == 0) {
		pthread_mutex_lock(&cc->peer->lock);
		cc->usable = true;
		pthread_mutex_unlock(&cc->peer->lock);
		cc->active_ms = cc->c.t->loop.now_ms;
	}
	return r;
}

static void conn_ready(struct cfs_conn *c)
{
	struct cfs_client *cc = client_of(c);
	int r = ready(cc);

	if (r < 0) {
		cfs_conn_close(c, r);
		return;
	}
	cfs_peer_connected(cc->peer, cc);
	cfs_conn_want_in(c);
}

static void conn_closed(struct cfs_conn *c, int err)
{
	struct cfs_client *cc = client_of(c);
	struct cfs_peer *p = cc->peer;
	struct cfs_get_list list = {0};
	bool was_ready = cc->limits.requests > 0;
	unsigned i;

	pthread_mutex_lock(&p->lock);
	cc->usable = false;
	cc->dead = true;
	if (cc->lending.lent)
		cfs_conn_ref(c); /* held until the connection is back */
	else
		cc->rx = NULL;
	for (i = 0; i < cc->n_slots; i++) {
		struct cfs_peer_get *g = cc->slots[i];

		if (g) {
			cfs_client_take_out(cc, g);
			cfs_gets_append(&list, g);
		}
	}
	if (cc->sending && !cc->blocked)
		cfs_conn_ref(c); /* the sender's reference */
	pthread_mutex_unlock(&p->lock);
	cfs_peer_lost(p, cc, err, was_ready, &list);
}

static void conn_free(struct cfs_conn *c)
{
	struct cfs_client *cc = client_of(c);

	free(cc->slots);
	free(cc->free_slots);
	free(cc->out);
	free(cc->batch);
	free(cc);
}

static const struct cfs_conn_ops client_ops = {
	.ready = conn_ready,
	.readable = readable,
	.flush = flush,
	.closed = conn_closed,
	.free = conn_free,
};

int cfs_client_connect(struct cfs_peer *p)
{
	struct cfs_transport *t = p->t;
	struct cfs_client *cc = calloc(1, sizeof(*cc));
	int r;

	if (!cc)
		return -ENOMEM;
	cc->peer = p;
	/* An answer recorded on another connection must not match a request of this one. */
	cc->serial = cfs_random_u64() >> (SLOT_BITS + 1);
	cc->sent_work.fn = sender_gone;
	cfs_lend_init(cc);
	cc->c.link.ops = t->link;
	cc->c.link.tls = t->tls;
	r = t->link->connect(&cc->c.link, (struct sockaddr *)&p->addr, p->addr_len);
	if (r < 0) {
		free(cc);
		return r;
	}
	cfs_conn_init(&cc->c, t, &client_ops);
	cc->c.deadline = t->loop.now_ms + t->conf.connect_timeout_ms;
	pthread_mutex_lock(&p->lock);
	p->conns[p->n_conns++] = cc;
	pthread_mutex_unlock(&p->lock);
	cfs_conn_want_out(&cc->c);
	return 0;
}
