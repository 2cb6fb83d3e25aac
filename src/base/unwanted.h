/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the work of a thread is still wanted. A long call checks this now and then, and ends with
 * -ECANCELED; each such call says so.
 */
#ifndef CFS_UNWANTED_H
#define CFS_UNWANTED_H

#include <stdbool.h>

/* Sets the check of this thread, until it is set again. NULL: always wanted. */
void cfs_unwanted_set(bool (*is_unwanted)(void *arg), void *arg);
bool cfs_unwanted(void);

#endif
