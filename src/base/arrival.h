/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When bytes of object storage came in last, in any thread of the process: whether those who fetch
 * a block make progress, or hang. And how long the transfer of a thread has been silent, for those
 * who called for it.
 */
#ifndef CFS_ARRIVAL_H
#define CFS_ARRIVAL_H

#include <stdint.h>

void cfs_arrival_note(void);
/* As cfs_now_ms(); 0: none yet. */
uint64_t cfs_arrival_last_ms(void);

/* For this thread, until it is set again: `hear` is told of silence. NULL: nobody is. */
void cfs_silence_listen(void (*hear)(void *arg, uint64_t silent_ms), void *arg);
/* Said again and again by what drives a transfer, as long as nothing comes or goes. */
void cfs_silence_note(uint64_t silent_ms);

#endif
