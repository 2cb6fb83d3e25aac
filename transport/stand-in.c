/* SPDX-License-Identifier: Apache-2.0 */
/* Members that stand in for owners that are slow (slow.h): which they are, and who finds out. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/log.h"
#include "group-internal.h"

#define STAND_INS	 2  /* that may be needed */
#define COMPARED	 64 /* members at most */
#define PROBE_TIMEOUT_MS 10000

unsigned cfs_group_pick_askable(const struct cfs_group *g, const struct group_view *v,
				const struct cfs_peer_block *b, struct group_owner *ret)
{
	struct group_node *nodes[CFS_PLACEMENT_PICK_MAX];
	unsigned n = cfs_group_view_pick(v, v->all, b, g->replicas + STAND_INS, nodes), i, k = 0;

	for (i = 0; i < n && k < g->replicas; i++) {
		if (nodes[i]->peer && cfs_slow_is(&nodes[i]->pace.slow)) {
			cfs_group_probe(g, nodes[i], b);
			continue;
		}
		ret[k++] = (struct group_owner){.node = nodes[i], .stands_in = i >= g->replicas};
	}
	return k;
}

bool cfs_group_may_stand_in(struct cfs_group *g, const struct cfs_peer_block *b)
{
	struct group_node *nodes[CFS_PLACEMENT_PICK_MAX];
	struct group_view *v = cfs_group_view_hold(g);
	unsigned n = cfs_group_view_pick(v, v->all, b, g->replicas + STAND_INS, nodes), i;
	bool found = false;

	for (i = 0; i < n; i++)
		found = found || nodes[i]->member.self;
	cfs_group_view_unref(v);
	return found;
}

void cfs_group_judge(struct cfs_group *g, const struct group_view *v, struct group_node *node)
{
	uint64_t us = cfs_slow_pace_us(&node->pace.slow), others[COMPARED], bucket_us, limit_us;
	unsigned n = 0;
	size_t i;

	if (us <= CFS_SLOW_MIN_US)
		return;
	for (i = 0; i < v->n && n < COMPARED; i++) {
		const struct group_node *other = v->nodes[i];

		if (other == node || !other->peer || cfs_slow_is(&other->pace.slow))
			continue;
		others[n] = cfs_slow_pace_us(&other->pace.slow);
		n += others[n] > 0;
	}
	bucket_us = g->bucket_us ? g->bucket_us(g->ops_arg) : 0;
	limit_us = cfs_slow_limit_us(others, n, bucket_us);
	if (limit_us == 0 || us <= limit_us ||
	    !cfs_slow_begin(&node->pace.slow, limit_us, cfs_now_ms()))
		return;
	cfs_warn("peer is slow, others stand in for it until it is not: group=%s member=%016" PRIx64
		 " address=%s took_us=%" PRIu64 " limit_us=%" PRIu64,
		 g->name, node->member.id, node->member.address, us, limit_us);
}

/* ---- probes ---- */

/* Ends before its peer is closed, and so before its node. */
struct probe {
	struct cfs_peer_get get; /* first */
	struct group_node *node;
	uint64_t start_ns;
	struct iovec dst;
	uint8_t bytes[];
};

static void note_working(struct cfs_peer_get *get)
{
	((struct probe *)get)->start_ns = cfs_now_ns();
}

static void note_end(struct cfs_peer_get *get, int err)
{
	struct probe *p = (struct probe *)get;
	const struct cfs_group_member *m = &p->node->member;
	uint64_t us = UINT64_MAX;

	if (err == 0)
		us = cfs_slow_part_us(cfs_now_ns() - p->start_ns, get->len, 1);
	if (cfs_slow_probed(&p->node->pace.slow, us, cfs_now_ms()))
		cfs_info("peer is as fast as others again: member=%016" PRIx64 " address=%s", m->id,
			 m->address);
	free(p);
}

void cfs_group_probe(const struct cfs_group *g, struct group_node *node,
		     const struct cfs_peer_block *b)
{
	uint32_t len = CFS_MIN(b->len, CFS_SLOW_PROBE);
	struct probe *p;

	if (!cfs_slow_take_probe(&node->pace.slow, cfs_now_ms()))
		return;
	p = malloc(sizeof(*p) + len);
	if (!p) {
		cfs_slow_probed(&node->pace.slow, UINT64_MAX, cfs_now_ms());
		return;
	}
	*p = (struct probe){
		.get = {.block = *b,
			.len = len,
			.dst = &p->dst,
			.n_dst = 1,
			.deadline = cfs_deadline_in(PROBE_TIMEOUT_MS),
			.patience_ms = g->timeout_ms,
			.limit = cfs_deadline_in(PROBE_TIMEOUT_MS),
			.done = note_end,
			.working = note_working},
		.node = node,
		.start_ns = cfs_now_ns(),
		.dst = {.iov_base = p->bytes, .iov_len = len},
	};
	if (cfs_peer_start(node->peer, &p->get) < 0)
		note_end(&p->get, -EHOSTDOWN);
}
