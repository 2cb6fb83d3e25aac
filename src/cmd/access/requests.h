/* SPDX-License-Identifier: Apache-2.0 */
/* What the threads of a mount process are doing, read from its memory: it need not answer. */
#ifndef CFS_CMD_REQUESTS_H
#define CFS_CMD_REQUESTS_H

#include <stdio.h>
#include <sys/types.h>

/*
 * The process that serves the mount at `point`, found by its arguments and its memory; 0: there is
 * none that we may look at.
 */
pid_t requests_find_process(const char *point);
/*
 * A line for each request in flight, oldest first, and for each other thread that waits for
 * something. Negative errno: the process is of another version, or not ours to look at.
 */
int requests_print(pid_t pid, FILE *out);
/* The last lines that the processes of its mount have logged, the oldest first. */
int requests_print_log(pid_t pid, FILE *out);

#endif
