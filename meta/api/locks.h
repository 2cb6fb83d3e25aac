/* SPDX-License-Identifier: Apache-2.0 */
/* Advisory locks of this mount's files. */
#ifndef CFS_META_LOCKS_H
#define CFS_META_LOCKS_H

#include "meta/api/core.h"

int cfs_locks_create(struct cfs_locks **ret);
void cfs_locks_destroy(struct cfs_locks *l);
/* Retries, for about for_ms, the unlocks that the engine has not confirmed. */
void cfs_locks_undo(struct cfs_meta *m, uint64_t for_ms);
/* No owner holds a lock under that session any more. */
void cfs_locks_session_ended(struct cfs_meta *m, uint64_t sid);

#endif
