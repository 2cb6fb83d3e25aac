/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times that mounts share (the expiry of a session, an hour of the trash) are compared with the
 * database's clock, too: a host with a wrong clock must neither consider others dead nor empty the
 * trash early. Until that clock has been read, this host's is used.
 */
#ifndef CFS_META_CLOCK_H
#define CFS_META_CLOCK_H

#include "meta/api/core.h"

void cfs_clock_read(struct cfs_meta *m);
/*
 * The database's clock went ahead within the last within_ms, by more than the time that this host ran:
 * it was set, or the host was suspended. Other mounts may not have had a chance since then to renew
 * what expired.
 */
bool cfs_clock_jumped(const struct cfs_meta *m, uint64_t within_ms);
int64_t cfs_clock_s(const struct cfs_meta *m); /* the database's, in seconds */
/*
 * earliest: the clock that is behind, for judging that a time is due. latest: the clock that is
 * ahead, for times that must last.
 */
int64_t cfs_clock_earliest_s(const struct cfs_meta *m);
int64_t cfs_clock_latest_s(const struct cfs_meta *m);

#endif
