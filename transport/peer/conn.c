/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections of both roles: polling, the handshakes, closing. A connection is freed with its last
 * reference.
 */
#include <errno.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <stdlib.h>

#include "base/log.h"
#include "transport-internal.h"

void cfs_conn_ref(struct cfs_conn *c)
{
	c->refs++;
}

static void end_handshake(struct cfs_conn *c)
{
	if (c->handshake)
		OPENSSL_cleanse(c->handshake, sizeof(*c->handshake));
	free(c->handshake);
	c->handshake = NULL;
}

void cfs_conn_unref(struct cfs_conn *c)
{
	if (--c->refs > 0)
		return;
	end_handshake(c);
	OPENSSL_cleanse(c->secret, sizeof(c->secret));
	c->link.ops->close(&c->link);
	c->ops->free(c);
}

static void polled_in(struct cfs_op *op, int res)
{
	struct cfs_conn *c = caa_container_of(op, struct cfs_conn, in_op);

	(void)res;
	c->in_armed = false;
	cfs_conn_readable(c);
	cfs_conn_unref(c);
}

static void polled_out(struct cfs_op *op, int res)
{
	struct cfs_conn *c = caa_container_of(op, struct cfs_conn, out_op);

	(void)res;
	c->out_armed = false;
	if (c->state == CFS_CONN_SECURE)
		cfs_conn_readable(c);
	else if (c->state != CFS_CONN_CLOSED)
		c->ops->flush(c);
	cfs_conn_unref(c);
}

void cfs_conn_init(struct cfs_conn *c, struct cfs_transport *t, const struct cfs_conn_ops *ops)
{
	c->t = t;
	c->ops = ops;
	c->refs = 1;
	c->in_op.fn = polled_in;
	c->out_op.fn = polled_out;
	cfs_reader_init(&c->reader);
	LIST_INSERT_HEAD(&t->conns, c, all);
}

void cfs_conn_want_in(struct cfs_conn *c)
{
	if (c->in_armed || c->state == CFS_CONN_CLOSED)
		return;
	if (c->link.unread) {
		cfs_conn_again(c, true, false);
		return;
	}
	c->in_armed = true;
	cfs_conn_ref(c);
	cfs_loop_poll(&c->t->loop, c->link.fd, POLLIN | POLLRDHUP, &c->in_op);
}

void cfs_conn_want_out(struct cfs_conn *c)
{
	if (c->out_armed || c->state == CFS_CONN_CLOSED)
		return;
	c->out_armed = true;
	cfs_conn_ref(c);
	cfs_loop_poll(&c->t->loop, c->link.fd, POLLOUT, &c->out_op);
}

void cfs_conn_again(struct cfs_conn *c, bool in, bool out)
{
	c->more_in |= in;
	c->more_out |= out;
	if (c->on_more)
		return;
	c->on_more = true;
	cfs_conn_ref(c);
	c->more_next = NULL;
	*c->t->more_last = c;
	c->t->more_last = &c->more_next;
}

void cfs_conn_close(struct cfs_conn *c, int err)
{
	if (c->state == CFS_CONN_CLOSED)
		return;
	c->state = CFS_CONN_CLOSED;
	LIST_REMOVE(c, all);
	c->link.ops->cut(&c->link);
	if (c->in_armed)
		cfs_loop_cancel(&c->t->loop, &c->in_op);
	if (c->out_armed)
		cfs_loop_cancel(&c->t->loop, &c->out_op);
	c->ops->closed(c, err);
	cfs_conn_unref(c);
}

void cfs_conn_close_old_keys(struct cfs_transport *t)
{
	struct cfs_conn *c, *next;
	uint32_t ids[2] = {0, 0};
	unsigned i;

	for (i = 0; i < t->keys.n; i++)
		(void)cfs_handshake_key_id(t->keys.key[i], &ids[i]);
	for (c = LIST_FIRST(&t->conns); c; c = next) {
		next = LIST_NEXT(c, all);
		if (c->state < CFS_CONN_READY || c->key_id == ids[0] || c->key_id == ids[1])
			continue;
		cfs_conn_close(c, -ECONNRESET);
		next = LIST_FIRST(&t->conns); /* closing it may have closed others */
	}
}

int cfs_conn_send_now(struct cfs_conn *c, uint8_t *data, size_t len)
{
	struct iovec iov = {.iov_base = data, .iov_len = len};
	ssize_t n;

	if (len == 0)
		return 0;
	n = c->link.ops->send(&c->link, &iov, 1, false);
	if (n == (ssize_t)len)
		return 0;
	return n < 0 && n != -EAGAIN ? (int)n : -ECONNRESET;
}

int cfs_conn_authenticate(struct cfs_conn *c, uint64_t peer)
{
	struct cfs_transport *t = c->t;

	c->handshake = malloc(sizeof(*c->handshake));
	if (!c->handshake)
		return -ENOMEM;
	c->peer = peer;
	c->state = CFS_CONN_SECURE;
	c->deadline_ms = cfs_loop_ran_ms(&t->loop) + t->conf.connect_timeout_ms;
	cfs_conn_readable(c);
	return 0;
}

/* The link is up: a client sends HELLO. */
static int greet(struct cfs_conn *c)
{
	struct cfs_transport *t = c->t;
	uint8_t out[CFS_HANDSHAKE_OUT], binding[CFS_LINK_BINDING];
	size_t len = 0;
	int r = 0;

	c->state = CFS_CONN_AUTH;
	if (c->peer)
		r = cfs_handshake_client(c->handshake, t->conf.member, c->peer, &t->keys, out,
					 &len);
	else
		cfs_handshake_server(c->handshake, t->conf.member, &t->keys);
	if (r == 0 && c->link.ops->binding) {
		c->link.ops->binding(&c->link, binding);
		cfs_handshake_bind(c->handshake, binding);
	}
	if (r == 0)
		r = cfs_conn_send_now(c, out, len);
	return r;
}

static void secure(struct cfs_conn *c)
{
	bool out = false;
	int r = c->link.ops->handshake ? c->link.ops->handshake(&c->link, &out) : 0;

	if (r == -EAGAIN && out) {
		cfs_conn_want_out(c);
		return;
	}
	if (r == 0)
		r = greet(c);
	if (r < 0 && r != -EAGAIN)
		cfs_conn_close(c, r);
	else
		cfs_conn_want_in(c);
}

/* Reads the next frame of the handshake, and not a byte beyond it. */
static int authenticate_step(struct cfs_conn *c)
{
	struct cfs_reader *rd = &c->reader;
	struct iovec iov = {.iov_base = rd->buf + rd->have, .iov_len = rd->want - rd->have};
	uint8_t out[CFS_HANDSHAKE_OUT];
	struct cfs_frame f;
	const uint8_t *none = NULL;
	size_t len = 0;
	ssize_t n = c->link.ops->recv(&c->link, &iov, 1);
	int r, sent;

	if (n <= 0)
		return n < 0 ? (int)n : -ECONNRESET;
	rd->have += (uint32_t)n;
	r = cfs_reader_feed(rd, &none, &len, &f);
	if (r <= 0)
		return r;
	/* A frame of another type is refused here; payloads up to this point are control frames of bounded
	 * length. */
	r = cfs_handshake_frame(c->handshake, &f, cfs_reader_payload(rd), out, &len);
	sent = cfs_conn_send_now(c, out, len);
	return r < 0 ? r : sent < 0 ? sent : r;
}

static void authenticate(struct cfs_conn *c)
{
	int r;

	do
		r = authenticate_step(c);
	while (r == 0);
	if (r == -EAGAIN) {
		cfs_conn_want_in(c);
		return;
	}
	if (r < 0) {
		cfs_conn_close(c, r);
		return;
	}
	c->peer = c->handshake->peer;
	c->features = c->handshake->features;
	r = cfs_handshake_key_id(c->handshake->key, &c->key_id);
	if (r == 0 && !cfs_handshake_knows(&c->t->keys, c->key_id))
		r = -EACCES; /* the keys have changed meanwhile */
	if (r == 0 && c->t->onesided)
		r = cfs_handshake_secret(c->handshake, c->secret);
	end_handshake(c);
	if (r < 0) {
		cfs_conn_close(c, r);
		return;
	}
	c->state = CFS_CONN_READY;
	c->ops->ready(c);
}

void cfs_conn_readable(struct cfs_conn *c)
{
	switch (c->state) {
	case CFS_CONN_SECURE:
		secure(c);
		break;
	case CFS_CONN_AUTH:
		authenticate(c);
		break;
	case CFS_CONN_READY:
	case CFS_CONN_DRAINING:
		c->ops->readable(c);
		break;
	case CFS_CONN_CONNECT:
	case CFS_CONN_CLOSED:
		break;
	}
}
