/* SPDX-License-Identifier: Apache-2.0 */
/* A child process that is this program, executed anew. */
#ifndef CFS_CMD_RESPAWN_H
#define CFS_CMD_RESPAWN_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/clock.h"

/*
 * Runs the program of this process with argv. Its stdin is in, its stdout and stderr are out (-1:
 * /dev/null); it has no other descriptors. No memory of this process is copied. Of the environment,
 * which may have secrets, it gets only what the loader needs. 0 or a negative errno. Any thread.
 */
int respawn(char *const argv[], int in, int out, pid_t *ret);
/* Waits for a child. False when it has not ended by the deadline. */
bool reap_child(pid_t pid, cfs_deadline_t deadline);

#endif
