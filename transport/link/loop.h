/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An event loop: one thread with one io_uring. The thread waits only in the ring; calls that may wait
 * for a disk run on the ring's workers.
 */
#ifndef CFS_TRANSPORT_LOOP_H
#define CFS_TRANSPORT_LOOP_H

#include <liburing.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

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
	uint8_t *scratch;	  /* CFS_LOOP_SCRATCH bytes that stay in the CPU's cache */
	uint64_t now_ms;	  /* when it last began a round, or had waited */
	_Atomic uint64_t late_ms; /* sum of the times for which the thread was kept from running */
	_Atomic int idle;	  /* ticks are rare: starting an operation must wake the
				   * loop */
	_Atomic unsigned touched; /* counts started operations */
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

/* The caller has set tick, flush, has_more and arg. */
int cfs_loop_start(struct cfs_loop *loop);
/*
 * Runs until no operation is under way, then ends the thread. -ETIMEDOUT: the thread goes on until
 * then, and calls orphaned, which may free the loop. Never returns inside a cfs_loop_call_begin()
 * section.
 */
int cfs_loop_stop(struct cfs_loop *loop, cfs_deadline_t deadline, void (*orphaned)(void *arg));

/* May be called by any thread. */
void cfs_loop_run(struct cfs_loop *loop, struct cfs_work *w);
/* Makes the loop tick soon. */
void cfs_loop_wake(struct cfs_loop *loop);
/* Reports that an operation with a deadline was started. */
static inline void cfs_loop_touch(struct cfs_loop *loop)
{
	atomic_fetch_add(&loop->touched, 1);
	if (atomic_load(&loop->idle))
		cfs_loop_wake(loop);
}
/*
 * On the loop's thread: a clock that stands still while the thread is kept from running. It measures
 * how long something takes whose end only this thread can notice.
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
 * On the loop's thread, around a callback whose target lives only as long as the stopper waits.
 * False: the stopper has given up, and the target may be gone. The callback must not wait.
 */
bool cfs_loop_call_begin(struct cfs_loop *loop);
void cfs_loop_call_end(struct cfs_loop *loop);

/* On the loop's thread. Never NULL. */
struct io_uring_sqe *cfs_loop_sqe(struct cfs_loop *loop, struct cfs_op *op);
void cfs_loop_poll(struct cfs_loop *loop, int fd, unsigned mask, struct cfs_op *op);
/* Makes op end soon. */
void cfs_loop_cancel(struct cfs_loop *loop, struct cfs_op *op);

#endif
