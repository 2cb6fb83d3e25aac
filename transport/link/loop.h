/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An event loop: one thread with one io_uring. The thread waits in the ring only. Calls that may wait
 * for a disk run on the ring's worker threads.
 */
#ifndef CFS_TRANSPORT_LOOP_H
#define CFS_TRANSPORT_LOOP_H

#include <liburing.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <urcu/compiler.h> /* caa_container_of */

#include "base/clock.h"

#define CFS_LOOP_SCRATCH (256u << 10)

/* An operation of the ring; must stay valid until fn has run. */
struct cfs_op {
	void (*fn)(struct cfs_op *op, int res);
};

/* A call that the thread is to run; embedded. One that is queued already is not queued twice. */
struct cfs_work {
	void (*fn)(struct cfs_work *w);
	struct cfs_work *next;
	bool queued;
};

struct cfs_loop {
	struct io_uring ring;
	pthread_t thread;
	uint8_t *scratch;	   /* CFS_LOOP_SCRATCH bytes that stay in the CPU's cache */
	uint64_t now_ms;	   /* when it last began a round, or had waited */
	_Atomic uint64_t awake_ms; /* when its round began; 0: it waits. Set to 0 under the lock */
	_Atomic uint64_t late_ms;  /* sum of the times for which the thread was kept from running */
	_Atomic int idle;	   /* ticks are rare, so a new operation must wake the loop */
	_Atomic unsigned touched;  /* counts started operations */
	uint64_t busy_until_ms;
	unsigned ops;  /* under way in the ring */
	unsigned held; /* operations outside the ring that keep the thread running */

	/* The callbacks of its one user. tick returns true to be called again soon. */
	bool (*tick)(void *arg);
	void (*flush)(void *arg);    /* end of a round, before it waits */
	bool (*has_more)(void *arg); /* the next round must not wait */
	void *arg;

	struct cfs_op wake_op;
	int wake_fd;
	uint64_t wake_value;

	pthread_mutex_t lock; /* of the queue; innermost */
	struct cfs_work *first, **last;
	bool woken;
	bool stop;

	/* Start and end */
	pthread_cond_t cond;
	int started; /* 1: running, < 0: failed */
	/* Under the lock. */
	bool ended;
	bool calling; /* in a cfs_loop_call_begin() section */
	bool orphan;  /* the stopper has given up waiting for the end */
	void (*orphaned)(void *arg);
};

#define CFS_LOOP_TICK_MS 20
#define CFS_LOOP_SOON_MS 1

/* The caller has set tick, flush, has_more and arg; all else is 0. -ENOSYS, -EPERM: no io_uring here. */
int cfs_loop_start(struct cfs_loop *loop);
/*
 * Ends the thread when no operation is under way any more. -ETIMEDOUT: the thread continues until
 * then, and calls orphaned at its end, which may free the loop. Never returns within a
 * cfs_loop_call_begin() section.
 */
int cfs_loop_stop(struct cfs_loop *loop, cfs_deadline_t deadline, void (*orphaned)(void *arg));

/* Queues w for the loop. Any thread. */
void cfs_loop_run(struct cfs_loop *loop, struct cfs_work *w);
/* Makes the loop tick soon. */
void cfs_loop_wake(struct cfs_loop *loop);
/* Reports an operation with a deadline, so that ticks are frequent. Any thread. */
static inline void cfs_loop_touch(struct cfs_loop *loop)
{
	atomic_fetch_add(&loop->touched, 1);
	if (atomic_load(&loop->idle))
		cfs_loop_wake(loop);
}
/*
 * On the loop's thread: a clock that does not count the times in which the thread could not run. For
 * deadlines of things whose end only this thread can notice.
 */
static inline uint64_t cfs_loop_ran_ms(const struct cfs_loop *loop)
{
	return loop->now_ms - atomic_load_explicit(&loop->late_ms, memory_order_relaxed);
}
static inline bool cfs_loop_is_self(struct cfs_loop *loop)
{
	return pthread_equal(loop->thread, pthread_self());
}

/*
 * On the loop's thread, around a callback into an object that may be freed after cfs_loop_stop().
 * False: cfs_loop_stop() has timed out, and the object may be gone. The callback must not wait.
 */
bool cfs_loop_call_begin(struct cfs_loop *loop);
void cfs_loop_call_end(struct cfs_loop *loop);

/*
 * The thread has just begun a round: what is queued for it is done soon, and without a wake-up.
 * Any thread.
 */
static inline bool cfs_loop_is_awake(const struct cfs_loop *loop)
{
	uint64_t since_ms = atomic_load_explicit(&loop->awake_ms, memory_order_relaxed);

	return since_ms > 0 && cfs_now_ms() - since_ms <= CFS_LOOP_SOON_MS;
}

/* These are for the loop's thread. Never NULL: a request, whose completion calls op->fn (NULL: none). */
struct io_uring_sqe *cfs_loop_sqe(struct cfs_loop *loop, struct cfs_op *op);
void cfs_loop_poll(struct cfs_loop *loop, int fd, unsigned mask, struct cfs_op *op);
/* Makes op end soon. */
void cfs_loop_cancel(struct cfs_loop *loop, struct cfs_op *op);

#endif
