/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slices that a scan found in a chunk and that look wrong. Other clients may have replaced them
 * meanwhile, so all are looked up again in the end, and each chunk is read once for all of its own.
 *
 * Memory: sorter.h, 40 bytes per recheck; 8 bytes per record of one chunk.
 */
#ifndef CFS_CMD_RECHECK_H
#define CFS_CMD_RECHECK_H

#include "cmd/access/admin.h"
#include "cmd/sets/sorter.h"

struct recheck {
	cfs_ino_t ino;
	uint64_t slice;
	uint64_t object_size; /* of the block's object; BLOCK_MISSING: there is none */
	uint32_t indx;	      /* the chunk */
	uint32_t slice_size;
	uint32_t block;
};

int rechecks_create(struct sorter **ret);
/* Ends adding. Calls fn for the rechecks whose chunk still names the slice, in the order of chunks. */
int rechecks_settle(struct admin *a, struct sorter *rechecks,
		    int (*fn)(void *arg, const struct recheck *d), void *arg);

#endif
