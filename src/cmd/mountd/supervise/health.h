/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the mount answers. Asked of the kernel, the whole way that an application's call goes, by
 * a process that may hang in it; those who want to know wait for it only so long.
 */
#ifndef CFS_CMD_HEALTH_H
#define CFS_CMD_HEALTH_H

#include <stdbool.h>

#define HEALTH_ANSWER_MS 2000

/* The first argument of the process that asks, the second is the mount; no command for users. */
#define HEALTH_ASKER "ask-mount"

struct health;

/* dir is borrowed. */
int health_start(const char *dir, struct health **ret);
/*
 * True when a statfs of dir comes back within HEALTH_ANSWER_MS and is a FUSE mount. Any thread. The
 * log tells when that changes, once it was true for the first time.
 */
bool health_ask(struct health *h);
/* Nobody asks any more. NULL is fine. */
void health_stop(struct health *h);
/*
 * The life of the process that asks: answers each byte on its stdin, a socket, with one that says
 * whether dir is a FUSE mount that answers. Returns the exit status.
 */
int health_ask_for(const char *dir);

#endif
