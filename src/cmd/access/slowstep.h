/* SPDX-License-Identifier: Apache-2.0 */
/* A slow step says what it waits for, so that it is not mistaken for a hang. */
#ifndef CFS_CMD_SLOWSTEP_H
#define CFS_CMD_SLOWSTEP_H

#include <stdint.h>

#define SLOW_STEP_MS 1500

struct slow_step;

/*
 * If slow_step_end() is not called within SLOW_STEP_MS, stderr is told once that `what` is waited
 * for and how long that may take, at most max_ms from now. `what` is copied, with secrets of URLs
 * masked. NULL: no message.
 */
struct slow_step *slow_step_begin(const char *what, uint64_t max_ms);
void slow_step_end(struct slow_step *s); /* NULL is fine */

#endif
