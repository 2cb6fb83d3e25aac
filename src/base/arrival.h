/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Progress of transfers from object storage: when bytes last arrived in any thread of the process,
 * which tells whether fetches of a block make progress or hang; how far the transfer of one thread
 * is, for other threads; and how long it has been silent, for its caller.
 */
#ifndef CFS_ARRIVAL_H
#define CFS_ARRIVAL_H

#include <stdatomic.h>
#include <stdint.h>

/* A transfer: its thread writes, others read. All 0: it has not begun. */
struct cfs_arrival {
	_Atomic uint64_t start_ms; /* as cfs_now_ms() */
	_Atomic uint64_t got, size;
};

/* The transfers of this thread begin and are noted in *a, until it is set again. NULL: nowhere. */
void cfs_arrival_follow(struct cfs_arrival *a);
/* Bytes have arrived; got: of the transfer so far, size: all of it, 0: unknown. */
void cfs_arrival_note(uint64_t got, uint64_t size);
/* As cfs_now_ms(); 0: none yet. */
uint64_t cfs_arrival_last_ms(void);
/* The time until the transfer ends at its rate so far; 0: unknown. */
uint64_t cfs_arrival_left_ms(const struct cfs_arrival *a);

/* Sets the listener of this thread to silence, until it is set again. NULL: none. */
void cfs_silence_listen(void (*hear)(void *arg, uint64_t silent_ms), void *arg);
/* Called repeatedly by the driver of a transfer while no byte comes or goes. */
void cfs_silence_note(uint64_t silent_ms);

#endif
