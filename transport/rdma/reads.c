/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA READs: posting them, and taking their completions. */
#include <errno.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "rdma-internal.h"

#define BATCH 16
/* In a work request's id: the last one of its chain. The slot's number is below, its generation above. */
#define LAST (1u << 31)

int cfs_rdma_reads_init(struct cfs_rdma *d, unsigned max)
{
	unsigned i;

	d->slots = calloc(max, sizeof(*d->slots));
	if (!d->slots)
		return -ENOMEM;
	d->n_slots = max;
	for (i = 0; i < max; i++)
		d->slots[i].next_free = i + 1;
	return 0;
}

/* Under the lock. */
static unsigned take_slot(struct cfs_rdma_conn *c, void *cookie, unsigned reads)
{
	struct cfs_rdma *d = c->d;
	unsigned i = d->free_slot;

	d->free_slot = d->slots[i].next_free;
	d->slots[i].c = c;
	d->slots[i].cookie = cookie;
	d->slots[i].reads = reads;
	d->slots[i].err = 0;
	c->reads += reads;
	d->n_reads += reads;
	return i;
}

/* Under the lock. */
static void free_slot(struct cfs_rdma *d, unsigned i)
{
	d->slots[i].c->reads -= d->slots[i].reads;
	d->n_reads -= d->slots[i].reads;
	d->slots[i].c = NULL;
	d->slots[i].generation++;
	d->slots[i].next_free = d->free_slot;
	d->free_slot = i;
}

/* Under the lock. When this fails, as on a removed device, deadlines end the reads. */
static void arm(struct cfs_rdma *d)
{
	if (!d->armed)
		d->armed = ibv_req_notify_cq(d->cq, 0) == 0;
}

/*
 * Under the lock. Reads of a queue pair complete in their order, so a chain has ended when its last one
 * has: only that one is signalled. Reads that fail or are flushed have completions in any case.
 */
static int post(struct cfs_rdma_conn *c, const struct cfs_rdma_read *reads, unsigned n,
		void *cookie, bool polled)
{
	struct cfs_rdma *d = c->d;
	struct ibv_send_wr wr[CFS_RDMA_CHAIN], *bad = NULL;
	struct ibv_sge sge[CFS_RDMA_CHAIN];
	unsigned i, slot;
	int r;

	if (c->state != CONN_READY || c->owner || c->failed)
		return -ENOTCONN;
	if (n > CFS_RDMA_READS - c->reads || n > d->n_slots - d->n_reads)
		return -EAGAIN;
	slot = take_slot(c, cookie, n);
	for (i = 0; i < n; i++) {
		const struct mapping *m = (const struct mapping *)reads[i].memory;
		bool last = i + 1 == n;

		sge[i] = (struct ibv_sge){.addr = (uintptr_t)reads[i].to,
					  .length = reads[i].len,
					  .lkey = m->mr->lkey};
		wr[i] = (struct ibv_send_wr){
			.wr_id = (uint64_t)d->slots[slot].generation << 32 | (last ? LAST : 0) |
				 slot,
			.next = last ? NULL : &wr[i + 1],
			.sg_list = &sge[i],
			.num_sge = 1,
			.opcode = IBV_WR_RDMA_READ,
			.send_flags = last ? IBV_SEND_SIGNALED : 0,
			.wr.rdma = {.remote_addr = reads[i].from, .rkey = reads[i].key},
		};
	}
	if (!polled) /* before the first one can end */
		arm(d);
	r = ibv_post_send(c->id->qp, wr, &bad);
	if (r == 0)
		return 0;
	if (bad != &wr[0] && bad) {
		/* Some reads are under way, without the last one: the end of c ends the chain. */
		c->failed = -abs(r);
		return 0;
	}
	free_slot(d, slot);
	return -abs(r);
}

int cfs_rdma_read(struct cfs_rdma_conn *c, const struct cfs_rdma_read *reads, unsigned n,
		  void *cookie, bool polled)
{
	int r;

	if (n == 0 || n > CFS_RDMA_CHAIN)
		return -EINVAL;
	pthread_mutex_lock(&c->d->lock);
	r = post(c, reads, n, cookie, polled);
	pthread_mutex_unlock(&c->d->lock);
	return r;
}

static int errno_of(enum ibv_wc_status status)
{
	switch (status) {
	case IBV_WC_SUCCESS:
		return 0;
	case IBV_WC_REM_ACCESS_ERR:
	case IBV_WC_REM_INV_REQ_ERR:
		return -EKEYREJECTED;
	case IBV_WC_RETRY_EXC_ERR:
	case IBV_WC_RNR_RETRY_EXC_ERR:
		return -EHOSTUNREACH;
	case IBV_WC_WR_FLUSH_ERR:
		return -ECONNRESET;
	default:
		return -EIO;
	}
}

static void completed(struct cfs_rdma *d, const struct ibv_wc *wc, bool on_loop)
{
	unsigned i = (uint32_t)wc->wr_id & ~LAST;
	bool ended = wc->wr_id & LAST;
	struct cfs_rdma_conn *c = NULL;
	void *cookie = NULL;
	int err = errno_of(wc->status);

	pthread_mutex_lock(&d->lock);
	if (i < d->n_slots && d->slots[i].c && d->slots[i].generation == wc->wr_id >> 32) {
		c = d->slots[i].c;
		cookie = d->slots[i].cookie;
		if (d->slots[i].err < 0)
			err = d->slots[i].err;
		d->slots[i].err = err;
		if (ended)
			free_slot(d, i);
		if (!c->failed)
			c->failed = err;
	}
	pthread_mutex_unlock(&d->lock);
	if (!c) /* its queue pair is destroyed */
		return;
	if (err < 0 && on_loop)
		cfs_rdma_end(c, err);
	if (ended)
		d->events->read_done(d->arg, cookie, err);
}

/* False: no further completion is ready. */
static bool take_completions(struct cfs_rdma *d, bool on_loop)
{
	struct ibv_wc wc[BATCH];
	int i, n = ibv_poll_cq(d->cq, BATCH, wc);

	for (i = 0; i < n; i++)
		completed(d, &wc[i], on_loop);
	return n == BATCH;
}

static void take_all(struct cfs_rdma *d, bool on_loop)
{
	while (take_completions(d, on_loop))
		;
}

void cfs_rdma_complete(struct cfs_rdma *d)
{
	struct ibv_cq *cq;
	unsigned events = 0;
	bool under_way;
	void *arg;

	while (ibv_get_cq_event(d->completions, &cq, &arg) == 0)
		events++;
	if (events == 0) {
		take_all(d, true);
		return;
	}
	ibv_ack_cq_events(d->cq, events);
	pthread_mutex_lock(&d->lock);
	d->armed = false;
	pthread_mutex_unlock(&d->lock);
	take_all(d, true);
	pthread_mutex_lock(&d->lock);
	under_way = d->n_reads > 0;
	if (under_way)
		arm(d);
	pthread_mutex_unlock(&d->lock);
	if (under_way) /* completions before arming make no event */
		take_all(d, true);
}

void cfs_rdma_take(struct cfs_rdma *d)
{
	(void)take_completions(d, false);
}

void cfs_rdma_watch(struct cfs_rdma *d)
{
	pthread_mutex_lock(&d->lock);
	arm(d);
	pthread_mutex_unlock(&d->lock);
	take_all(d, false);
}

void cfs_rdma_forget_reads(struct cfs_rdma_conn *c)
{
	struct cfs_rdma *d = c->d;
	unsigned i;
	CFS_LOCK_GUARD(&d->lock);

	for (i = 0; i < d->n_slots && c->reads > 0; i++)
		if (d->slots[i].c == c)
			free_slot(d, i);
}
