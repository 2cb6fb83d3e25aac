/* SPDX-License-Identifier: Apache-2.0 */
/* Detached trees of unfinished clones. */
#ifndef CFS_META_CLONE_H
#define CFS_META_CLONE_H

#include "meta/api/core.h"

/* Removes a tree that has no name. */
int cfs_clone_discard(struct cfs_meta *m, cfs_ino_t top);

#endif
