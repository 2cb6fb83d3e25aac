/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When bytes of object storage came in last, in any thread of the process: whether those who fetch
 * a block make progress, or hang.
 */
#ifndef CFS_ARRIVAL_H
#define CFS_ARRIVAL_H

#include <stdint.h>

void cfs_arrival_note(void);
/* As cfs_now_ms(); 0: none yet. */
uint64_t cfs_arrival_last_ms(void);

#endif
