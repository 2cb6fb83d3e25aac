/* SPDX-License-Identifier: Apache-2.0 */
/* A command whose backend does not answer says what it waits for, while it waits. */
#ifndef CFS_CMD_WAITS_H
#define CFS_CMD_WAITS_H

#define WAITS_MS       3000
#define WAITS_AGAIN_MS 30000

struct waits;

/*
 * Until waits_end() stderr is told of a call of the metadata engine or the object store that has
 * waited for WAITS_MS, once per call and at most once in WAITS_AGAIN_MS. NULL: no messages.
 */
struct waits *waits_begin(void);
void waits_end(struct waits *w); /* NULL is fine */

#endif
