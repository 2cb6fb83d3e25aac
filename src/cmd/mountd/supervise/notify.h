/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Telling the service manager that has started us: the protocol of sd_notify(3), one datagram of
 * "NAME=VALUE" lines per message to the unix socket that NOTIFY_SOCKET names.
 */
#ifndef CFS_CMD_NOTIFY_H
#define CFS_CMD_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

#include "cmd/mountd/supervise/health.h"

/*
 * Takes NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID out of the environment, so that no child
 * believes to be meant. use: this process (or a child that goes on as it) will tell. Once, while
 * there is one thread.
 */
void notify_init(bool use);
/* Somebody listens. */
bool notify_wanted(void);
/* How often the manager wants to hear that the mount is alive; 0: it does not. */
uint64_t notify_watchdog_ms(void);
/* The same, for who goes on with a mount whose process was told so. Before notify_start(). */
void notify_watchdog_every(uint64_t ms);
/* Lost when nobody takes it within a second. Any thread. */
__attribute__((format(printf, 1, 2))) void notify_send(const char *fmt, ...);

/*
 * Says that the mount is ready as soon as it answers, with `status`, and that it is alive as long
 * as it does, when the manager wants to know. Both borrowed. *ret is NULL when nobody listens.
 */
struct notify;
int notify_start(struct health *health, const char *status, struct notify **ret);
void notify_stop(struct notify *n); /* NULL is fine */

#endif
