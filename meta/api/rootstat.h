/* SPDX-License-Identifier: Apache-2.0 */
/* The statistics of the root directory, which no mkdir makes. */
#ifndef CFS_META_ROOTSTAT_H
#define CFS_META_ROOTSTAT_H

#include "meta/api/core.h"

/*
 * Counts the root's entries, unless that was done. Called before this client changes anything. Does
 * nothing while other clients have sessions: their batched usage would be counted twice. A failure
 * is logged only: without the row, each query lists the entries.
 */
void cfs_core_make_root_stat(struct cfs_meta *m);

#endif
