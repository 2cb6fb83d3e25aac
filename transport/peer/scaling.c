/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connection scaling: the number of a peer's connections follows its traffic. It grows while each
 * one has more than one request in flight and another raises throughput by a tenth; idle ones are
 * closed.
 */
#include "base/cleanup.h"
#include "transport-internal.h"

#define SCALE_WINDOW_MS	 200
#define SCALE_BUSY_TICKS 5
#define SCALE_GAIN	 1.1
#define SCALE_PAUSE_MS	 10000
#define SCALE_IDLE_MS	 10000

void cfs_scaling_pause(struct cfs_peer *p)
{
	p->paused_until_ms = p->t->loop.now_ms + SCALE_PAUSE_MS;
	p->scaling_to = 0;
}

static bool is_short_of_connections(struct cfs_peer *p)
{
	unsigned i, loaded = 0, usable = 0;
	CFS_LOCK_GUARD(&p->lock);

	for (i = 0; i < p->n_conns; i++) {
		usable += p->conns[i]->usable;
		loaded += p->conns[i]->usable && p->conns[i]->inflight > 1;
	}
	return usable > 0 && usable == p->n_conns && loaded == usable;
}

/* At the end of a window of traffic: judges the last connection, and whether to add another. */
static void judge(struct cfs_peer *p, double rate)
{
	uint64_t now_ms = p->t->loop.now_ms;

	if (p->scaling_to && p->n_ready >= p->scaling_to) {
		if (rate < p->rate_before * SCALE_GAIN) {
			cfs_scaling_pause(p);
			pthread_mutex_lock(&p->lock);
			p->conns[p->n_conns - 1]->usable = false; /* it is closed once idle */
			pthread_mutex_unlock(&p->lock);
		}
		p->scaling_to = 0;
	}
	if (p->busy_ticks < SCALE_BUSY_TICKS || now_ms < p->paused_until_ms ||
	    p->n_conns >= p->t->conf.max_conns_per_peer)
		return;
	p->rate_before = rate;
	p->scaling_to = p->n_conns + 1;
	cfs_peer_connect(p);
}

static void follow_traffic(struct cfs_peer *p)
{
	uint64_t now_ms = p->t->loop.now_ms, bytes = atomic_load(&p->counters.bytes);

	p->busy_ticks = is_short_of_connections(p) ? p->busy_ticks + 1 : 0;
	if (p->window_ms == 0) {
		p->window_ms = now_ms;
		p->window_bytes = bytes;
		return;
	}
	if (now_ms - p->window_ms < SCALE_WINDOW_MS)
		return;
	if (bytes - p->window_bytes >= p->t->conf.grow_bytes)
		judge(p, (double)(bytes - p->window_bytes) / (double)(now_ms - p->window_ms));
	p->window_ms = now_ms;
	p->window_bytes = bytes;
}

static void close_idle(struct cfs_peer *p)
{
	uint64_t now_ms = p->t->loop.now_ms;
	struct cfs_client *idle = NULL;
	unsigned i;

	pthread_mutex_lock(&p->lock);
	for (i = 0; i < p->n_conns; i++) {
		struct cfs_client *c = p->conns[i];

		if (c->inflight > 0 || c->connecting)
			continue;
		/* A thread in inline receive sets active_ms, to later than now_ms. */
		if (!c->usable || (p->n_ready > 1 && now_ms >= c->active_ms + SCALE_IDLE_MS))
			idle = c;
	}
	if (idle)
		idle->usable = false; /* no thread starts a request on it while it is closed */
	pthread_mutex_unlock(&p->lock);
	if (idle)
		idle->ops->close(idle, 0);
}

void cfs_scaling_tick(struct cfs_peer *p)
{
	follow_traffic(p);
	close_idle(p);
}
