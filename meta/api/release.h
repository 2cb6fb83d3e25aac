/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The single path for deleting slices that have lost their last reference, for any reason. The rows
 * of such slices record the work left.
 */
#ifndef CFS_META_RELEASE_H
#define CFS_META_RELEASE_H

#include "meta/api/core.h"

struct cfs_release { /* zeroed: empty */
	struct cfs_dead_slice *v;
	size_t n, cap;
};
/* arg: a struct cfs_release. -ENOMEM */
int cfs_release_add(void *arg, uint64_t id, uint32_t size);
/*
 * Settles the volume once for the whole batch if a record has named the slices (committed). Then
 * removes the objects of each slice, and after them its row. Returns the number removed, and
 * empties the list. Calls the object store and the engine; any number of threads.
 */
size_t cfs_release_slices(struct cfs_meta *m, struct cfs_release *r, bool committed);
void cfs_release_free(struct cfs_release *r);

#endif
