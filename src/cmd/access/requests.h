/* SPDX-License-Identifier: Apache-2.0 */
/* Shows the requests of a mount process, read from its memory: the process need not answer. */
#ifndef CFS_CMD_REQUESTS_H
#define CFS_CMD_REQUESTS_H

#include <stdio.h>
#include <sys/types.h>

/*
 * The process that serves the mount whose device has that number (struct mounted), as its memory
 * says. 0: there is none that the caller may inspect.
 */
pid_t requests_find_process(unsigned dev_minor);
/* Threads that wait for an answer of this mount: at most `max` numbers. 0: none, or not known. */
size_t requests_callers(pid_t pid, pid_t *ret, size_t max);
/*
 * Prints one line for each request in flight, oldest first, and one for each other thread that
 * waits. Negative errno: the process has another version, or belongs to another user.
 */
int requests_print(pid_t pid, FILE *out);
/* The last log lines of the processes of this mount, oldest first. */
int requests_print_log(pid_t pid, FILE *out);
/*
 * Prints the agreement of mount and kernel in FUSE_INIT. -ENOENT: the mount has no supervisor,
 * .stats has the numbers.
 */
int requests_print_agreement(pid_t pid, FILE *out);

#endif
