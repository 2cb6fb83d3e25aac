/* SPDX-License-Identifier: Apache-2.0 */
/* State of quota.c, shared with the files that move trees and answer statfs. */
#ifndef CFS_META_QUOTA_INTERNAL_H
#define CFS_META_QUOTA_INTERNAL_H

#include "meta/core-internal.h"

struct limit {
	struct cfs_quota q; /* as last read, plus what has been flushed since */
	int64_t pending_space, pending_inodes;
};

struct parent_slot {
	cfs_ino_t dir, parent;
};

struct cfs_quotas {
	_Atomic int64_t base_space, base_inodes;
	_Atomic int64_t delta_space, delta_inodes;
	_Atomic int64_t flushed_space, flushed_inodes; /* of delta, by the batch */
	_Atomic uint64_t begun, ended;		       /* engine calls that change usage */
	_Atomic bool on_dirs, on_owners;
	struct cfs_usage_batch *batch;

	pthread_mutex_t lock; /* protects the rest */
	struct limit *v;      /* sorted by kind and key */
	size_t n;
	struct parent_slot *parents; /* a direct-mapped cache, NULL until needed */
};

/* A directory and its ancestors that have a limit, nearest first. */
struct scopes {
	cfs_ino_t *v;
	size_t n;
};
/* Caller frees ret->v. */
int cfs_quotas_scopes(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t dir,
		      struct scopes *ret);
int cfs_quotas_check_scopes(struct cfs_meta *m, const struct scopes *s, int64_t space,
			    int64_t inodes);
void cfs_quotas_add_scoped(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t dir,
			   int64_t space, int64_t inodes);
/* The limit of a directory, pending usage included; false: it has none. */
bool cfs_quotas_get(struct cfs_meta *m, cfs_ino_t dir, struct cfs_quota *ret);

#endif
