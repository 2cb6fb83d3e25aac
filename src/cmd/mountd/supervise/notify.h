/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports to the service manager by the protocol of sd_notify(3): one datagram of "NAME=VALUE"
 * lines per message to the unix socket that NOTIFY_SOCKET names.
 */
#ifndef CFS_CMD_NOTIFY_H
#define CFS_CMD_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

#include "cmd/mountd/supervise/health.h"

/*
 * Removes NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID from the environment, so that children do
 * not use them. use: this process (or a child that goes on as it) will report. Called once, while
 * there is one thread.
 */
void notify_init(bool use);
/* Whether there is a manager. */
bool notify_wanted(void);
/* The interval at which the manager expects a sign of life; 0: it expects none. */
uint64_t notify_watchdog_ms(void);
/* Sets that interval in a process that resumes the mount of another one. Before notify_start(). */
void notify_watchdog_every(uint64_t ms);
/* The message is dropped when it cannot be sent within a second. Any thread. */
__attribute__((format(printf, 1, 2))) void notify_send(const char *fmt, ...);

/*
 * Reports the mount as ready as soon as it answers, with `status`. Reports it as alive while it
 * answers, if the manager asks for that. Both borrowed. *ret is NULL without a manager.
 */
struct notify;
int notify_start(struct health *health, const char *status, struct notify **ret);
void notify_stop(struct notify *n); /* NULL is fine */

#endif
