/* SPDX-License-Identifier: Apache-2.0 */
/* Connections of queue pairs: their states, driven by librdmacm's events. */
#include <errno.h>
#include <netinet/in.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "rdma-internal.h"

#define RESOLVE_MS 1000
/*
 * Without an acknowledgement for 4.096 us * 2^14 = 67 ms the device retransmits, RETRIES times. Some
 * devices take 7 for infinity.
 */
#define ACK_TIMEOUT 14
#define RETRIES	    6

static struct cfs_rdma_conn *conn_new(struct cfs_rdma *d, enum conn_state state)
{
	struct cfs_rdma_conn *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->d = d;
	c->state = state;
	c->until_ms = cfs_now_ms() + CFS_RDMA_WAIT_MS;
	d->n_conns++;
	LIST_INSERT_HEAD(&d->conns, c, all);
	return c;
}

/* When this returns, the device does not write to memory for c any more. */
static void destroy_queue_pair(struct cfs_rdma_conn *c)
{
	if (c->id && c->id->qp)
		rdma_destroy_qp(c->id);
	if (c->id)
		rdma_destroy_id(c->id);
	c->id = NULL;
	cfs_rdma_forget_reads(c);
}

void cfs_rdma_conn_free(struct cfs_rdma_conn *c)
{
	destroy_queue_pair(c);
	LIST_REMOVE(c, all);
	c->d->n_conns--;
	OPENSSL_cleanse(c->secret, sizeof(c->secret));
	free(c);
}

void cfs_rdma_end(struct cfs_rdma_conn *c, int err)
{
	bool again;

	pthread_mutex_lock(&c->d->lock);
	again = c->state == CONN_ENDING;
	c->state = CONN_ENDING;
	pthread_mutex_unlock(&c->d->lock);
	if (again)
		return;
	c->err = err;
	c->until_ms = cfs_now_ms() + CFS_RDMA_WAIT_MS;
	OPENSSL_cleanse(c->secret, sizeof(c->secret));
	/* Both flush the reads. If both fail, without connection and device, the destruction of the queue
	 * pair ends the reads. */
	if (c->id->qp) {
		(void)rdma_disconnect(c->id);
		(void)ibv_modify_qp(c->id->qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_ERR},
				    IBV_QP_STATE);
	}
}

void cfs_rdma_reap(struct cfs_rdma *d, uint64_t now_ms)
{
	struct cfs_rdma_conn *c, *next;

	for (c = LIST_FIRST(&d->conns); c; c = next) {
		unsigned reads;
		int failed;

		next = LIST_NEXT(c, all);
		pthread_mutex_lock(&d->lock);
		reads = c->reads;
		failed = c->failed;
		pthread_mutex_unlock(&d->lock);
		if (failed)
			cfs_rdma_end(c, failed);
		if (c->state < CONN_READY && now_ms >= c->until_ms)
			cfs_rdma_end(c, -ETIMEDOUT);
		if (c->state == CONN_ENDING && (reads == 0 || now_ms >= c->until_ms)) {
			destroy_queue_pair(c);
			/* Other threads may call read, which fails, until lost has returned. */
			d->events->lost(d->arg, c->user, c->err);
			cfs_rdma_conn_free(c);
		}
	}
}

static void device_is_gone(struct cfs_rdma *d)
{
	struct cfs_rdma_conn *c;

	d->removed = true;
	LIST_FOREACH(c, &d->conns, all)
	cfs_rdma_end(c, -ENODEV);
}

static int make_queue_pair(struct cfs_rdma *d, struct rdma_cm_id *id, unsigned reads)
{
	uint8_t timeout = ACK_TIMEOUT;
	struct ibv_qp_init_attr attr = {
		.send_cq = d->cq,
		.recv_cq = d->cq,
		.cap = {.max_send_wr = reads,
			.max_recv_wr = 1,
			.max_send_sge = 1,
			.max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
	};

	/*
	 * The address has moved to another device, or librdmacm has opened this one again. Up to
	 * version 44 at least, librdmacm compares devices by the low half of their addresses in
	 * memory, and may mistake a device for a replaced one when another device is added.
	 */
	if (id->verbs != d->device) {
		device_is_gone(d);
		return -EXDEV;
	}
	/* Older kernels refuse it; then the device's default applies. */
	(void)rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout,
			      sizeof(timeout));
	return rdma_create_qp(id, d->pd, &attr) == 0 ? 0 : -errno;
}

/* --- reader --- */

int cfs_rdma_connect(struct cfs_rdma *d, const struct sockaddr *remote, uint64_t session,
		     const uint8_t secret[CFS_RDMA_SECRET], void *user, struct cfs_rdma_conn **ret)
{
	struct cfs_rdma_conn *c;
	int r;

	if (d->removed)
		return -ENODEV;
	if (d->n_conns >= d->max_conns)
		return -EMFILE;
	c = conn_new(d, CONN_ADDRESS);
	if (!c)
		return -ENOMEM;
	c->session = session;
	memcpy(c->secret, secret, CFS_RDMA_SECRET);
	c->user = user;
	if (rdma_create_id(d->cm, &c->id, c, RDMA_PS_TCP) < 0 ||
	    rdma_resolve_addr(c->id, (struct sockaddr *)&d->local, (struct sockaddr *)remote,
			      RESOLVE_MS) < 0) {
		r = -errno;
		cfs_rdma_conn_free(c);
		return r;
	}
	*ret = c;
	return 0;
}

static int has_address(struct cfs_rdma_conn *c)
{
	int r = make_queue_pair(c->d, c->id, CFS_RDMA_READS);

	if (r == 0 && rdma_resolve_route(c->id, RESOLVE_MS) < 0)
		r = -errno;
	c->state = CONN_ROUTE;
	return r;
}

static int has_route(struct cfs_rdma_conn *c)
{
	uint8_t ask[CFS_RDMA_ASK_LEN];
	struct rdma_conn_param param = {
		.private_data = ask,
		.private_data_len = sizeof(ask),
		.initiator_depth = (uint8_t)c->d->depth,
		.responder_resources = 0, /* a reader is not read from */
		.retry_count = RETRIES,
		.rnr_retry_count = RETRIES,
	};
	int r = cfs_rdma_ask(ask, c->session, c->secret, c->id->qp->qp_num);

	if (r == 0 && rdma_connect(c->id, &param) < 0)
		r = -errno;
	c->state = CONN_ASKED;
	return r;
}

/* --- owner --- */

static void refuse(struct rdma_cm_id *id)
{
	(void)rdma_reject(id, NULL, 0);
	(void)rdma_destroy_id(id);
}

/* A copy of an event, which is acknowledged before it is handled. */
struct event {
	enum rdma_cm_event_type event;
	struct rdma_cm_id *id;
	uint32_t qp;
	unsigned depth; /* reads at a time that the reader requests */
	uint8_t len;
	uint8_t data[UINT8_MAX];
};

static int accept_reader(struct cfs_rdma_conn *c, const struct event *e)
{
	struct cfs_rdma *d = c->d;
	uint8_t give[CFS_RDMA_GIVE_LEN];
	struct rdma_conn_param param = {
		.private_data = give,
		.private_data_len = sizeof(give),
		.responder_resources = (uint8_t)CFS_MIN(e->depth, d->depth),
		.initiator_depth = 0, /* an owner does not read */
		.rnr_retry_count = RETRIES,
	};
	int r = cfs_rdma_check_ask(e->data, e->len, c->secret, e->qp);

	if (r == 0)
		r = make_queue_pair(d, c->id, 1); /* it posts none; 0 is refused by some devices */
	if (r == 0)
		r = cfs_rdma_give(give, c->session, c->secret, e->qp, c->id->qp->qp_num);
	if (r == 0 && rdma_accept(c->id, &param) < 0)
		r = -errno;
	return r;
}

static void asked(struct cfs_rdma *d, const struct event *e)
{
	struct cfs_rdma_conn *c;
	uint64_t session;
	int r;

	if (d->removed || d->n_conns >= d->max_conns ||
	    cfs_rdma_session_of(e->data, e->len, &session) < 0) {
		refuse(e->id);
		return;
	}
	c = conn_new(d, CONN_ACCEPTED);
	if (!c) {
		refuse(e->id);
		return;
	}
	c->owner = true;
	c->session = session;
	if (d->events->asked(d->arg, session, c, c->secret, &c->user) < 0) {
		cfs_rdma_conn_free(c);
		refuse(e->id);
		return;
	}
	c->id = e->id;
	c->id->context = c;
	r = accept_reader(c, e);
	if (r < 0) {
		(void)rdma_reject(c->id, NULL, 0);
		cfs_rdma_end(c, r);
	}
}

/* --- events --- */

static void established(struct cfs_rdma_conn *c, const struct event *e)
{
	int r = 0;

	if (!c->owner)
		r = cfs_rdma_check_give(e->data, e->len, c->session, c->secret, c->id->qp->qp_num,
					e->qp);
	if (r < 0) {
		cfs_rdma_end(c, r);
		return;
	}
	pthread_mutex_lock(&c->d->lock);
	c->state = CONN_READY;
	pthread_mutex_unlock(&c->d->lock);
	OPENSSL_cleanse(c->secret, sizeof(c->secret));
	c->d->events->ready(c->d->arg, c->user);
}

static void step(struct cfs_rdma_conn *c, const struct event *e)
{
	int r = 0;

	switch (e->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		r = c->state == CONN_ADDRESS ? has_address(c) : -EPROTO;
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		r = c->state == CONN_ROUTE ? has_route(c) : -EPROTO;
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		if (c->state == CONN_ASKED || c->state == CONN_ACCEPTED)
			established(c, e);
		break;
	case RDMA_CM_EVENT_REJECTED:
		r = -ECONNREFUSED;
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		r = -ECONNRESET;
		break;
	case RDMA_CM_EVENT_ADDR_ERROR:
	case RDMA_CM_EVENT_ROUTE_ERROR:
	case RDMA_CM_EVENT_UNREACHABLE:
		r = -EHOSTUNREACH;
		break;
	case RDMA_CM_EVENT_CONNECT_ERROR:
		r = -EIO;
		break;
	default: /* RDMA_CM_EVENT_TIMEWAIT_EXIT, _ADDR_CHANGE */
		break;
	}
	if (r < 0)
		cfs_rdma_end(c, r);
}

int cfs_rdma_next_event(struct cfs_rdma *d)
{
	struct rdma_cm_event *e;
	struct event t;

	if (rdma_get_cm_event(d->cm, &e) < 0)
		return errno == EAGAIN ? -EAGAIN : -errno;
	t = (struct event){
		.event = e->event,
		.id = e->id,
		.qp = e->param.conn.qp_num,
		.depth = e->param.conn.responder_resources,
	};
	if ((e->event == RDMA_CM_EVENT_CONNECT_REQUEST || e->event == RDMA_CM_EVENT_ESTABLISHED) &&
	    e->param.conn.private_data) {
		t.len = e->param.conn.private_data_len;
		memcpy(t.data, e->param.conn.private_data, t.len);
	}
	/* rdma_destroy_id() waits until all events of an id are acknowledged. */
	rdma_ack_cm_event(e);
	if (t.event == RDMA_CM_EVENT_DEVICE_REMOVAL)
		device_is_gone(d);
	else if (t.event == RDMA_CM_EVENT_CONNECT_REQUEST)
		asked(d, &t);
	else if (t.id != d->listening &&
		 ((struct cfs_rdma_conn *)t.id->context)->state != CONN_ENDING)
		step(t.id->context, &t);
	return 0;
}
