/* SPDX-License-Identifier: Apache-2.0 */
/* A slow step says what it waits for, so that it is not mistaken for a hang. */
#ifndef CFS_CMD_PATIENCE_H
#define CFS_CMD_PATIENCE_H

#include <stdint.h>

#define PATIENCE_MS 1500

struct patience;

/*
 * If patience_end() is not called within PATIENCE_MS, stderr is told once that `what` is waited for
 * and how long that may take, at most max_ms from now. `what` is copied, with secrets of URLs
 * masked. NULL: no message.
 */
struct patience *patience_begin(const char *what, uint64_t max_ms);
void patience_end(struct patience *p); /* NULL is fine */

#endif
