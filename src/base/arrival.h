/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The time when bytes of object storage last arrived, in any thread of the process: it tells whether
 * fetches of a block make progress, or hang. And how long the transfer of a thread has been silent,
 * for its caller.
 */
#ifndef CFS_ARRIVAL_H
#define CFS_ARRIVAL_H

#include <stdint.h>

void cfs_arrival_note(void);
/* As cfs_now_ms(); 0: none yet. */
uint64_t cfs_arrival_last_ms(void);

/* Sets the listener of this thread to silence, until it is set again. NULL: none. */
void cfs_silence_listen(void (*hear)(void *arg, uint64_t silent_ms), void *arg);
/* Called repeatedly by the driver of a transfer while no byte comes or goes. */
void cfs_silence_note(uint64_t silent_ms);

#endif
