/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The locks that owners on this mount hold, as the engine has granted them. Engines cannot tell who
 * holds a BSD lock; and when a session has ended, only this list tells which owners have lost one.
 *
 * A lock is of one session (sid): one that was granted under the last session stays in the list
 * beside those of the next one, until cfs_held_forget().
 *
 * Any thread; no call waits for the engine. Without memory for an entry a lock is missing here, or
 * stays after its release: the first makes waiters poll, the second fails a handle after the end of
 * the session.
 */
#ifndef CFS_META_HELD_H
#define CFS_META_HELD_H

#include <cachefs/meta.h>
#include <pthread.h>

enum { HELD_BUCKETS = 4096 };

struct cfs_held {
	pthread_mutex_t lock; /* protects the lists; a leaf */
	struct held_lock *bucket[HELD_BUCKETS];
};

/* The owner and the kind of a lock. */
struct cfs_held_key {
	uint64_t sid;
	cfs_ino_t ino;
	uint64_t owner;
	bool posix;
};

void cfs_held_init(struct cfs_held *h);
void cfs_held_fini(struct cfs_held *h);
/* Applies what the owner was granted, or has given back (CFS_LOCK_NONE). BSD: the whole range. */
void cfs_held_apply(struct cfs_held *h, const struct cfs_held_key *k, const struct cfs_plock *lock);
/* The owner may have locks that it took through a previous process. */
void cfs_held_assume(struct cfs_held *h, const struct cfs_held_key *k);
/* The owner has a lock of this kind on the inode. */
bool cfs_held_any(struct cfs_held *h, const struct cfs_held_key *k);
/* Another owner of this session is known to have a BSD lock in conflict with one of this type. */
bool cfs_held_conflict(struct cfs_held *h, const struct cfs_held_key *k, enum cfs_lock_type type);
/* Drops the locks of a session. */
void cfs_held_forget(struct cfs_held *h, uint64_t sid);

#endif
