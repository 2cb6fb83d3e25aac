/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker pool: up to `max` threads, started on demand and kept, running jobs in order of
 * submission. The queue is bounded.
 */
#ifndef CFS_WORKERS_H
#define CFS_WORKERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <urcu/compiler.h> /* caa_container_of */

#include "clock.h"

struct cfs_workers;

/* Embedded in the caller's object; the pool never allocates per job. */
struct cfs_job {
	void (*run)(struct cfs_job *job);
	struct cfs_job *next; /* the pool's, while queued */
};

struct cfs_workers_stats {
	unsigned threads, busy;
	size_t queued;
	uint64_t done;
};

int cfs_workers_create(const char *name, unsigned max, size_t queue_limit,
		       struct cfs_workers **ret);
/* Runs what is queued, then joins. Jobs submitted meanwhile are refused with -ESHUTDOWN. */
void cfs_workers_destroy(struct cfs_workers *w);

/* Waits while the queue is full, -ETIMEDOUT at the deadline, -ESHUTDOWN when stopping. */
int cfs_workers_submit(struct cfs_workers *w, struct cfs_job *job, cfs_deadline_t deadline);
/* -EAGAIN when the queue is full. */
int cfs_workers_try_submit(struct cfs_workers *w, struct cfs_job *job);
/*
 * Starts a thread if there is none. From then on no job is refused for want of one, also where the
 * system gives this process no thread any more.
 */
int cfs_workers_prepare(struct cfs_workers *w);
/* Waits until nothing is queued or runs. -ETIMEDOUT at the deadline. */
int cfs_workers_drain(struct cfs_workers *w, cfs_deadline_t deadline);
/* True when the job was still queued: it will not run and belongs to the caller again. */
bool cfs_workers_cancel(struct cfs_workers *w, struct cfs_job *job);
/*
 * Abandons the worker of a job that hangs: another one may be started in its place. There are at
 * most as many replacements as the pool's maximum. A worker that returns after all stays.
 */
void cfs_workers_replace(struct cfs_workers *w);
/* At most as many as at the start. Jobs that run beyond a lower maximum end as they would. */
void cfs_workers_set_max(struct cfs_workers *w, unsigned max);
void cfs_workers_stats(struct cfs_workers *w, struct cfs_workers_stats *ret);

/*
 * A thread that calls run(arg) every period (with jitter of a tenth), and at once after kick.
 * stop waits for a running call to end.
 */
struct cfs_ticker;
/* The longest time between two calls: a period with its jitter. */
uint64_t cfs_ticker_longest_ms(uint64_t period_ms);
int cfs_ticker_start(const char *name, uint64_t period_ms, void (*run)(void *arg), void *arg,
		     struct cfs_ticker **ret);
void cfs_ticker_kick(struct cfs_ticker *t);
void cfs_ticker_stop(struct cfs_ticker *t);

#endif
