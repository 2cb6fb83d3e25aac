/* SPDX-License-Identifier: Apache-2.0 */
/* The session of this mount: its record, heartbeat and the clean-up of dead ones. */
#ifndef CFS_META_SESSION_H
#define CFS_META_SESSION_H

#include "meta/api/core.h"

int cfs_sessions_start(struct cfs_meta *m);
/* leave: the record stays. */
int cfs_sessions_stop(struct cfs_meta *m, bool leave);
/* The next heartbeat is due now. */
void cfs_sessions_kick(struct cfs_meta *m);

#endif
