/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last lines of the log, of all processes that share it by fork(), in shared memory of a fixed
 * size: a memfd named CFS_LOGRING_NAME, which another process may read through /proc/PID/fd, also
 * when none of them answers.
 */
#ifndef CFS_LOGRING_H
#define CFS_LOGRING_H

#include <stdio.h>

#define CFS_LOGRING_NAME  "cachefs-log"
#define CFS_LOGRING_LINES 512
#define CFS_LOGRING_TEXT  496 /* longer lines are cut */

/* Once, before other threads and the fork() of those that are to share it. -errno. */
int cfs_logring_create(void);
/* Without a ring it does nothing. Any thread; takes no lock. */
void cfs_logring_add(const char *line);
/* Prints the oldest line first. fd: the ring of another process. -EPROTO: it has another version. */
int cfs_logring_print(int fd, FILE *out);

#endif
