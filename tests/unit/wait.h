/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for what other threads do, never for a time. After cmocka.h. */
#ifndef CFS_TEST_WAIT_H
#define CFS_TEST_WAIT_H

#include <semaphore.h>

#include "base/clock.h"

#define LONG_MS 20000 /* only a failed test takes so long */

static inline cfs_deadline_t soon(void)
{
	return cfs_deadline_in(LONG_MS);
}

#define WAIT_FOR(condition)                                                                        \
	do {                                                                                       \
		cfs_deadline_t until_ = soon();                                                    \
		while (!(condition)) {                                                             \
			if (cfs_deadline_passed(until_))                                           \
				fail_msg("not in time: %s", #condition);                           \
			cfs_backoff(0, 1, 1, until_);                                              \
		}                                                                                  \
	} while (0)

/* Takes one post of it. */
static inline void wait_post(sem_t *sem)
{
	struct timespec until = cfs_wall();

	until.tv_sec += LONG_MS / 1000;
	assert_int_equal(sem_timedwait(sem, &until), 0);
}

#endif
