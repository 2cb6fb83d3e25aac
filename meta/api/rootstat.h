/* SPDX-License-Identifier: Apache-2.0 */
/* The root's row of dir_stats, which no mkdir makes. */
#ifndef CFS_META_ROOTSTAT_H
#define CFS_META_ROOTSTAT_H

#include "meta/api/core.h"

/*
 * Makes the row from the root's entries. Runs before this client changes anything, and only without
 * other clients: their batched usage would be counted twice. Failures are not reported: without the
 * row, each query lists the entries.
 */
void cfs_core_make_root_stat(struct cfs_meta *m);

#endif
