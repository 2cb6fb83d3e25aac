/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The single path for deleting slices that have lost their last reference, for any reason. Their
 * rows stay until it is done.
 */
#ifndef CFS_META_RELEASE_H
#define CFS_META_RELEASE_H

#include "meta/api/core.h"

/* Slices to delete. Zeroed: none. */
struct cfs_release {
	struct cfs_dead_slice *v;
	size_t n, cap;
};
/* arg: a struct cfs_release. -ENOMEM */
int cfs_release_add(void *arg, uint64_t id, uint32_t size);
/*
 * committed: a record has named the slices, so cfs_meta_settle() is called first, once for all.
 * Then removes the objects of each slice, and after them its row. Empties the list, and returns how
 * many were removed. Any thread.
 */
size_t cfs_release_slices(struct cfs_meta *m, struct cfs_release *r, bool committed);
void cfs_release_free(struct cfs_release *r);

#endif
