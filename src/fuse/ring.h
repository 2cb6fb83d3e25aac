/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The channel over io_uring (Linux 6.14): requests come through queues, one for each possible CPU.
 * The kernel puts a request into the queue of the CPU that asks, where it takes an entry: two
 * buffers of this process. The answer is written into the same buffers. Handing it over makes the
 * entry available for the next request, in the same system call. INTERRUPT and notifications stay on
 * the device, as do the first request and its answer. So does FORGET, but for one in a listing, which
 * wants an answer here.
 *
 * Each thread of the ring has one entry and an io_uring of its own. It carries a request out itself,
 * and hands the answer over when it comes back for the next one. So a handler that blocks holds up
 * one of the `depth` entries of a queue. The kernel prefers the entry that was handed over last: the
 * other threads sleep while one is enough. An entry that waits for requests cannot be taken back.
 *
 * A request that waits for a file lock has no deadline. While its thread waits for the answer of
 * another one, it does not count for `depth`, and the queue gets one more entry.
 *
 * Answers of other threads are handed over by the entry's own thread, which waits for them, or by
 * another one that gets the entry when its own is busy for longer.
 */
#ifndef CFS_FUSE_RING_H
#define CFS_FUSE_RING_H

#include <sys/types.h>

#include "channel.h"

/* A switch of the kernel for connections that are made while it is on. */
#define CFS_RING_PARAMETER "/sys/module/fuse/parameters/enable_uring"

struct cfs_ring;

struct cfs_ring_conf {
	struct cfs_channel *device; /* borrowed; for notifications, and requests that came by it */
	int fd;			    /* of the device; borrowed */
	unsigned depth;		    /* threads and entries of a queue */
	unsigned orphans;	    /* threads whose entry another one got, in all queues */
	/* Carries out a request, on a thread of the ring. place: the thread's, for ring_request(). */
	void (*serve)(void *arg, struct cfs_request *rq, unsigned place);
	/*
	 * The connection has ended (0), or the ring is of no more use and the mount must end. Called
	 * on a thread of the ring, perhaps more than once.
	 */
	void (*ended)(void *arg, int error);
	unsigned parked; /* requests at most that are answered by other threads, in all queues */
	/*
	 * Starts a child without descriptors that makes a request of the mount on this CPU, and ends
	 * with it. 0 or negative: there is none.
	 */
	pid_t (*nudge)(void *arg, unsigned cpu);
	void *arg;
};

/* Has the calling thread run on that CPU only, where that is possible. */
void ring_pin(unsigned cpu);
bool ring_is_built(void);
/* The kernel gives rings to mounts that are made now (ring-message.c). */
bool ring_is_switched_on(void);
/* Queues of this machine. */
unsigned ring_queues(void);
/*
 * Makes sure that a ring can be had, before the kernel is told to use it. A failure leaves one line
 * in why. -EOPNOTSUPP: this kernel or this build has none, or it is switched off.
 */
int ring_create(const struct cfs_ring_conf *conf, struct cfs_ring **ret, char why[200]);
struct cfs_channel *ring_channel(struct cfs_ring *r);
/*
 * Starts the threads, once the kernel has the answer to FUSE_INIT; until then it holds requests
 * back. payload: bytes of the largest request or answer. After a failure the kernel uses the device.
 */
int ring_start(struct cfs_ring *r, size_t payload);
/* The id of the request with that number, when it is not answered yet; else one of the device. */
struct cfs_request_id ring_find(struct cfs_ring *r, uint64_t unique);
/* The request that the thread at this place carries out. */
const struct cfs_request *ring_request(const struct cfs_ring *r, unsigned place);
/*
 * Ends the threads, after the requests that they carry out; answers without one are not waited for
 * when the connection has ended. r may be NULL.
 */
void ring_stop(struct cfs_ring *r);
/* After ring_stop(). r may be NULL. */
void ring_destroy(struct cfs_ring *r);

#endif
