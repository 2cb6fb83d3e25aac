/* SPDX-License-Identifier: Apache-2.0 */
/* The places of a block: tiers that may have it, the member that owns it, caches that keep it. */
#include <errno.h>

#include "base/task.h"
#include "base/workers.h"
#include "store-internal.h"

unsigned cfs_route_first_remote(const struct cfs_store *s)
{
	unsigned i = 0;

	while (i < s->n_tiers && s->tiers[i].ops->local)
		i++;
	return i;
}

enum read_state cfs_route_state(const struct cfs_store *s, unsigned tier)
{
	if (tier < cfs_route_first_remote(s))
		return READ_LOCAL;
	return tier < s->n_tiers ? READ_PEER : READ_OBJECT;
}

struct cfs_workers *cfs_route_workers(const struct cfs_store *s, enum read_state state)
{
	return state == READ_LOCAL ? s->local_workers : s->downloads;
}

struct cfs_route cfs_route_find(const struct cfs_store *s, const struct cfs_block *b)
{
	struct cfs_route route = {.place = CFS_PLACE_ANY, .placer = s->n_tiers};
	unsigned i;

	for (i = 0; i < s->n_tiers; i++) {
		const struct cfs_tier_slot *t = &s->tiers[i];

		if (!t->ops->local)
			continue;
		route.only |= t->ops->only && t->ops->only(t->tier, b);
		route.local |= route.only || (t->ops->holds && t->ops->holds(t->tier, b));
	}
	return route;
}

void cfs_route_place(const struct cfs_store *s, const struct cfs_block *b, struct cfs_route *route)
{
	unsigned i;

	route->place = CFS_PLACE_ANY;
	route->placer = s->n_tiers;
	for (i = 0; i < s->n_tiers; i++) {
		const struct cfs_tier_slot *t = &s->tiers[i];

		if (!t->ops->place)
			continue;
		route->place = t->ops->place(t->tier, b);
		route->placer = i;
	}
}

void cfs_route_missed(struct cfs_route *route, unsigned tier, ssize_t err)
{
	if (err == -EREMCHG && tier == route->placer)
		route->place = CFS_PLACE_HERE;
}

void cfs_route_offer(struct cfs_store *s, const struct cfs_route *route, const struct cfs_block *b,
		     const struct cfs_segs *data, unsigned source, bool nowait)
{
	bool placed = route->place == CFS_PLACE_ELSEWHERE;
	unsigned i;

	if (route->place == CFS_PLACE_HERE) {
		s->tiers[route->placer].ops->keep(s->tiers[route->placer].tier, b, data, nowait);
		return;
	}
	for (i = 0; i < source; i++) {
		const struct cfs_tier_slot *t = &s->tiers[i];

		if (t->ops->offer && (!placed || i == route->placer))
			t->ops->offer(t->tier, b, data);
	}
}

void cfs_route_abandon(struct cfs_store *s, unsigned tier, const struct cfs_block *b)
{
	const struct cfs_tier_slot *t = &s->tiers[tier];

	if (t->ops->late)
		t->ops->late(t->tier, b);
	cfs_workers_replace(cfs_route_workers(s, cfs_route_state(s, tier)));
}

int cfs_route_wait(struct cfs_store *s, unsigned tier, const struct cfs_block *b,
		   struct cfs_task *task, cfs_deadline_t deadline, ssize_t *ret)
{
	int r = cfs_task_wait(task, s->local_workers, deadline, ret);

	if (r == -ETIMEDOUT)
		cfs_route_abandon(s, tier, b);
	return r;
}
