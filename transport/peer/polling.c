/* SPDX-License-Identifier: Apache-2.0 */
/* The adaptive time of polling for reads by RDMA. */
#include "polling.h"

#include "base/bytes.h"

#define WEIGHT	    8 /* of the mean, against one read */
#define THREADS_MAX 4

void cfs_polling_init(struct cfs_polling *p)
{
	*p = (struct cfs_polling){.budget_ns = CFS_POLL_MAX_NS, .next_rest = CFS_POLL_REST};
}

uint32_t cfs_polling_begin(struct cfs_polling *p)
{
	if (p->budget_ns > 0)
		return p->budget_ns;
	if (--p->rest > 0)
		return 0;
	p->rest = p->next_rest; /* unless the trial wins */
	return CFS_POLL_MAX_NS;
}

void cfs_polling_won(struct cfs_polling *p, uint64_t ns)
{
	uint32_t x = (uint32_t)CFS_MIN(ns, (uint64_t)CFS_POLL_MAX_NS);

	p->mean_ns = p->mean_ns > 0 ? (p->mean_ns * (WEIGHT - 1) + x) / WEIGHT : x;
	p->budget_ns = CFS_MIN(CFS_MAX(2 * p->mean_ns, CFS_POLL_MIN_NS), CFS_POLL_MAX_NS);
	p->next_rest = CFS_POLL_REST;
}

void cfs_polling_lost(struct cfs_polling *p)
{
	if (p->budget_ns / 2 >= CFS_POLL_MIN_NS) {
		p->budget_ns /= 2;
		return;
	}
	p->budget_ns = 0;
	p->rest = p->next_rest;
	p->next_rest = CFS_MIN(p->next_rest * 2, CFS_POLL_REST_MAX);
}

unsigned cfs_polling_threads(long processors)
{
	return (unsigned)CFS_MAX(1, CFS_MIN(processors / 2, THREADS_MAX));
}
