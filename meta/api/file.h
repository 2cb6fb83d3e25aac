/* SPDX-License-Identifier: Apache-2.0 */
/* Files that the engine has failed to close. */
#ifndef CFS_META_FILE_H
#define CFS_META_FILE_H

#include "meta/api/core.h"

/* Retries failed calls of cfs_meta_close_ino(), for about for_ms. */
void cfs_core_close_again(struct cfs_meta *m, uint64_t for_ms);

#endif
