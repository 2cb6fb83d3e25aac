/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the work of a thread is still wanted. A long call checks this now and then, and ends with
 * -ECANCELED; each such call says so.
 */
#ifndef CFS_UNWANTED_H
#define CFS_UNWANTED_H

#include <stdbool.h>

#include "clock.h"

/* Sets the check of this thread, until it is set again. NULL: always wanted. */
void cfs_unwanted_set(bool (*is_unwanted)(void *arg), void *arg);
/* The check of this thread, to be set in threads that work for it. */
void cfs_unwanted_get(bool (**ret_is_unwanted)(void *arg), void **ret_arg);
bool cfs_unwanted(void);

/* When a wait until `until` must be interrupted for the next check. */
cfs_deadline_t cfs_unwanted_next(cfs_deadline_t until);
/*
 * As cfs_cond_wait(), but ends with -ECANCELED when the work is not wanted, and now and then with 0 for
 * no reason. The lock is not held during the check.
 */
int cfs_unwanted_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, cfs_deadline_t deadline);
/* Sleeps until then. False as soon as the work is not wanted. */
bool cfs_unwanted_sleep(cfs_deadline_t until);

#endif
