/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hooks of a thread that reads. Waits for remote data may take long, and ask them; calls that do say
 * so.
 *
 * The would-block hook: whether the thread may begin such a wait. In a thread that may not, calls end
 * with -EBUSY, and are repeated by a thread that may. The abandoned hook: whether the caller of the
 * thread takes no answer, as it was killed or another process is to answer. Then the wait ends soon,
 * with any error.
 */
#ifndef CFS_WOULDBLOCK_H
#define CFS_WOULDBLOCK_H

#include <stdbool.h>

#include "clock.h"

/*
 * Sets the hook of this thread, until it is set again; `may` takes no lock but leaves. NULL: it may
 * wait.
 */
void cfs_would_block_hook(bool (*may)(void *arg), void *arg);
bool cfs_may_block(void);

/* The same for the abandoned hook. NULL: the caller waits for the answer. */
void cfs_abandoned_hook(bool (*is_abandoned)(void *arg), void *arg);
bool cfs_is_abandoned(void);
/* As cfs_deadline_min(until, the time at which a wait asks the hook again). */
cfs_deadline_t cfs_abandoned_next(cfs_deadline_t until);

/*
 * Marks calls of this thread as repeated, until it is set again: they ended with -EBUSY before, and
 * were counted and judged then.
 */
void cfs_set_repeated(bool repeat);
bool cfs_is_repeated(void);

#endif
