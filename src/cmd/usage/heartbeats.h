/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Heartbeats of mounts. A mount moves the expiry of its session at every heartbeat. A mount that is
 * stopped, or cut off from the metadata, does not, and counts as alive until its session has
 * expired.
 */
#ifndef CFS_CMD_HEARTBEATS_H
#define CFS_CMD_HEARTBEATS_H

#include "cmd/access/admin.h"

struct heartbeat {
	uint64_t sid;
	int64_t expire_s;	 /* of the database's clock */
	bool expired;		 /* by the clock of the latest reading */
	cfs_deadline_t deadline; /* a live one has moved it by then */
	char *who;		 /* "HOST:MOUNT-POINT, process N" */
};

struct heartbeats {
	struct heartbeat *v;
	size_t n, cap;
};

/* Reads sessions, except those that never expire (heartbeat=0). */
int heartbeats_read(struct admin *a, struct heartbeats *ret);
/* Waits for a heartbeat of each session. Those without one in time, unexpired, are left in *b. */
int heartbeats_wait(struct admin *a, struct heartbeats *b);
void heartbeats_free(struct heartbeats *b);

#endif
