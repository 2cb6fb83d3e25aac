/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CFS_CMD_QUOTA_H
#define CFS_CMD_QUOTA_H

#include "cmd/access/admin.h"
#include "cmd/usage/gaps.h"

/*
 * The gaps between the quotas' rows and what is there; owners: of users and groups, too. last: as
 * for gaps_measure_fn.
 */
int quota_gaps(struct admin *a, bool owners, const struct gaps *last, struct gaps *ret);
/* gaps_settle() of every quota. */
int quota_check(struct admin *a, bool repair, gaps_damage_fn fn, void *arg, size_t *ret_open);

/*
 * Gives every owner a row with what is his, at once: for a volume that has just got quotas of
 * owners, which no mount counts yet.
 */
int quota_count_owners(struct admin *a);

/* What is below a directory, itself not counted. */
int quota_measure(struct admin *a, cfs_ino_t dir, int64_t *ret_space, int64_t *ret_inodes);

#endif
