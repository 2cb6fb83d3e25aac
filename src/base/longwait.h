/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a thread may begin to wait for what is far away, which may take long. Calls that ask say
 * so; in a thread that may not they end with -EBUSY, and are made again by one that may.
 */
#ifndef CFS_LONGWAIT_H
#define CFS_LONGWAIT_H

#include <stdbool.h>

/* For this thread, until it is set again; `may` takes no lock but leaves. NULL: it may. */
void cfs_long_wait_set(bool (*may)(void *arg), void *arg);
bool cfs_long_wait_may(void);

/*
 * For this thread, until it is set again: what it calls has ended with -EBUSY before, and has been
 * counted and judged then.
 */
void cfs_long_wait_repeat(bool repeat);
bool cfs_long_wait_repeats(void);

#endif
