/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clocks and deadlines. A deadline is a point on CLOCK_MONOTONIC in milliseconds; every wait in
 * cachefs takes one.
 */
#ifndef CFS_CLOCK_H
#define CFS_CLOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

typedef uint64_t cfs_deadline_t; /* CLOCK_MONOTONIC, ms */

uint64_t cfs_now_ms(void);	/* CLOCK_MONOTONIC */
uint64_t cfs_now_ns(void);	/* CLOCK_MONOTONIC */
uint64_t cfs_boot_ms(void);	/* CLOCK_BOOTTIME, which counts the time of suspension */
struct timespec cfs_wall(void); /* CLOCK_REALTIME */
int64_t cfs_wall_s(void);	/* CLOCK_REALTIME, seconds */

static inline cfs_deadline_t cfs_deadline_in(uint64_t timeout_ms)
{
	return cfs_now_ms() + timeout_ms;
}

static inline cfs_deadline_t cfs_deadline_min(cfs_deadline_t a, cfs_deadline_t b)
{
	return a < b ? a : b;
}

/* 0 when passed. */
uint64_t cfs_deadline_left_ms(cfs_deadline_t deadline);
bool cfs_deadline_passed(cfs_deadline_t deadline);

/* Condition variables that cfs_cond_wait() may wait on: they must run on CLOCK_MONOTONIC. */
int cfs_cond_init(pthread_cond_t *cond);
/* 0 when signalled (or spuriously), -ETIMEDOUT when the deadline has passed. */
int cfs_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, cfs_deadline_t deadline);

void cfs_sleep_until(cfs_deadline_t when);

/*
 * How long to pause before try number `attempt` (0, 1, ...) of something: base_ms doubled per attempt
 * up to max_ms, with full jitter.
 */
uint64_t cfs_backoff_ms(unsigned attempt, unsigned base_ms, unsigned max_ms);
/* Sleeps for that long, never past the deadline. False when the deadline has passed. */
bool cfs_backoff(unsigned attempt, unsigned base_ms, unsigned max_ms, cfs_deadline_t deadline);

/* Thread-safe, not for secrets. */
uint64_t cfs_random_u64(void);

static inline int cfs_timespec_cmp(struct timespec a, struct timespec b)
{
	if (a.tv_sec != b.tv_sec)
		return a.tv_sec < b.tv_sec ? -1 : 1;
	return (a.tv_nsec > b.tv_nsec) - (a.tv_nsec < b.tv_nsec);
}

#endif
