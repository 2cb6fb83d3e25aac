/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The channel over io_uring (Linux 6.14): requests come through queues, one for each possible CPU.
 * The kernel puts a request into the queue of the CPU on which its caller runs. There the request
 * takes an entry: two buffers of this process. The answer is written into the same buffers. Handing
 * it over also makes the entry available for the next request, in one system call. FUSE_INIT,
 * INTERRUPT and notifications stay on the device. So does FORGET, except that of a listing's entry,
 * which comes through the ring and wants an answer.
 *
 * Each thread of the ring has one entry and an io_uring of its own. It carries a request out
 * itself, and hands the answer over when it comes back for the next one. So a handler that blocks
 * occupies one of the `depth` entries of a queue. The kernel prefers the entry that was handed over
 * last: the other threads sleep while one is enough. An entry that waits for requests cannot be
 * taken back.
 *
 * A request whose answer comes from another thread (a wait for a file lock) may have no deadline.
 * Its entry is parked: it does not count for `depth`, and the queue gets one more entry. The
 * entry's own thread waits for the answer and hands it over.
 *
 * A thread may be busy elsewhere when the answer that it has to hand over is there. After a few
 * milliseconds a new thread gets the entry and hands the answer over.
 */
#ifndef CFS_FUSE_RING_H
#define CFS_FUSE_RING_H

#include <sys/types.h>

#include "channel.h"

/* A switch of the kernel for connections that are made while it is on. */
#define CFS_RING_PARAMETER "/sys/module/fuse/parameters/enable_uring"
#define RING_POSSIBLE	   "/sys/devices/system/cpu/possible"

struct cfs_ring;

struct cfs_ring_conf {
	struct cfs_channel *device; /* borrowed; for what stays on the device */
	int fd;			    /* of the device; borrowed */
	unsigned depth;		    /* threads and entries of a queue */
	unsigned orphans; /* threads at most whose entry another one has got, in all queues */
	/* Carries out a request, on the thread of the ring at that place (ring_request()). */
	void (*serve)(void *arg, struct cfs_request *rq, unsigned place);
	/*
	 * The connection has ended (error 0), or the ring has failed and the mount must end. Called
	 * on a thread of the ring, perhaps more than once.
	 */
	void (*ended)(void *arg, int error);
	unsigned parked; /* requests at most that other threads answer, in all queues */
	/*
	 * Starts a child without descriptors that makes one request to the mount on this CPU and
	 * ends. Negative: there is none.
	 */
	pid_t (*nudge)(void *arg, unsigned cpu);
	void *arg;
};

/* Binds the calling thread to that CPU, if the kernel allows it. */
void ring_pin(unsigned cpu);
bool ring_is_built(void);
/* Whether the kernel offers rings to new mounts (ring-message.c). */
bool ring_is_switched_on(void);
/*
 * Queues of a ring on this machine, one per possible CPU (ring-message.c). 0: not known. With fewer
 * than the kernel has, it would hold back all requests for ever; not every libc counts the CPUs
 * that can be added.
 */
unsigned ring_queues(void);
/*
 * Checks that this process can have a ring, and prepares it, before the kernel is told to use it.
 * why: one line, on failure. -EOPNOTSUPP: this kernel or this build has none, or it is switched
 * off.
 */
int ring_create(const struct cfs_ring_conf *conf, struct cfs_ring **ret, char why[200]);
struct cfs_channel *ring_channel(struct cfs_ring *r);
/*
 * Starts the threads, once the kernel has the answer to FUSE_INIT; until then it holds requests
 * back. payload: bytes of the largest request or answer. After a failure the mount ends
 * (conf.ended), or the caller ends it or calls ring_refuse().
 */
int ring_start(struct cfs_ring *r, size_t payload);
/* For a ring that has not started: the kernel uses the device, or the mount ends (conf.ended). */
void ring_refuse(struct cfs_ring *r);
/* The id of the unanswered request with that number. None of the ring: an id of the device. */
struct cfs_request_id ring_find(struct cfs_ring *r, uint64_t unique);
/* The request that the thread at this place is carrying out. */
const struct cfs_request *ring_request(const struct cfs_ring *r, unsigned place);
/*
 * Ends the threads, each after its request. Answers of other threads are not waited for once the
 * connection has ended. r may be NULL.
 */
void ring_stop(struct cfs_ring *r);
/* After ring_stop(). r may be NULL. */
void ring_destroy(struct cfs_ring *r);

#endif
