/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations shared by the files of this folder. */
#ifndef CFS_META_QUOTA_INTERNAL_H
#define CFS_META_QUOTA_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "meta/quota/inomap.h"
#include "meta/quota/quota.h"

struct limit {
	struct cfs_quota q;		       /* as last read, plus the usage written since */
	int64_t pending_space, pending_inodes; /* not written yet */
	int64_t reserved_space, reserved_inodes;
};

struct file_reservation; /* file-reserve.c */
#define FILE_BUCKETS 256

struct parent_slot {
	cfs_ino_t dir, parent;
};

/* One write of usage to the engine: of the volume and directories, or of limits. */
struct usage_write {
	bool begun; /* and not confirmed by the engine */
	char *mark; /* identifies the write when it is repeated; NULL without a session */
	int64_t space, inodes;
	struct cfs_usage_dir *dirs;
	size_t n_dirs;
	struct cfs_quota *deltas;
	size_t n_deltas;
};

/* usage.c: volume and directory usage of engines that do not write it themselves */
struct cfs_usage_batch {
	pthread_mutex_t lock;	/* protects all of it */
	struct cfs_inomap dirs; /* of struct cfs_usage_dir */
	int64_t space, inodes;
};

struct cfs_quotas {
	struct cfs_engine *eng;
	const char *session; /* its info, or NULL */
	struct cfs_volume_limits limits;
	_Atomic int64_t base_space, base_inodes;
	_Atomic int64_t delta_space, delta_inodes;
	_Atomic int64_t flushed_space, flushed_inodes; /* the part of delta that has been written */
	_Atomic uint64_t begun, ended;		       /* engine calls that change usage */
	_Atomic bool on_dirs, on_owners;
	_Atomic int64_t reserved_space, reserved_inodes; /* of the volume */
	_Atomic size_t n_reserving;
	struct cfs_usage_batch batch;

	struct usage_write write; /* used by the thread that has set `flushing` */

	pthread_mutex_t lock; /* protects the rest */
	bool flushing;	      /* one thread at a time writes usage or reads the limits */
	pthread_cond_t flushed;
	struct limit *v; /* sorted by kind and key */
	size_t n;
	struct parent_slot *parents; /* a direct-mapped cache, NULL until needed */
	struct file_reservation *files[FILE_BUCKETS];
};

void cfs_quotas_add_scoped(struct cfs_quotas *q, const struct cfs_ctx *ctx, cfs_ino_t dir,
			   int64_t space, int64_t inodes);
/* quota.c */
/* With the lock held. */
struct limit *cfs_quotas_find(struct cfs_quotas *q, enum cfs_quota_kind kind, uint64_t key);
bool cfs_quotas_limited(struct cfs_quotas *q);
/* As before, or the counters of the volume may end when it grows by that. */
bool cfs_quotas_may_refuse(struct cfs_quotas *q, int64_t space);
/* For growth by that: reads what other mounts have counted, if it may be much. */
int cfs_quotas_look(struct cfs_quotas *q, const struct cfs_ctx *ctx, int64_t space);
/* As cfs_quotas_scopes, of all directories that have an entry of the file. */
int cfs_quotas_file_scopes(struct cfs_quotas *q, const struct cfs_ctx *ctx, cfs_ino_t ino,
			   const struct cfs_attr *attr, struct scopes *ret);
/* As cfs_quotas_check, for a reservation that is not made; the first one with the lock held. */
int cfs_quotas_check_locked(struct cfs_quotas *q, const struct cfs_reservation *r);
int cfs_quotas_check_now(struct cfs_quotas *q, const struct cfs_reservation *r);

/* reserve.c; with the lock held */
/* Adds to the reserved space and inodes of its scopes. */
void cfs_quotas_add_reserved(struct cfs_quotas *q, const struct cfs_reservation *r, int64_t space,
			     int64_t inodes);

/* file-reserve.c */
int64_t cfs_quotas_file_reserved(struct cfs_quotas *q, cfs_ino_t ino);
/* With the lock held: reduces the space reserved for the file, to zero at most. */
void cfs_quotas_use_reserved(struct cfs_quotas *q, cfs_ino_t ino, int64_t space);
void cfs_quotas_drop_files(struct cfs_quotas *q);

/* usage.c */
void cfs_usage_batch_init(struct cfs_usage_batch *b);
void cfs_usage_batch_destroy(struct cfs_usage_batch *b);
void cfs_usage_batch_add(struct cfs_usage_batch *b, const struct cfs_usage *u);
/* Empties the batch. Returns the number of directories; the caller frees *ret. */
size_t cfs_usage_batch_take(struct cfs_usage_batch *b, int64_t *ret_space, int64_t *ret_inodes,
			    struct cfs_usage_dir **ret);

/* flush.c */
/* Waits until no other flush or load runs. */
int cfs_quotas_begin_flush(struct cfs_quotas *q, cfs_deadline_t deadline);
void cfs_quotas_end_flush(struct cfs_quotas *q);
/* Sends q->write, if it has begun. After an error the next flush sends it again. */
int cfs_quotas_write(struct cfs_quotas *q, const struct cfs_ctx *ctx);
void cfs_quotas_drop_write(struct cfs_quotas *q);

#endif
