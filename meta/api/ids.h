/* SPDX-License-Identifier: Apache-2.0 */
/* Inode and slice numbers, taken from the engine in batches. */
#ifndef CFS_META_IDS_H
#define CFS_META_IDS_H

#include <cachefs/meta.h>
#include <pthread.h>

/* Ids from a batch that the engine has allocated. */
struct cfs_ids {
	const char *counter;
	int64_t batch;
	int64_t gap;	      /* left out when the counter went back */
	bool told;	      /* that ids cannot be checked; of the refilling thread */
	pthread_mutex_t lock; /* protects the rest */
	pthread_cond_t refilled;
	uint64_t next, end; /* end is changed by the refilling thread only */
	bool refilling;
};

int cfs_ids_init(struct cfs_ids *ids, const char *counter, int64_t batch, int64_t gap);
void cfs_ids_destroy(struct cfs_ids *ids);
int cfs_ids_next(struct cfs_meta *m, struct cfs_ids *ids, const struct cfs_ctx *ctx, uint64_t *ret);

#endif
