/* SPDX-License-Identifier: Apache-2.0 */
/* The cleanup attribute for the owners that are common enough to deserve it. */
#ifndef CFS_CLEANUP_H
#define CFS_CLEANUP_H

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static inline void cfs_freep(void *p)
{
	free(*(void **)p);
}

static inline void cfs_closep(int *fd)
{
	if (*fd >= 0)
		close(*fd);
}

#define cfs_auto_free  __attribute__((cleanup(cfs_freep)))
#define cfs_auto_close __attribute__((cleanup(cfs_closep)))

static inline pthread_mutex_t *cfs_lock(pthread_mutex_t *lock)
{
	pthread_mutex_lock(lock);
	return lock;
}

static inline void cfs_unlockp(pthread_mutex_t **lock)
{
	pthread_mutex_unlock(*lock);
}

/*
 * Holds the lock to the end of the block, and stands last in its declarations. A return computes its
 * value under the lock.
 */
#define CFS_LOCK_GUARD(lock)                                                                       \
	pthread_mutex_t *cfs_guard __attribute__((cleanup(cfs_unlockp), unused)) = cfs_lock(lock)

#endif
