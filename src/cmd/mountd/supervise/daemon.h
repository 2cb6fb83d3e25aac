/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Going to the background with a report: the parent returns when the child says how it went.
 *
 * Whether the child goes on is decided once, by whoever is first: the parent, as its time is over
 * or it was interrupted, or the child, before it does what cannot be taken back. Both know at once
 * what was decided. So the parent never ends a child that goes on, and a child that is given up
 * leaves everything as it was.
 */
#ifndef CFS_CMD_DAEMON_H
#define CFS_CMD_DAEMON_H

#include <stdbool.h>
#include <stdint.h>

/* There is one in a process. */
struct daemon;

/*
 * Forks. In the child returns 0 and *ret, to be given to daemon_ready or daemon_failed once. In the
 * parent returns only after that, with a value > 0: 1 + the child's exit status. When the child has
 * not decided to go on by the timeout, or before a SIGINT or SIGTERM, it is ended, the reason
 * printed, and 1 + 32 or 1 + the status of an interruption returned; later its report is awaited.
 */
int daemon_fork(uint64_t timeout_ms, struct daemon **ret);
/* In the child, before its time. The copy that it inherits must not keep the parent waiting. */
void daemon_close(struct daemon *d);
/* The child goes on. False: the parent has decided otherwise, and its SIGTERM is on the way. */
bool daemon_keep(struct daemon *d);
/*
 * Leaves the terminal, and the directory and process group that it was started in. Not before the
 * mount is there: below an automount of systemd, nobody but the manager's own group, to which
 * mount(8) belongs there, reaches the mount point (autofs: its oz_mode).
 */
void daemon_detach(void);
/* The service is up: it goes on, and detaches. The parent prints the note, if there is one. */
void daemon_ready(struct daemon *d, const char *note);
/* The parent prints the reason and exits with `status`. */
void daemon_failed(struct daemon *d, int status, const char *reason);

#endif
