/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Failover from slow owners (slow.h), and from those that the transport has left out, to the next
 * members; the probes of slow owners.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <urcu/compiler.h> /* caa_container_of */

#include "base/bytes.h"
#include "base/log.h"
#include "group-internal.h"

#define FAILOVERS	 2  /* members behind the owners that may replace slow ones */
#define COMPARED	 64 /* members at most */
#define PROBE_TIMEOUT_MS 2000
#define PROBE_LIMIT_MS	 10000 /* including the time the peer needs to fetch the block */

/* ---- judging ---- */

/* 0: there is nothing to compare with. */
static uint64_t limit_of(const struct cfs_group *g, const struct group_snapshot *v,
			 const struct group_node *node)
{
	uint64_t others[COMPARED], now_ns = cfs_now_ns();
	unsigned n = 0;
	size_t i;

	for (i = 0; i < v->n && n < COMPARED; i++) {
		struct group_node *other = v->nodes[i];

		if (other == node || !other->peer || cfs_slow_is(&other->latency.slow))
			continue;
		others[n] = cfs_slow_service_us(&other->latency.slow, now_ns);
		n += others[n] > 0;
	}
	return cfs_slow_limit_us(others, n, g->bucket_us ? g->bucket_us(g->ops_arg) : 0);
}

void cfs_group_judge(void *arg, struct cfs_slow *s, uint64_t us)
{
	const struct group_node *node = caa_container_of(s, struct group_node, latency.slow);
	struct cfs_group *g = arg;
	struct group_snapshot *v = cfs_group_snapshot_ref(g);
	uint64_t limit_us = limit_of(g, v, node);

	cfs_group_snapshot_unref(v);
	if (limit_us == 0 || us <= limit_us || !cfs_slow_begin(s, cfs_now_ms()))
		return;
	cfs_warn("peer is slow, requests fail over to other members: group=%s member=%016" PRIx64
		 " address=%s service_us=%" PRIu64 " limit_us=%" PRIu64,
		 g->name, node->member.id, node->member.address, us, limit_us);
}

/* ---- probes ---- */

/* Closing the peer ends a probe, so `node` outlives it. */
struct probe {
	struct cfs_peer_get get; /* first */
	struct group_node *node;
	uint64_t start_ns, limit_us;
	struct iovec dst;
	uint8_t bytes[];
};

static void note_working(struct cfs_peer_get *get, uint64_t left_ms)
{
	((struct probe *)get)->start_ns = cfs_now_ns();
}

static void note_end(struct cfs_peer_get *get, int err)
{
	struct probe *p = (struct probe *)get;
	const struct cfs_group_member *m = &p->node->member;
	uint64_t us = cfs_slow_part_us(cfs_now_ns() - p->start_ns, get->len, 1);
	bool well = err == 0 && us <= p->limit_us;

	cfs_slow_probed(&p->node->latency.slow, well, cfs_now_ms());
	if (well)
		cfs_info("peer is no longer slow, it is asked again: member=%016" PRIx64
			 " address=%s",
			 m->id, m->address);
	else
		cfs_debug("peer is still slow: member=%016" PRIx64 " error=%s service_us=%" PRIu64,
			  m->id, err < 0 ? cfs_errname(err) : "none", us);
	free(p);
}

/* Reads a part of the block, if a probe is due. */
static void probe_slow(const struct cfs_group *g, const struct group_snapshot *v,
		       struct group_node *node, const struct cfs_peer_block *b)
{
	uint32_t len = CFS_MIN(b->len, CFS_SLOW_PROBE);
	struct probe *p;

	if (!cfs_slow_take_probe(&node->latency.slow, cfs_now_ms()))
		return;
	p = malloc(sizeof(*p) + len);
	if (!p) {
		cfs_slow_probed(&node->latency.slow, false, cfs_now_ms());
		return;
	}
	*p = (struct probe){
		.get = {.block = *b,
			.len = len,
			.dst = &p->dst,
			.n_dst = 1,
			.deadline = cfs_deadline_in(PROBE_TIMEOUT_MS),
			.patience_ms = PROBE_TIMEOUT_MS,
			.limit = cfs_deadline_in(PROBE_LIMIT_MS),
			.done = note_end,
			.working = note_working},
		.node = node,
		.start_ns = cfs_now_ns(),
		.limit_us = CFS_MAX(limit_of(g, v, node), (uint64_t)CFS_SLOW_MIN_US),
		.dst = {.iov_base = p->bytes, .iov_len = len},
	};
	if (cfs_peer_start(node->peer, &p->get) < 0)
		note_end(&p->get, -EHOSTDOWN);
}

/* ---- choosing ---- */

unsigned cfs_group_pick_askable(struct cfs_group *g, const struct group_snapshot *v,
				const struct cfs_peer_block *b, bool probe,
				struct group_owner ret[CFS_PLACEMENT_PICK_MAX])
{
	struct group_node *nodes[CFS_PLACEMENT_PICK_MAX];
	unsigned n = cfs_group_snapshot_pick(v, v->all, b, g->replicas + FAILOVERS, nodes), i,
		 k = 0;

	for (i = 0; i < n; i++) {
		if (!nodes[i]->peer ||
		    (!cfs_slow_is(&nodes[i]->latency.slow) && cfs_peer_is_in_use(nodes[i]->peer)))
			ret[k++] = (struct group_owner){.node = nodes[i],
							.failover = i >= g->replicas};
		else if (probe && i < g->replicas) /* others need not have it */
			probe_slow(g, v, nodes[i], b);
	}
	return k;
}

bool cfs_group_may_fail_over(struct cfs_group *g, const struct cfs_peer_block *b)
{
	struct group_node *nodes[CFS_PLACEMENT_PICK_MAX];
	struct group_snapshot *v = cfs_group_snapshot_ref(g);
	unsigned n = cfs_group_snapshot_pick(v, v->all, b, g->replicas + FAILOVERS, nodes), i;
	bool found = false;

	for (i = 0; i < n; i++)
		found = found || nodes[i]->member.self;
	cfs_group_snapshot_unref(v);
	return found;
}
