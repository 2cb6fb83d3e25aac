/* SPDX-License-Identifier: Apache-2.0 */
#include "task.h"

#include <errno.h>
#include <stdlib.h>

static void unref(struct cfs_task *t)
{
	bool last, uncollected;

	pthread_mutex_lock(&t->lock);
	last = --t->refs == 0;
	uncollected = t->done && !t->taken;
	pthread_mutex_unlock(&t->lock);
	if (!last)
		return;
	pthread_cond_destroy(&t->ended);
	pthread_mutex_destroy(&t->lock);
	if (t->free)
		t->free(t, uncollected);
	else
		free(t);
}

static void run(struct cfs_job *job)
{
	struct cfs_task *t = (struct cfs_task *)job;
	ssize_t result;

	pthread_mutex_lock(&t->lock);
	t->started = true;
	pthread_mutex_unlock(&t->lock);
	result = t->run(t);
	pthread_mutex_lock(&t->lock);
	t->result = result;
	t->done = true;
	pthread_cond_signal(&t->ended);
	pthread_mutex_unlock(&t->lock);
	unref(t);
}

void *cfs_task_new(size_t size, cfs_task_run_fn run_task, cfs_task_free_fn free_task)
{
	struct cfs_task *t = calloc(1, size);

	if (!t)
		return NULL;
	if (cfs_cond_init(&t->ended) < 0) {
		free(t);
		return NULL;
	}
	pthread_mutex_init(&t->lock, NULL);
	t->job.run = run;
	t->run = run_task;
	t->free = free_task;
	t->refs = 1;
	return t;
}

int cfs_task_wait(struct cfs_task *t, struct cfs_workers *w, cfs_deadline_t deadline, ssize_t *ret)
{
	bool started;
	int r;

	t->refs++; /* no other thread knows it yet */
	r = cfs_workers_try_submit(w, &t->job);
	if (r < 0) {
		t->refs--;
		return -EAGAIN;
	}
	pthread_mutex_lock(&t->lock);
	while (!t->done && r == 0)
		r = cfs_cond_wait(&t->ended, &t->lock, deadline);
	t->taken = t->done;
	if (t->done)
		*ret = t->result;
	r = t->done ? 0 : -ETIMEDOUT;
	started = t->started;
	pthread_mutex_unlock(&t->lock);
	if (r == 0 || started)
		return r;
	if (t->stays)
		return -EAGAIN;
	if (cfs_workers_cancel(w, &t->job)) {
		unref(t);
		r = -EAGAIN;
	}
	return r;
}

void cfs_task_end(struct cfs_task *t)
{
	unref(t);
}
