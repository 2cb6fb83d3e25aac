/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The would-block hook: whether a thread may begin a wait for remote data, which may take long.
 * Calls that ask it say so. In a thread that may not wait they end with -EBUSY, and are repeated by
 * a thread that may.
 */
#ifndef CFS_WOULDBLOCK_H
#define CFS_WOULDBLOCK_H

#include <stdbool.h>

/*
 * Sets the hook of this thread, until it is set again; `may` takes no lock but leaves. NULL: it may
 * wait.
 */
void cfs_would_block_hook(bool (*may)(void *arg), void *arg);
bool cfs_may_block(void);

/*
 * Marks calls of this thread as repeated, until it is set again: they ended with -EBUSY before, and
 * were counted and judged then.
 */
void cfs_set_repeated(bool repeat);
bool cfs_is_repeated(void);

#endif
