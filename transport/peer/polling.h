/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a thread polls for its read by RDMA before it sleeps. The time adapts to the connection.
 *
 * Polling saves two wake-ups (the loop's and the thread's), which take longer than a small read on a
 * fast network. It costs processor time. The budget of a read is twice the mean time of the reads that
 * ended while their thread polled, between CFS_POLL_MIN_NS and CFS_POLL_MAX_NS. A read that does not
 * end in its budget halves the budget. Below CFS_POLL_MIN_NS polling rests: reads sleep at once,
 * except one of CFS_POLL_REST, which tries again. Each failed trial doubles the rest, up to
 * CFS_POLL_REST_MAX reads. So a connection for which polling never helps costs four attempts, and
 * then less than 1 us of processor time per read.
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
	uint32_t budget_ns; /* 0: polling rests */
	uint32_t mean_ns;   /* of reads that ended while polled for; 0: none yet */
	unsigned rest;	    /* reads until the next trial */
	unsigned next_rest; /* after the next failed trial */
};

void cfs_polling_init(struct cfs_polling *p);
/* The budget of a read, from the time at which it is posted; 0: its thread sleeps. */
uint32_t cfs_polling_begin(struct cfs_polling *p);
/* The read ended so long after it was posted, while its thread polled. */
void cfs_polling_won(struct cfs_polling *p, uint64_t ns);
/* The read did not end in its budget. */
void cfs_polling_lost(struct cfs_polling *p);
/* Threads that may poll at a time on a machine with so many processors: half as many, 1 to 4. */
unsigned cfs_polling_threads(long processors);

#endif
