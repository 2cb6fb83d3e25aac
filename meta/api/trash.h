/* SPDX-License-Identifier: Apache-2.0 */
/* The directories of the trash, one per hour. */
#ifndef CFS_META_TRASH_H
#define CFS_META_TRASH_H

#include "meta/api/core.h"

/* The directory of this hour; *ret is 0 when a removal from `parent` is immediate. */
int cfs_core_trash_dir(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t parent, bool skip,
		       cfs_ino_t *ret);
/* Whether the name is that of an hour into which a mount may still move files. */
bool cfs_trash_in_use(const struct cfs_meta *m, cfs_ino_t parent, const char *name, size_t len);
/* Empties and removes the hours that are older than TrashDays. */
int cfs_trash_expire(struct cfs_meta *m, cfs_deadline_t end, const _Atomic bool *stop);

#endif
