/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a thread polls for its read by RDMA before it sleeps: adapted to one connection.
 *
 * Polling saves two wake-ups (the loop, then the thread), which take longer than a small read on a
 * good network, and costs the processor that polls. So a thread polls for twice the mean time of the
 * reads that polling has got, between CFS_POLL_MIN_NS and CFS_POLL_MAX_NS. Each read that it has not
 * got halves that; below the least, reads sleep at once, and one of CFS_POLL_REST tries again, after
 * each failure one of twice as many, up to CFS_POLL_REST_MAX. A connection for which polling is
 * hopeless so costs four attempts at first, and less than 1 us of processor time for a read from
 * then on.
 *
 * No I/O, no clock. Threads: the caller's lock.
 */
#ifndef CFS_TRANSPORT_POLLING_H
#define CFS_TRANSPORT_POLLING_H

#include <stdint.h>

#define CFS_POLL_MIN_NS	  5000u
#define CFS_POLL_MAX_NS	  50000u
#define CFS_POLL_REST	  64u
#define CFS_POLL_REST_MAX 4096u

struct cfs_polling {
	uint32_t budget_ns; /* 0: it rests */
	uint32_t mean_ns;   /* of what polling has got; 0: nothing yet */
	unsigned rest;	    /* reads until it is tried again */
	unsigned next_rest; /* after the next failure of a trial */
};

void cfs_polling_init(struct cfs_polling *p);
/* How long the thread of a read may poll, from the time at which it was posted; 0: it sleeps. */
uint32_t cfs_polling_begin(struct cfs_polling *p);
/* The read was done so long after it was posted, while its thread polled. */
void cfs_polling_won(struct cfs_polling *p, uint64_t ns);
/* It was not done while its thread polled. */
void cfs_polling_lost(struct cfs_polling *p);
/* Threads that may poll at a time on a machine with so many processors: half of them, 1 to 4. */
unsigned cfs_polling_threads(long processors);

#endif
