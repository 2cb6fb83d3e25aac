/* SPDX-License-Identifier: Apache-2.0 */
#include "unwanted.h"

#include <errno.h>

#define CHECK_MS 20

static _Thread_local bool (*question)(void *arg);
static _Thread_local void *question_arg;

void cfs_unwanted_set(bool (*is_unwanted)(void *arg), void *arg)
{
	question = is_unwanted;
	question_arg = arg;
}

void cfs_unwanted_get(bool (**ret_is_unwanted)(void *arg), void **ret_arg)
{
	*ret_is_unwanted = question;
	*ret_arg = question_arg;
}

bool cfs_unwanted(void)
{
	return question && question(question_arg);
}

cfs_deadline_t cfs_unwanted_next(cfs_deadline_t until)
{
	return question ? cfs_deadline_min(until, cfs_deadline_in(CHECK_MS)) : until;
}

int cfs_unwanted_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, cfs_deadline_t deadline)
{
	cfs_deadline_t next = cfs_unwanted_next(deadline);
	int r = cfs_cond_wait(cond, lock, next);
	bool unwanted;

	if (r != -ETIMEDOUT || next == deadline)
		return r;
	pthread_mutex_unlock(lock);
	unwanted = cfs_unwanted();
	pthread_mutex_lock(lock);
	return unwanted ? -ECANCELED : 0;
}

bool cfs_unwanted_sleep(cfs_deadline_t until)
{
	while (!cfs_unwanted()) {
		if (cfs_deadline_passed(until))
			return true;
		cfs_sleep_until(cfs_unwanted_next(until));
	}
	return false;
}
