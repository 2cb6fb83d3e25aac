/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads from an owner that no thread waits for. Such a read has CFS_SLOW_LOOK_MS, and asks no other
 * member. When it fails, for any reason, cfs_group_read() repeats it, and further reads from that
 * owner wait on their threads for a while: the owner is judged by these.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/buf.h"
#include "group-internal.h"

#define WAITS_MS 1000 /* after a failure */

struct async_get {
	struct cfs_peer_get get; /* first */
	struct iovec dst;
	struct cfs_group *group;
	struct group_node *node; /* outlives the request: closing its peer ends that */
	struct cfs_async *async;
	struct cfs_slow_ask ask;
	uint64_t start_ns;
};

static void note_end(struct cfs_peer_get *get, int err)
{
	struct async_get *a = (struct async_get *)get;
	struct cfs_latency *latency = &a->node->latency;
	struct cfs_group *g = a->group;
	uint64_t now_ns = cfs_now_ns();

	cfs_slow_end(&latency->slow, &a->ask, now_ns, cfs_peer_bytes_received(a->node->peer),
		     err == 0 || err == -ENOENT);
	atomic_fetch_add(&g->stat.async, 1);
	if (err == 0) {
		cfs_latency_note(latency, now_ns - a->start_ns);
		cfs_hedging_earn(&g->hedging);
		atomic_fetch_add(&g->stat.hits, 1);
		atomic_fetch_add(&g->stat.hit_bytes, get->len);
	} else {
		atomic_fetch_add(&g->stat.async_repeats, 1);
		atomic_store(&latency->waits_until_ms, now_ns / 1000000 + WAITS_MS);
	}
	a->async->done(a->async, err);
	free(a);
}

/* The owner fetches the block. */
static void note_working(struct cfs_peer_get *get, uint64_t left_ms)
{
	struct async_get *a = (struct async_get *)get;
	struct cfs_peer *peer = a->node->peer;

	(void)left_ms;
	cfs_slow_works(&a->node->latency.slow, &a->ask, cfs_now_ns(),
		       cfs_peer_bytes_received(peer));
	cfs_peer_cancel(peer, get);
}

static int start(struct cfs_group *g, struct group_node *n, const struct cfs_peer_block *b,
		 uint32_t off, struct cfs_async *async)
{
	struct async_get *a = malloc(sizeof(*a));
	int r;

	async = a ? async->keep(async) : NULL;
	if (!async) {
		free(a);
		return -EAGAIN;
	}
	*a = (struct async_get){
		.get = {.block = *b,
			.off = off,
			.len = async->len,
			.dst = &a->dst,
			.n_dst = 1,
			.deadline = cfs_deadline_in(CFS_SLOW_LOOK_MS),
			.brief = true,
			.done = note_end,
			.working = note_working},
		.dst = {.iov_base = async->page->data, .iov_len = async->len},
		.group = g,
		.node = n,
		.async = async,
		.start_ns = cfs_now_ns(),
	};
	cfs_slow_start(&n->latency.slow, &a->ask, a->start_ns, cfs_peer_bytes_received(n->peer));
	r = cfs_peer_start(n->peer, &a->get);
	if (r < 0)
		note_end(&a->get, r);
	return 0;
}

int cfs_group_start(struct cfs_group *g, const struct cfs_peer_block *b, uint32_t off,
		    struct cfs_async *a)
{
	struct group_owner owners[CFS_PLACEMENT_PICK_MAX];
	struct group_snapshot *v = cfs_group_snapshot_ref(g);
	unsigned n = cfs_group_pick_askable(g, v, b, true, owners);
	struct group_node *node = n > 0 && !owners[0].failover ? owners[0].node : NULL;
	int r = -EAGAIN;

	if (node && node->peer && cfs_peer_is_busy(node->peer) &&
	    atomic_load(&node->latency.waits_until_ms) <= cfs_now_ms())
		r = start(g, node, b, off, a);
	cfs_group_snapshot_unref(v);
	return r;
}
