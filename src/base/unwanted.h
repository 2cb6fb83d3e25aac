/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether anybody still wants what a thread is doing. A long call asks now and then and ends with
 * -ECANCELED; which calls do is theirs to say.
 */
#ifndef CFS_UNWANTED_H
#define CFS_UNWANTED_H

#include <stdbool.h>

/* For this thread, until it is set again. NULL: it is wanted. */
void cfs_unwanted_set(bool (*is_unwanted)(void *arg), void *arg);
bool cfs_unwanted(void);

#endif
