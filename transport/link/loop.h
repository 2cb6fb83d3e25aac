/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread with one ring. It waits only in the ring; whatever might wait for a disk is given to
 * the ring's own workers.
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

/* Something the ring does; must stay until fn has run. */
struct cfs_op {
	void (*fn)(struct cfs_op *op, int res);
};

/* Something to be run by the thread; embedded. Added again while queued: runs once. */
struct cfs_work {
	void (*fn)(struct cfs_work *w);
	struct cfs_work *next;
	bool queued;
};

struct cfs_loop {
	struct io_uring ring;
	pthread_t thread;
	uint8_t *scratch;	  /* CFS_LOOP_SCRATCH bytes that stay in the CPU's cache */
	uint64_t now_ms;	  /* when this round began */
	_Atomic int idle;	  /* ticks are far apart: whoever starts something must wake */
	_Atomic unsigned touched; /* by whoever starts something */
	uint64_t busy_until_ms;
	unsigned ops;  /* under way in the ring */
	unsigned held; /* other reasons not to end */

	/* The callbacks of its one user. tick: true when the next should come soon. */
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

	/* Start-up and end */
	pthread_cond_t cond;
	int started; /* 1: running, < 0: failed */
	/* Under the lock. */
	bool ended;
	bool calling; /* between cfs_loop_call_begin() and _end() */
	bool orphan;  /* nobody waits for the end any more */
	void (*orphaned)(void *arg);
};

#define CFS_LOOP_TICK_MS 20

/* tick, flush, has_more and arg are set. */
int cfs_loop_start(struct cfs_loop *loop);
/*
 * Runs until nothing is under way, then ends the thread. -ETIMEDOUT: it goes on until then, and
 * calls orphaned, which may free it. Returns in the middle of no cfs_loop_call_begin().
 */
int cfs_loop_stop(struct cfs_loop *loop, cfs_deadline_t deadline, void (*orphaned)(void *arg));

/* Any thread. */
void cfs_loop_run(struct cfs_loop *loop, struct cfs_work *w);
/* Makes it tick soon. */
void cfs_loop_wake(struct cfs_loop *loop);
/* Something with a deadline has been started. */
static inline void cfs_loop_touch(struct cfs_loop *loop)
{
	atomic_fetch_add(&loop->touched, 1);
	if (atomic_load(&loop->idle))
		cfs_loop_wake(loop);
}
static inline bool cfs_loop_is_self(struct cfs_loop *loop)
{
	return pthread_equal(loop->thread, pthread_self());
}

/*
 * The loop's thread, around a call of something that goes with whoever waits for the end. False:
 * nobody does, and it may be gone. The call must not wait.
 */
bool cfs_loop_call_begin(struct cfs_loop *loop);
void cfs_loop_call_end(struct cfs_loop *loop);

/* The loop's thread. Never NULL. */
struct io_uring_sqe *cfs_loop_sqe(struct cfs_loop *loop, struct cfs_op *op);
void cfs_loop_poll(struct cfs_loop *loop, int fd, unsigned mask, struct cfs_op *op);
/* Makes op end soon. */
void cfs_loop_cancel(struct cfs_loop *loop, struct cfs_op *op);

#endif
