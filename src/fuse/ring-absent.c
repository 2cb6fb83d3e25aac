/* SPDX-License-Identifier: Apache-2.0 */
/* In place of ring.c in a build without liburing. */
#include <errno.h>
#include <stdio.h>

#include "ring.h"

bool ring_is_built(void)
{
	return false;
}

int ring_create(const struct cfs_ring_conf *conf, struct cfs_ring **ret, char why[200])
{
	snprintf(why, 200, "this program was built without liburing");
	return -EOPNOTSUPP;
}

/* Without a ring the rest is not called. */
struct cfs_channel *ring_channel(struct cfs_ring *r)
{
	return NULL;
}

int ring_start(struct cfs_ring *r, size_t payload)
{
	return -EOPNOTSUPP;
}

void ring_refuse(struct cfs_ring *r)
{
}

struct cfs_request_id ring_find(struct cfs_ring *r, uint64_t unique)
{
	return (struct cfs_request_id){0};
}

const struct cfs_request *ring_request(const struct cfs_ring *r, unsigned place)
{
	return NULL;
}

void ring_pin(unsigned cpu)
{
}

void ring_stop(struct cfs_ring *r)
{
}

void ring_destroy(struct cfs_ring *r)
{
}
