/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands that make system calls on a mount. A thread whose request the mount has taken cannot be
 * killed, so such a command runs in a child. The process that the caller waits for only watches: it
 * asks the mount, and ends with a message when the mount is silent, however long the command takes
 * while it answers.
 */
#ifndef CFS_CMD_WATCH_H
#define CFS_CMD_WATCH_H

/* Forks. Returns -1 in the child; the exit status in the other process, when the child has ended. */
int watch_command(void);
/*
 * The child looks a path up, which has a deadline, until it names the mount on which it makes its
 * calls (NULL: on none), or another path.
 */
void watch_path(const char *path);
void watch_mount(const char *point);

#endif
