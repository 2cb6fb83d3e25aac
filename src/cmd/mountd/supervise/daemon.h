/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts a background process that reports its success: the parent returns when the child has
 * reported.
 *
 * Whether the child goes on is decided once, by the first of two: the parent, when its time is over
 * or it is interrupted, or the child, before it does something irreversible. The decision is in
 * shared memory, so both know it at once. The parent never ends a child that goes on, and a child
 * that is given up leaves everything unchanged.
 */
#ifndef CFS_CMD_DAEMON_H
#define CFS_CMD_DAEMON_H

#include <stdbool.h>
#include <stdint.h>

/* There is one in a process. */
struct daemon;

/*
 * Forks. In the child returns 0 and *ret, which must be passed to daemon_ready or daemon_failed
 * once. In the parent returns a value > 0 after that call: 1 + the child's exit status. If the
 * child has not decided to go on at the timeout, or at a SIGINT or SIGTERM, the parent ends it,
 * prints the reason, and returns 1 + 32, or 1 + the status of an interruption. If the child has
 * decided to go on, the parent waits for its report.
 */
int daemon_fork(uint64_t timeout_ms, struct daemon **ret);
/* Closes the copy in a further child, which would otherwise keep the parent waiting. */
void daemon_close(struct daemon *d);
/*
 * Decides that the child goes on. False: the parent has given it up, and its SIGTERM is on the way.
 */
bool daemon_keep(struct daemon *d);
/*
 * Leaves the terminal, the directory and the process group of the caller. Only after the mount is
 * there: below an automount of systemd, only the manager's own group, to which mount(8) belongs
 * there, reaches the mount point (autofs: its oz_mode).
 */
void daemon_detach(void);
/* Reports success and detaches. The parent prints the note, if there is one. */
void daemon_ready(struct daemon *d, const char *note);
/* Reports failure. The parent prints the reason and exits with `status`. */
void daemon_failed(struct daemon *d, int status, const char *reason);

#endif
