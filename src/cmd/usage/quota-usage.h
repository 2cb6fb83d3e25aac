/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CFS_CMD_QUOTA_H
#define CFS_CMD_QUOTA_H

#include "cmd/access/admin.h"
#include "cmd/usage/gaps.h"

struct quotas {
	struct cfs_quota *v;
	size_t n, cap;
};
int quotas_read(struct admin *a, struct quotas *ret);
/* NULL: there is none. */
const struct cfs_quota *quotas_find(const struct quotas *l, enum cfs_quota_kind kind, uint64_t key);

/*
 * The gaps between the quotas' rows and the real usage; owners: includes users and groups. last: as
 * for gaps_measure_fn.
 */
int quota_gaps(struct admin *a, bool owners, const struct gaps *last, struct gaps *ret);
/* gaps_settle() of every quota. */
int quota_check(struct admin *a, bool repair, gaps_damage_fn fn, void *arg, size_t *ret_open);

/*
 * Gives every owner a row with its usage, without waiting: for a volume whose quotas of owners have
 * just been enabled, which no mount counts yet.
 */
int quota_count_owners(struct admin *a);

/* Sums the usage below a directory, without the directory itself. */
int quota_measure(struct admin *a, cfs_ino_t dir, int64_t *ret_space, int64_t *ret_inodes);

#endif
