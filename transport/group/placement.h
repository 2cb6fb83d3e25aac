/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weighted rendezvous hashing: every member draws a number for a key, exponentially distributed
 * with its weight as the rate, and the smallest draws win. A member that joins or leaves moves only
 * what it wins or had won; shares are proportional to weights.
 */
#ifndef CFS_PLACEMENT_H
#define CFS_PLACEMENT_H

#include <stddef.h>
#include <stdint.h>

struct cfs_placement;

struct cfs_placement_member {
	uint64_t id;
	unsigned weight; /* 0: never picked */
};

#define CFS_PLACEMENT_PICK_MAX 8

int cfs_placement_create(const struct cfs_placement_member *v, size_t n,
			 struct cfs_placement **ret);
void cfs_placement_destroy(struct cfs_placement *p);
/*
 * The best n members for a key, best first, as indices into v of create. Returns how many there
 * are, at most CFS_PLACEMENT_PICK_MAX. Cost: a multiplication or two per member.
 */
unsigned cfs_placement_pick(const struct cfs_placement *p, uint64_t key, unsigned n, unsigned *ret);
uint64_t cfs_placement_key(uint64_t slice, uint32_t index);

#endif
