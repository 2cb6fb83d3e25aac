/* SPDX-License-Identifier: Apache-2.0 */
/* Going to the background with a report: the parent returns when the child says how it went. */
#ifndef CFS_CMD_DAEMON_H
#define CFS_CMD_DAEMON_H

#include <stdint.h>

/*
 * Forks. In the child returns 0 and *ret_fd, to be given to daemon_ready or daemon_failed once.
 * In the parent returns only after that, with a value > 0: 1 + the child's exit status; when the
 * child has said nothing by the timeout it is killed, the reason printed, and 1 + 32 returned.
 */
int daemon_fork(uint64_t timeout_ms, int *ret_fd);
/*
 * Leaves the terminal, and the directory and process group that it was started in. Not before the
 * mount is there: below an automount of systemd, nobody but the manager's own group, to which
 * mount(8) belongs there, reaches the mount point (autofs: its oz_mode).
 */
void daemon_detach(void);
/* The service is up: detaches. The parent prints the note, if there is one. */
void daemon_ready(int fd, const char *note);
/* The parent prints the reason and exits with `status`. */
void daemon_failed(int fd, int status, const char *reason);

#endif
