/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The would-block hook: whether a thread may begin a wait for remote data, which may take long.
 * Calls that ask it say so. In a thread that may not wait they end with -EBUSY, and are repeated by
 * a thread that may.
 */
#ifndef CFS_LONGWAIT_H
#define CFS_LONGWAIT_H

#include <stdbool.h>

/*
 * Sets the hook of this thread, until it is set again; `may` takes no lock but leaves. NULL: it may
 * wait.
 */
void cfs_long_wait_set(bool (*may)(void *arg), void *arg);
bool cfs_long_wait_may(void);

/*
 * Marks calls of this thread as repeated, until it is set again: they ended with -EBUSY before, and
 * were counted and judged then.
 */
void cfs_long_wait_repeat(bool repeat);
bool cfs_long_wait_repeats(void);

#endif
