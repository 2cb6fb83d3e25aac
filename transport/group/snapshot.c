/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The membership as requests see it. Members exist as nodes, which only the heartbeat changes, and
 * in a membership snapshot, which is immutable.
 *
 * The heartbeat alone frees a snapshot, after its last user, and with it the nodes of members that
 * are gone. Closing a peer waits for the transport's thread, which is a user itself.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "group-internal.h"

void cfs_group_node_unref(struct group_node *n)
{
	if (--n->refs > 0)
		return;
	if (n->peer)
		cfs_peer_close(n->peer);
	cfs_slow_destroy(&n->latency.slow);
	free(n);
}

static void snapshot_free(struct group_snapshot *v)
{
	size_t i;

	for (i = 0; i < v->n; i++)
		cfs_group_node_unref(v->nodes[i]);
	cfs_placement_destroy(v->all);
	cfs_placement_destroy(v->previous);
	free(v);
}

struct group_snapshot *cfs_group_snapshot_ref(struct cfs_group *g)
{
	CFS_LOCK_GUARD(&g->lock);

	atomic_fetch_add(&g->snapshot->users, 1);
	return g->snapshot;
}

void cfs_group_snapshot_unref(struct group_snapshot *v)
{
	atomic_fetch_sub(&v->users, 1);
}

void cfs_group_snapshot_reap(struct cfs_group *g)
{
	struct group_snapshot **at = &g->replaced, *v;

	while ((v = *at)) {
		if (atomic_load(&v->users) > 0) {
			at = &v->next;
			continue;
		}
		*at = v->next;
		snapshot_free(v);
	}
}

/* Makes v, which may be NULL, the current snapshot. */
static void replace(struct cfs_group *g, struct group_snapshot *v)
{
	struct group_snapshot *old;

	pthread_mutex_lock(&g->lock);
	old = g->snapshot;
	g->snapshot = v;
	pthread_mutex_unlock(&g->lock);
	if (!old)
		return;
	old->next = g->replaced;
	g->replaced = old;
}

void cfs_group_snapshot_free(struct cfs_group *g)
{
	replace(g, NULL);
	cfs_group_snapshot_reap(g);
}

unsigned cfs_group_snapshot_weight(const struct group_snapshot *v, const struct cfs_group_member *m)
{
	if (!m->address[0] || m->incompatible || (v->keepers && m->memory_only))
		return 0;
	return m->weight;
}

static void look_round(struct group_snapshot *v)
{
	size_t i;

	for (i = 0; i < v->n; i++) {
		const struct cfs_group_member *m = &v->nodes[i]->member;

		v->keepers |= m->address[0] && !m->incompatible && m->weight && !m->memory_only;
	}
	for (i = 0; i < v->n; i++) {
		const struct cfs_group_member *m = &v->nodes[i]->member;

		v->drained |= m->address[0] && !m->incompatible && !cfs_group_snapshot_weight(v, m);
	}
}

static int place(const struct group_snapshot *v, bool previous, struct cfs_placement **ret)
{
	cfs_auto_free struct cfs_placement_member *m = calloc(v->n + 1, sizeof(*m));
	size_t i;

	if (!m)
		return -ENOMEM;
	for (i = 0; i < v->n; i++) {
		const struct cfs_group_member *of = &v->nodes[i]->member;

		m[i].id = of->id;
		if (!previous)
			m[i].weight = cfs_group_snapshot_weight(v, of);
		else if (of->address[0] && !of->incompatible)
			m[i].weight = of->rank;
	}
	return cfs_placement_create(m, v->n, ret);
}

int cfs_group_snapshot_publish(struct cfs_group *g)
{
	struct group_snapshot *v = calloc(1, sizeof(*v) + g->n_nodes * sizeof(v->nodes[0]));
	size_t i;
	int r;

	if (!v)
		return -ENOMEM;
	for (i = 0; i < g->n_nodes; i++) {
		g->nodes[i]->refs++;
		v->nodes[v->n++] = g->nodes[i];
	}
	look_round(v);
	r = place(v, false, &v->all);
	if (!r)
		r = place(v, true, &v->previous);
	if (r) {
		snapshot_free(v);
		return r;
	}
	replace(g, v);
	/* A late owner is hedged by all members but itself. */
	cfs_hedging_share(&g->hedging, (unsigned)CFS_MAX(v->n, (size_t)1) - 1);
	return 0;
}

unsigned cfs_group_snapshot_pick(const struct group_snapshot *v, const struct cfs_placement *p,
				 const struct cfs_peer_block *b, unsigned n,
				 struct group_node **ret)
{
	unsigned index[CFS_PLACEMENT_PICK_MAX], i;

	n = cfs_placement_pick(p, cfs_placement_key(b->slice, b->index), n, index);
	for (i = 0; i < n; i++)
		ret[i] = v->nodes[index[i]];
	return n;
}
