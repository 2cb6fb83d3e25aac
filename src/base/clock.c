/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <sys/random.h>

#include "bytes.h"
#include "clock.h"

uint64_t cfs_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

uint64_t cfs_now_ms(void)
{
	return cfs_now_ns() / 1000000;
}

uint64_t cfs_boot_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_BOOTTIME, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

struct timespec cfs_wall(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return ts;
}

int64_t cfs_wall_s(void)
{
	return cfs_wall().tv_sec;
}

uint64_t cfs_deadline_left_ms(cfs_deadline_t deadline)
{
	uint64_t now = cfs_now_ms();

	return deadline > now ? deadline - now : 0;
}

bool cfs_deadline_passed(cfs_deadline_t deadline)
{
	return cfs_deadline_left_ms(deadline) == 0;
}

int cfs_cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t attr;
	int r;

	r = pthread_condattr_init(&attr);
	if (r)
		return -r;
	r = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	if (!r)
		r = pthread_cond_init(cond, &attr);
	pthread_condattr_destroy(&attr);
	return -r;
}

static struct timespec deadline_timespec(cfs_deadline_t deadline)
{
	return (struct timespec){.tv_sec = (time_t)(deadline / 1000),
				 .tv_nsec = (long)(deadline % 1000) * 1000000};
}

int cfs_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, cfs_deadline_t deadline)
{
	struct timespec ts = deadline_timespec(deadline);

	return -pthread_cond_timedwait(cond, lock, &ts);
}

void cfs_sleep_until(cfs_deadline_t when)
{
	struct timespec ts = deadline_timespec(when);

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
		;
}

uint64_t cfs_backoff_ms(unsigned attempt, unsigned base_ms, unsigned max_ms)
{
	uint64_t limit = CFS_MIN((uint64_t)base_ms << CFS_MIN(attempt, 31u), (uint64_t)max_ms);

	return cfs_random_u64() % (limit + 1);
}

bool cfs_backoff(unsigned attempt, unsigned base_ms, unsigned max_ms, cfs_deadline_t deadline)
{
	cfs_deadline_t until = cfs_deadline_in(cfs_backoff_ms(attempt, base_ms, max_ms));

	cfs_sleep_until(cfs_deadline_min(until, deadline));
	return !cfs_deadline_passed(deadline);
}

/* splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014). */
uint64_t cfs_random_u64(void)
{
	static _Thread_local uint64_t state;
	static _Thread_local bool seeded;
	uint64_t z;

	if (!seeded) {
		if (getrandom(&state, sizeof(state), GRND_NONBLOCK) != (ssize_t)sizeof(state))
			state = cfs_now_ns() ^ (uint64_t)(uintptr_t)&state;
		seeded = true;
	}
	z = state += 0x9e3779b97f4a7c15;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}
