/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that call a function periodically. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "activity.h"
#include "thread.h"
#include "workers.h"

struct cfs_ticker {
	char name[16];
	uint64_t period_ms;
	void (*run)(void *arg);
	void *arg;
	pthread_t thread;

	/* Protects what follows. A leaf; run() is called without it. */
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool kicked, stopping;
};

static uint64_t with_jitter(uint64_t period_ms)
{
	return period_ms - period_ms / 10 + cfs_random_u64() % (period_ms / 5 + 1);
}

uint64_t cfs_ticker_longest_ms(uint64_t period_ms)
{
	return period_ms + period_ms / 10 + 1;
}

static void *ticker(void *arg)
{
	struct cfs_ticker *t = arg;
	cfs_deadline_t next;
	int r;

	pthread_mutex_lock(&t->lock);
	while (!t->stopping) {
		next = cfs_deadline_in(with_jitter(t->period_ms));
		r = 0;
		while (!t->stopping && !t->kicked && r != -ETIMEDOUT)
			r = cfs_cond_wait(&t->wake, &t->lock, next);
		if (t->stopping)
			break;
		t->kicked = false;
		pthread_mutex_unlock(&t->lock);
		t->run(t->arg);
		pthread_mutex_lock(&t->lock);
	}
	pthread_mutex_unlock(&t->lock);
	return NULL;
}

int cfs_ticker_start(const char *name, uint64_t period_ms, void (*run)(void *arg), void *arg,
		     struct cfs_ticker **ret)
{
	struct cfs_ticker *t;
	int r;

	t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	snprintf(t->name, sizeof(t->name), "%s", name);
	t->period_ms = period_ms;
	t->run = run;
	t->arg = arg;
	pthread_mutex_init(&t->lock, NULL);
	r = cfs_cond_init(&t->wake) ?: cfs_thread_start(name, ticker, t, &t->thread);
	if (r)
		free(t);
	else
		*ret = t;
	return r;
}

void cfs_ticker_kick(struct cfs_ticker *t)
{
	pthread_mutex_lock(&t->lock);
	t->kicked = true;
	pthread_cond_signal(&t->wake);
	pthread_mutex_unlock(&t->lock);
}

void cfs_ticker_stop(struct cfs_ticker *t)
{
	if (!t)
		return;
	pthread_mutex_lock(&t->lock);
	t->stopping = true;
	pthread_cond_signal(&t->wake);
	pthread_mutex_unlock(&t->lock);
	cfs_activity_wait(CFS_WAIT_THREAD, 0, t->name);
	pthread_join(t->thread, NULL);
	cfs_activity_wait_end();
	pthread_cond_destroy(&t->wake);
	pthread_mutex_destroy(&t->lock);
	free(t);
}
