/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client over a byte stream (client.h): frames on a link. The thread that starts a request sends
 * it, so that no other thread must be woken. While one thread sends, others add to the batch that
 * it takes next.
 *
 * Only the receiver (the loop, or a thread in inline receive: inline.c) takes a request out of its
 * slot and writes to a request's memory: after done has run, nothing writes there.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/bytes.h"
#include "base/log.h"
#include "onesided.h"
#include "stream.h"
#include "transport/wire/crc.h"

#define SLOT_BITS 12
#define SLOT_MASK ((1u << SLOT_BITS) - 1)
#define SLOTS_MIN 16
#define OUT_LIMIT (256u << 10)
#define OUT_KEEP  (8u << 10) /* while idle */
/* Payloads from this size on are received in place; below, together with their neighbours. */
#define DIRECT_MIN (16u << 10)
/* With so many requests under way, several are sent together. */
#define BATCH_MIN 4
/* Large payloads are received and checked in pieces that stay in the CPU's cache. */
#define PIECE	   (256u << 10)
#define EXPECT_MAX (512u << 10)

_Static_assert(CFS_REQUESTS_PER_SESSION <= 1u << SLOT_BITS, "slots have numbers");

static struct cfs_stream *stream_of(struct cfs_conn *c)
{
	return caa_container_of(c, struct cfs_stream, c);
}

static struct cfs_stream *of_client(struct cfs_client *c)
{
	return (struct cfs_stream *)c; /* its first member */
}

/* --- slots --- */

static int more_slots(struct cfs_stream *s)
{
	unsigned n = s->n_slots ? s->n_slots * 2 : SLOTS_MIN;
	struct cfs_peer_get **slots;
	uint16_t *free_slots;

	slots = realloc(s->slots, n * sizeof(*slots));
	if (!slots)
		return -ENOMEM;
	s->slots = slots;
	free_slots = realloc(s->free_slots, n * sizeof(*free_slots));
	if (!free_slots)
		return -ENOMEM;
	s->free_slots = free_slots;
	while (n > s->n_slots) {
		n--;
		slots[n] = NULL;
		free_slots[s->n_free++] = (uint16_t)n;
	}
	s->n_slots += s->n_free;
	return 0;
}

static int put_frame(struct cfs_stream *s, const struct cfs_frame *f, const void *payload,
		     uint32_t len)
{
	struct cfs_frame frame = *f;

	if (s->out_cap - s->out_len < CFS_WIRE_HEADER + CFS_WIRE_CONTROL_MAX) {
		size_t cap = s->out_cap ? s->out_cap * 2 : 512;

		if (cap > OUT_LIMIT)
			return -EAGAIN;
		if (CFS_ARRAY_RESERVE(s->out, cap, s->out_cap) < 0)
			return -ENOMEM;
	}
	s->out_len += cfs_wire_control(s->out + s->out_len, &frame, payload, len);
	return 0;
}

static int start(struct cfs_client *c, struct cfs_peer_get *g, bool receives)
{
	struct cfs_stream *s = of_client(c);
	struct cfs_wire_get wire = {.block = g->block, .off = g->off, .len = g->len};
	struct cfs_frame f = {
		.type = CFS_FRAME_GET,
		.flags = g->flags & CFS_PEER_ONLY_CACHED ? CFS_FRAME_F_ONLY_CACHED : 0,
	};
	uint8_t payload[CFS_WIRE_GET_LEN];
	unsigned slot;
	int r;

	if ((g->flags & CFS_PEER_FAILOVER) && (s->c.features & CFS_FEATURE_FAILOVER))
		f.flags |= CFS_FRAME_F_FAILOVER;
	if (s->n_free == 0) {
		r = more_slots(s);
		if (r < 0)
			return r;
	}
	slot = s->free_slots[s->n_free - 1];
	f.id = ++s->serial << SLOT_BITS | slot;
	cfs_wire_put_get(payload, &wire);
	r = put_frame(s, &f, payload, sizeof(payload));
	if (r < 0)
		return r;
	s->n_free--;
	s->slots[slot] = g;
	g->id = f.id;
	s->client.inflight++;
	s->client.inflight_bytes += g->len;
	s->n_small += g->len < DIRECT_MIN;
	cfs_inline_assign(s, g, receives);
	return 0;
}

static struct cfs_peer_get *find(struct cfs_stream *s, uint64_t id)
{
	unsigned slot = id & SLOT_MASK;
	struct cfs_peer_get *g = slot < s->n_slots ? s->slots[slot] : NULL;

	return g && g->id == id ? g : NULL;
}

void cfs_stream_take_out(struct cfs_stream *s, struct cfs_peer_get *g)
{
	unsigned slot = g->id & SLOT_MASK;

	s->slots[slot] = NULL;
	s->free_slots[s->n_free++] = (uint16_t)slot;
	s->client.inflight--;
	s->client.inflight_bytes -= g->len;
	s->n_small -= g->len < DIRECT_MIN;
}

static int hint(struct cfs_client *c, const struct cfs_hint *h)
{
	struct cfs_stream *s = of_client(c);
	struct cfs_frame f = {.type = CFS_FRAME_HINT};
	uint8_t payload[CFS_WIRE_HINT_LEN];

	if (!(s->c.features & CFS_FEATURE_HINTS))
		return -EOPNOTSUPP;
	cfs_wire_put_hint(payload, &h->block, h->what);
	return put_frame(s, &f, payload, sizeof(payload));
}

static void expire(struct cfs_client *c, uint64_t now_ms, struct cfs_get_list *list)
{
	struct cfs_stream *s = of_client(c);
	unsigned i;

	for (i = 0; i < s->n_slots && s->client.inflight > 0; i++) {
		struct cfs_peer_get *g = s->slots[i];
		struct cfs_frame f = {.type = CFS_FRAME_CANCEL};

		if (!g || (!g->canceled && g->deadline > now_ms))
			continue;
		if (g->receiver && s->inline_rx.taken) /* the receiving thread expires it */
			continue;
		f.id = g->id;
		g->heard = cfs_client_heard(c, g);
		if (!s->inline_rx.taken && s->rx == g)
			s->rx = NULL;
		cfs_stream_take_out(s, g);
		cfs_gets_append(list, g);
		/* Without memory for the CANCEL the answer is only discarded. */
		(void)put_frame(s, &f, NULL, 0);
	}
}

/* --- sending --- */

static void sender_gone(struct cfs_work *w)
{
	struct cfs_stream *s = caa_container_of(w, struct cfs_stream, sent_work);

	cfs_conn_unref(&s->c);
}

static void flush_by_loop(struct cfs_stream *s)
{
	struct cfs_loop *loop = &s->c.t->loop;

	s->blocked = true;
	/* Only the loop can poll the socket: the peer's service does. */
	if (cfs_loop_is_self(loop))
		cfs_conn_want_out(&s->c);
	else
		cfs_loop_run(loop, &s->client.peer->work);
}

static void stop_sending(struct cfs_stream *s)
{
	s->sending = false;
	if (s->batch_cap > OUT_KEEP) {
		free(s->batch);
		s->batch = NULL;
		s->batch_cap = s->batch_len = s->batch_off = 0;
	}
	/* The loop has closed the connection and left its reference to this thread. */
	if (s->dead)
		cfs_loop_run(&s->c.t->loop, &s->sent_work);
}

static void send_batches(struct cfs_stream *s)
{
	pthread_mutex_t *lock = &s->client.peer->lock;
	struct iovec iov;
	ssize_t n;

	for (;;) {
		if (s->dead || (s->batch_off == s->batch_len && s->out_len == 0)) {
			stop_sending(s);
			return;
		}
		if (s->batch_off == s->batch_len) {
			uint8_t *batch = s->batch;
			size_t cap = s->batch_cap;

			s->batch = s->out;
			s->batch_cap = s->out_cap;
			s->batch_len = s->out_len;
			s->batch_off = 0;
			s->out = batch;
			s->out_cap = cap;
			s->out_len = 0;
		}
		iov.iov_base = s->batch + s->batch_off;
		iov.iov_len = s->batch_len - s->batch_off;
		pthread_mutex_unlock(lock);
		n = s->c.link.ops->send(&s->c.link, &iov, 1, false);
		pthread_mutex_lock(lock);
		if (n == -EAGAIN && !s->dead) {
			flush_by_loop(s);
			return;
		}
		if (n < 0) {
			s->c.link.ops->cut(&s->c.link); /* the loop notices the end */
			s->batch_off = s->batch_len;
			s->out_len = 0;
			stop_sending(s);
			return;
		}
		s->batch_off += (size_t)n;
	}
}

/*
 * True: the loop sends what is queued at the end of its round, with all that is queued until then. Large
 * answers make its rounds long.
 */
static bool loop_sends(const struct cfs_stream *s)
{
	return s->client.inflight >= BATCH_MIN && s->n_small == s->client.inflight &&
	       cfs_loop_is_awake(&s->c.t->loop);
}

static void send_queued(struct cfs_client *c)
{
	struct cfs_stream *s = of_client(c);

	if (s->sending || s->out_len == 0)
		return;
	/* The loop sends the batch at the end of its round. */
	if (cfs_loop_is_self(&s->c.t->loop)) {
		cfs_conn_again(&s->c, false, true);
		return;
	}
	if (loop_sends(s)) {
		cfs_loop_run(&s->c.t->loop, &c->peer->work);
		return;
	}
	s->sending = true;
	send_batches(s);
}

void cfs_stream_control(struct cfs_stream *s, const struct cfs_frame *f, const void *payload,
			uint32_t len)
{
	pthread_mutex_lock(&s->client.peer->lock);
	if (put_frame(s, f, payload, len) == 0)
		send_queued(&s->client);
	pthread_mutex_unlock(&s->client.peer->lock);
}

static void connected(struct cfs_stream *s)
{
	struct cfs_conn *c = &s->c;
	int r = c->link.ops->connected(&c->link);

	if (r == 0)
		r = cfs_conn_authenticate(c, s->client.peer->member);
	if (r < 0)
		cfs_conn_close(c, r);
}

static void flush(struct cfs_conn *c)
{
	struct cfs_stream *s = stream_of(c);

	if (c->state == CFS_CONN_CONNECT) {
		connected(s);
		return;
	}
	pthread_mutex_lock(&s->client.peer->lock);
	if (!s->sending || s->blocked) {
		s->sending = true;
		s->blocked = false;
		send_batches(s);
	}
	pthread_mutex_unlock(&s->client.peer->lock);
}

/* --- receiving --- */

/* last: a thread waits for it, and nothing has arrived behind it. */
static void finish(struct cfs_stream *s, struct cfs_peer_get *g, int err, bool last)
{
	pthread_mutex_lock(&s->client.peer->lock);
	cfs_stream_take_out(s, g);
	s->client.active_ms = s->c.t->loop.now_ms;
	if (last && err == 0)
		cfs_inline_park(s, g);
	pthread_mutex_unlock(&s->client.peer->lock);
	cfs_peer_finish(s->client.peer, g, err);
}

static void payload_ended(struct cfs_stream *s, bool last)
{
	struct cfs_peer_get *g = s->rx;

	s->rx = NULL;
	s->client.heard_ms = s->c.t->loop.now_ms;
	last = last && g && g->waits;
	if (last && s->c.link.ops->expect)
		s->c.link.ops->expect(&s->c.link, 1);
	if (g)
		finish(s, g, g->crc == s->rx_crc ? 0 : -EBADMSG, last);
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
static void stop_asking(struct cfs_stream *s)
{
	pthread_mutex_lock(&s->client.peer->lock);
	s->client.usable = false;
	pthread_mutex_unlock(&s->client.peer->lock);
	s->c.state = CFS_CONN_DRAINING;
}

static int answer_begins(struct cfs_stream *s, const struct cfs_frame *f)
{
	struct cfs_peer_get *g;

	pthread_mutex_lock(&s->client.peer->lock);
	g = find(s, f->id);
	pthread_mutex_unlock(&s->client.peer->lock);
	if (f->status) {
		s->client.heard_ms = s->c.t->loop.now_ms;
		if (f->status == CFS_STATUS_LEAVING)
			stop_asking(s);
		if (g)
			finish(s, g, cfs_wire_errno_of(f->status), false);
		return 0;
	}
	/* An answer without a request belongs to a cancelled one. */
	if (g && f->len != g->len)
		return -EPROTO;
	s->rx = g;
	s->rx_left = f->len;
	s->rx_crc = f->crc;
	return 0;
}

static int peer_works(struct cfs_stream *s, const struct cfs_frame *f)
{
	uint64_t now_ms = s->c.t->loop.now_ms, left_ms = 0;
	struct cfs_peer_get *g;

	if ((f->len > 0) != ((s->c.features & CFS_FEATURE_LEFT) > 0))
		return -EPROTO;
	if (f->len > 0)
		left_ms = cfs_wire_parse_working(cfs_reader_payload(&s->c.reader));
	s->client.heard_ms = now_ms;
	pthread_mutex_lock(&s->client.peer->lock);
	g = find(s, f->id);
	if (g && g->patience_ms > 0)
		g->deadline = CFS_MAX(g->deadline, CFS_MIN(now_ms + g->patience_ms, g->limit));
	pthread_mutex_unlock(&s->client.peer->lock);
	/* Only this thread ends the request, so g is valid. */
	if (g && g->working)
		g->working(g, left_ms);
	return 0;
}

static int got_session(struct cfs_stream *s, const struct cfs_frame *f)
{
	struct cfs_wire_session w;

	if (f->len == 0 || !(s->c.features & CFS_FEATURE_RDMA) ||
	    cfs_wire_parse_session(cfs_reader_payload(&s->c.reader), &w) < 0)
		return -EPROTO;
	cfs_onesided_session(s, &w);
	return 0;
}

static int got_lease(struct cfs_stream *s)
{
	struct cfs_wire_lease w;

	if (!(s->c.features & CFS_FEATURE_RDMA) ||
	    cfs_wire_parse_lease(cfs_reader_payload(&s->c.reader), &w) < 0)
		return -EPROTO;
	cfs_onesided_lease(s, &w);
	return 0;
}

static int got_frame(struct cfs_stream *s, const struct cfs_frame *f)
{
	switch (f->type) {
	case CFS_FRAME_ANSWER:
		return answer_begins(s, f);
	case CFS_FRAME_DRAIN:
		stop_asking(s);
		return 0;
	case CFS_FRAME_WORKING:
		return peer_works(s, f);
	case CFS_FRAME_RDMA:
		return got_session(s, f);
	case CFS_FRAME_LEASE:
		return got_lease(s);
	default:
		return -EPROTO;
	}
}

static int consume(struct cfs_stream *s, const uint8_t *data, size_t len)
{
	while (len > 0 && s->c.state != CFS_CONN_CLOSED) {
		struct cfs_frame f;
		int r;

		if (s->rx_left > 0) {
			size_t n = CFS_MIN(len, s->rx_left);

			cfs_peer_note_bytes(s->client.peer, n);
			if (s->rx)
				copy_in(s->rx, data, n);
			data += n;
			len -= n;
			s->rx_left -= (uint32_t)n;
			if (s->rx_left == 0)
				payload_ended(s, len == 0);
			continue;
		}
		r = cfs_reader_feed(&s->c.reader, &data, &len, &f);
		if (r > 0)
			r = got_frame(s, &f);
		if (r < 0)
			return r;
	}
	return 0;
}

uint32_t cfs_stream_next_piece(struct cfs_stream *s, struct iovec iov[CFS_PIECE_IOV], int *ret_n)
{
	const struct cfs_peer_get *g = s->rx;
	uint32_t room = CFS_MIN(s->rx_left, PIECE), len = 0;
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

void cfs_stream_advance(struct cfs_stream *s, size_t n)
{
	cfs_peer_note_bytes(s->client.peer, n);
	advance(s->rx, n);
	s->rx_left -= (uint32_t)n;
}

/* Handles a frame, if the reader has a whole one. */
static int take_frame(struct cfs_stream *s)
{
	const uint8_t *none = NULL;
	struct cfs_frame f;
	size_t zero = 0;
	int r = cfs_reader_feed(&s->c.reader, &none, &zero, &f);

	return r > 0 ? got_frame(s, &f) : r;
}

/*
 * Receives the payload in place and the header behind it into the reader: one call per piece.
 * Returns the bytes received; *ret_full: as many as asked for.
 */
static ssize_t receive_direct(struct cfs_stream *s, bool *ret_full)
{
	struct cfs_reader *rd = &s->c.reader;
	struct iovec iov[CFS_PIECE_IOV + 1];
	size_t extra = 0;
	uint32_t asked;
	ssize_t n, r;
	int n_iov;

	asked = cfs_stream_next_piece(s, iov, &n_iov);
	if (asked == s->rx_left) {
		iov[n_iov].iov_base = rd->buf;
		iov[n_iov++].iov_len = CFS_WIRE_HEADER;
		extra = CFS_WIRE_HEADER;
	}
	n = s->c.link.ops->recv(&s->c.link, iov, n_iov);
	if (n <= 0)
		return n;
	*ret_full = (size_t)n == asked + extra;
	asked = (uint32_t)CFS_MIN((size_t)n, asked);
	cfs_stream_advance(s, asked);
	if (s->rx_left > 0)
		return n;
	extra = (size_t)n - asked;
	rd->have = (uint32_t)extra;
	payload_ended(s, extra == 0);
	if (extra == 0 || s->c.state == CFS_CONN_CLOSED)
		return n;
	r = take_frame(s);
	return r < 0 ? r : n;
}

static ssize_t receive(struct cfs_stream *s, bool *ret_full)
{
	struct iovec iov = {.iov_base = s->c.t->loop.scratch, .iov_len = CFS_SCRATCH_RX};
	ssize_t n;
	int r;

	if (s->rx && s->rx_left >= DIRECT_MIN)
		return receive_direct(s, ret_full);
	/* Only large answers are under way: receives the header alone, so that the payload is not copied. */
	if (!s->rx && s->rx_left == 0 && s->n_small == 0)
		iov.iov_len = s->c.reader.want - s->c.reader.have;
	n = s->c.link.ops->recv(&s->c.link, &iov, 1);
	if (n <= 0)
		return n;
	*ret_full = (size_t)n == iov.iov_len;
	r = consume(s, iov.iov_base, (size_t)n);
	return r < 0 ? r : n;
}

static void readable(struct cfs_conn *c)
{
	struct cfs_stream *s = stream_of(c);
	int64_t budget = CFS_ROUND_BYTES;
	bool full = true;
	ssize_t n;

	while (full && budget > 0) {
		n = receive(s, &full);
		if (c->state == CFS_CONN_CLOSED || s->inline_rx.parked)
			return;
		if (n == -EAGAIN)
			break;
		if (n <= 0) {
			cfs_conn_close(c, n < 0 ? (int)n : -ECONNRESET);
			return;
		}
		budget -= n;
	}
	if (c->link.key_limit)
		stop_asking(s);
	if (c->state == CFS_CONN_DRAINING && s->client.inflight == 0) {
		cfs_conn_close(c, 0);
		return;
	}
	if (budget <= 0) {
		cfs_conn_again(c, true, false);
		return;
	}
	if (c->link.ops->expect)
		c->link.ops->expect(&c->link,
				    s->rx ? CFS_MAX(1, CFS_MIN(s->rx_left, EXPECT_MAX)) : 1);
	cfs_conn_want_in(c);
}

void cfs_stream_resume(struct cfs_stream *s)
{
	int r = 0;

	if (s->rx && s->rx_left == 0)
		payload_ended(s, false);
	else if (s->c.reader.have > 0)
		r = take_frame(s);
	if (r < 0)
		cfs_conn_close(&s->c, r);
	else
		cfs_conn_readable(&s->c);
}

/* --- life --- */

static int ready(struct cfs_stream *s)
{
	struct cfs_client *c = &s->client;
	struct cfs_wire_ready limits;
	int r = cfs_wire_parse_ready(cfs_reader_payload(&s->c.reader), &limits);

	if (r < 0)
		return r;
	pthread_mutex_lock(&c->peer->lock);
	c->transport = s->c.link.ops->transport;
	c->max_inflight = CFS_MIN(limits.requests, (uint32_t)CFS_REQUESTS_PER_SESSION);
	c->max_bytes = limits.conn_bytes;
	c->active_ms = s->c.t->loop.now_ms;
	c->connecting = false;
	c->usable = true;
	pthread_mutex_unlock(&c->peer->lock);
	return 0;
}

static void conn_ready(struct cfs_conn *c)
{
	struct cfs_stream *s = stream_of(c);
	int r = ready(s);

	if (r < 0) {
		cfs_conn_close(c, r);
		return;
	}
	cfs_onesided_open(s);
	cfs_peer_connected(s->client.peer, &s->client);
	cfs_conn_want_in(c);
}

static void conn_closed(struct cfs_conn *c, int err)
{
	struct cfs_stream *s = stream_of(c);
	struct cfs_peer *p = s->client.peer;
	struct cfs_get_list list = {0};
	bool was_ready = !s->client.connecting;
	unsigned i;

	cfs_onesided_close(s);
	pthread_mutex_lock(&p->lock);
	s->client.usable = s->client.connecting = false;
	s->dead = true;
	if (s->inline_rx.taken)
		cfs_conn_ref(c); /* held until the receiving thread has ended */
	else
		s->rx = NULL;
	for (i = 0; i < s->n_slots; i++) {
		struct cfs_peer_get *g = s->slots[i];

		if (g) {
			cfs_stream_take_out(s, g);
			cfs_gets_append(&list, g);
		}
	}
	if (s->sending && !s->blocked)
		cfs_conn_ref(c); /* the sender's reference */
	pthread_mutex_unlock(&p->lock);
	cfs_peer_lost(p, &s->client, err, was_ready, &list);
}

static void conn_free(struct cfs_conn *c)
{
	struct cfs_stream *s = stream_of(c);

	free(s->slots);
	free(s->free_slots);
	free(s->out);
	free(s->batch);
	free(s);
}

static const struct cfs_conn_ops conn_ops = {
	.ready = conn_ready,
	.readable = readable,
	.flush = flush,
	.closed = conn_closed,
	.free = conn_free,
};

/* On the loop, after flush_by_loop(), or after a thread has left a request to it. */
static void service(struct cfs_client *c)
{
	struct cfs_stream *s = of_client(c);

	if (s->blocked)
		cfs_conn_want_out(&s->c);
	else
		send_queued(c);
}

static void close_conn(struct cfs_client *c, int err)
{
	cfs_conn_close(&of_client(c)->c, err);
}

static const struct cfs_client_ops stream_ops = {
	.start = start,
	.hint = hint,
	.send = send_queued,
	.receive = cfs_inline_receive,
	.expire = expire,
	.tick = cfs_inline_tick,
	.service = service,
	.close = close_conn,
};

int cfs_stream_connect(struct cfs_peer *p)
{
	struct cfs_transport *t = p->t;
	struct cfs_stream *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return -ENOMEM;
	s->client.ops = &stream_ops;
	s->client.peer = p;
	s->client.connecting = true;
	/* An answer recorded on another connection must not match a request of this one. */
	s->serial = cfs_random_u64() >> (SLOT_BITS + 1);
	s->sent_work.fn = sender_gone;
	cfs_inline_init(s);
	s->c.link.ops = t->link;
	s->c.link.tls = t->tls;
	r = t->link->connect(&s->c.link, (struct sockaddr *)&p->addr, p->addr_len);
	if (r < 0) {
		free(s);
		return r;
	}
	cfs_conn_init(&s->c, t, &conn_ops);
	s->c.deadline_ms = cfs_loop_ran_ms(&t->loop) + t->conf.connect_timeout_ms;
	pthread_mutex_lock(&p->lock);
	p->conns[p->n_conns++] = &s->client;
	pthread_mutex_unlock(&p->lock);
	cfs_conn_want_out(&s->c);
	return 0;
}
