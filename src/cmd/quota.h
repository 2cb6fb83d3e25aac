/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CFS_CMD_QUOTA_H
#define CFS_CMD_QUOTA_H

#include "cmd/admin.h"

/* A quota whose usage is not what is there. */
struct quota_finding {
	struct cfs_quota have;
	int64_t space, inodes; /* what is there */
	bool repaired;
};
typedef int (*quota_finding_fn)(void *arg, const struct quota_finding *q);
/*
 * Recomputes the usage of every quota. Mounts write theirs with a delay: on a volume in use what
 * differs is looked at again after some seconds, and is exact only when nothing changes.
 */
int quota_check(struct admin *a, bool repair, quota_finding_fn fn, void *arg);

/*
 * Gives every owner a row with what is his, at once: for a volume that has just got quotas of
 * owners, which no mount counts yet.
 */
int quota_count_owners(struct admin *a);

/* What is below a directory, itself not counted. */
int quota_measure(struct admin *a, cfs_ino_t dir, int64_t *ret_space, int64_t *ret_inodes);

#endif
