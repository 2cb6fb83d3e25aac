/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks whether the mount answers. A separate process asks through the kernel, as an application
 * would, and may hang in the mount; callers wait for a limited time.
 */
#ifndef CFS_CMD_HEALTH_H
#define CFS_CMD_HEALTH_H

#include <stdbool.h>

#define HEALTH_ANSWER_MS 2000

/* First argument of the process that asks; the second is the mount. Not a command for users. */
#define HEALTH_ASKER "ask-mount"

struct health;

/* dir is borrowed. */
int health_start(const char *dir, struct health **ret);
/*
 * True when a statfs of dir returns within HEALTH_ANSWER_MS and shows a FUSE mount. Any thread.
 * Changes are logged, once it was true for the first time.
 */
bool health_ask(struct health *h);
/* Called when no thread asks any more. NULL is fine. */
void health_stop(struct health *h);
/*
 * The process that asks: answers each byte on its stdin, a socket, with a byte that says whether
 * dir is a FUSE mount that answers. Returns the exit status.
 */
int health_ask_for(const char *dir);

#endif
