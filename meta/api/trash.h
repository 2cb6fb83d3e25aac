/* SPDX-License-Identifier: Apache-2.0 */
/* The directories of the trash, one per hour. */
#ifndef CFS_META_TRASH_H
#define CFS_META_TRASH_H

#include "meta/api/core.h"

/* The directory of this hour; 0 in *ret when removal is immediate. */
int cfs_core_trash_dir(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t parent, bool skip,
		       cfs_ino_t *ret);
/* Whether a name is of an hour directory that a mount may still move files into. */
bool cfs_trash_in_use(const struct cfs_meta *m, cfs_ino_t parent, const char *name, size_t len);
/* Empties and removes the hours that are older than the volume keeps them. */
int cfs_trash_expire(struct cfs_meta *m, cfs_deadline_t end, const _Atomic bool *stop);

#endif
