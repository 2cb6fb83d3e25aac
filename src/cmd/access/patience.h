/* SPDX-License-Identifier: Apache-2.0 */
/* A step that may take long says what it waits for, before somebody takes it for hanging. */
#ifndef CFS_CMD_PATIENCE_H
#define CFS_CMD_PATIENCE_H

#include <stdint.h>

#define PATIENCE_MS 1500

struct patience;

/*
 * When patience_end() has not come after PATIENCE_MS, stderr is told once that `what` is waited for
 * and how long that may take, at most max_ms from here. what is copied, secrets of URLs are masked.
 * NULL: nothing will be said.
 */
struct patience *patience_begin(const char *what, uint64_t max_ms);
void patience_end(struct patience *p); /* NULL is fine */

#endif
