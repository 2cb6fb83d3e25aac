/* SPDX-License-Identifier: Apache-2.0 */
/*
 * READ_PEER without a flight: a random read of less than a page requests just its range from the owner
 * of the block. The thread of the read sends the request, and receives the answer where it can
 * (transport/peer/inline.c), so no worker is woken, and the network carries only the bytes that are
 * read. The transport has checked them. No cache keeps them, as they are not a whole page.
 *
 * The tier decides how long to wait for the owner, as for a flight. The hedge is a flight from the
 * object store, which other readers of the page share.
 *
 * A small one may be started instead, so that no thread waits for its answer (cachefs/async.h).
 */
#include <errno.h>

#include "base/wouldblock.h"
#include "store-internal.h"

#define ASYNC_MAX (16u << 10) /* bytes; for more, the cost of a thread's sleep matters less */

struct range_hedge {
	struct cfs_hedge base; /* first */
	struct cfs_store *store;
	struct cfs_miss miss;
	struct cfs_segs *ret;
};

static int fetch_beside(struct cfs_hedge *base, bool (*settled)(void *arg), void *arg)
{
	struct range_hedge *h = (struct range_hedge *)base;

	h->miss.route.from = h->store->n_tiers;
	h->miss.settled = settled;
	h->miss.settled_arg = arg;
	return cfs_flight_read(h->store, &h->miss, h->ret);
}

/* The tier that can be asked for a range; n_tiers: none, use a flight. */
static unsigned tier_for(const struct cfs_store *s, const struct cfs_miss *m)
{
	const struct cfs_route *route = &m->route;
	unsigned i = cfs_route_first_remote(s);

	if (!m->pattern.random || m->pattern.likely || m->len >= CFS_PAGE_LARGE ||
	    m->len == m->block->len || route->place != CFS_PLACE_ELSEWHERE ||
	    (route->local && route->from == 0) || !s->tiers[i].ops->get_hedged)
		return s->n_tiers;
	return i;
}

bool cfs_range_serves(const struct cfs_store *s, const struct cfs_miss *m)
{
	return tier_for(s, m) < s->n_tiers;
}

/* The read's own structure gets its page. */
struct range_async {
	struct cfs_async base; /* first */
	struct cfs_async *outer;
	struct cfs_store *store;
};

static struct cfs_async *keep(struct cfs_async *a)
{
	struct range_async *r = (struct range_async *)a;
	struct cfs_async *outer = r->outer, *kept;

	outer->len = a->len;
	if (cfs_page_get(r->store->pool, a->len, CFS_USE_READ, 0, &outer->page) < 0)
		return NULL;
	kept = outer->keep(outer);
	if (!kept)
		cfs_page_unref(outer->page);
	return kept;
}

/* True: the read ends by m->async. */
static bool start(struct cfs_store *s, const struct cfs_tier_slot *t, const struct cfs_miss *m)
{
	struct range_async a = {
		.base = {.keep = keep, .len = m->len}, .outer = m->async, .store = s};

	return m->async && t->ops->start && m->len <= ASYNC_MAX &&
	       t->ops->start(t->tier, m->block, m->off, &a.base) == 0;
}

int cfs_range_read(struct cfs_store *s, struct cfs_miss *m, struct cfs_segs *ret)
{
	struct range_hedge h = {.base.fetch = fetch_beside, .store = s, .miss = *m, .ret = ret};
	unsigned i = tier_for(s, m);
	const struct cfs_tier_slot *t = &s->tiers[i];
	uint64_t before = ret->len;
	struct cfs_page *page;
	struct iovec iov;
	ssize_t got;
	int r;

	if (i == s->n_tiers)
		return 0;
	if (start(s, t, m))
		return -EINPROGRESS;
	if (!cfs_may_block())
		return -EBUSY;
	r = cfs_page_get(s->pool, m->len, CFS_USE_READ, m->deadline, &page);
	if (r < 0)
		return r == -ENOMEM ? r : -EIO;
	iov = (struct iovec){.iov_base = page->data, .iov_len = m->len};
	got = t->ops->get_hedged(t->tier, m->block, m->off, &iov, 1, &h.base, m->deadline);
	if (got == -EALREADY) {
		cfs_page_unref(page);
		m->source = CFS_SOURCE_REMOTE;
		return 1;
	}
	cfs_segs_truncate(ret, before); /* the hedge has them as well, or some */
	if (got == (ssize_t)m->len) {
		m->source = CFS_SOURCE_RANGE;
		r = cfs_segs_add(ret, page, 0, m->len);
		if (r < 0)
			cfs_page_unref(page);
		return r < 0 ? r : 1;
	}
	cfs_page_unref(page);
	cfs_route_missed(&m->route, i, got);
	m->route.from = i + 1;
	return 0;
}
