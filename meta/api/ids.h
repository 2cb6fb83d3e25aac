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
	uint64_t next;
	uint64_t end;		   /* changed when there is a batch ahead, not during a refill */
	uint64_t ahead, ahead_end; /* the batch after them; ahead_end 0: none */
	uint64_t ahead_ms;	   /* when it was taken */
	bool refilling;
	bool has_threads; /* batches are taken before they are needed */
	bool started;	  /* `thread`, and it is not joined */
	pthread_t thread;
};

int cfs_ids_init(struct cfs_ids *ids, const char *counter, int64_t batch, int64_t gap);
void cfs_ids_destroy(struct cfs_ids *ids);
/* Between the two, threads may take batches of slice ids. */
void cfs_ids_start(struct cfs_ids *ids);
void cfs_ids_stop(struct cfs_ids *ids);
/* A slice id will soon be asked for. Does not wait. */
void cfs_ids_expect(struct cfs_meta *m);
int cfs_ids_next(struct cfs_meta *m, struct cfs_ids *ids, const struct cfs_ctx *ctx, uint64_t *ret);

#endif
