/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "activity.h"
#include "bytes.h"
#include "cleanup.h"
#include "thread.h"
#include "workers.h"

struct cfs_workers {
	char name[16];
	unsigned cap;
	size_t limit;

	/* Protects what follows. A leaf; no job runs under it. */
	pthread_mutex_t lock;
	pthread_cond_t work;  /* a job was queued, or stopping */
	pthread_cond_t space; /* the queue is not full, or stopping */
	/* Nothing is queued or runs; or stopping, and the last waiting submitter has left. */
	pthread_cond_t empty;
	struct cfs_job *head, **tail;
	size_t queued;
	unsigned max, stuck, busy; /* stuck: abandoned workers, which are busy, too */
	unsigned n_threads, idle, submitters_waiting;
	uint64_t done;
	bool stopping;
	pthread_t threads[]; /* n_threads of cap, twice the maximum at the start */
};

int cfs_workers_create(const char *name, unsigned max, size_t queue_limit, struct cfs_workers **ret)
{
	struct cfs_workers *w;
	int r;

	if (!max || !queue_limit)
		return -EINVAL;
	w = calloc(1, sizeof(*w) + 2 * (size_t)max * sizeof(w->threads[0]));
	if (!w)
		return -ENOMEM;
	w->cap = 2 * max;
	snprintf(w->name, sizeof(w->name), "%s", name);
	w->max = max;
	w->limit = queue_limit;
	w->tail = &w->head;
	pthread_mutex_init(&w->lock, NULL);
	r = cfs_cond_init(&w->work) ?: cfs_cond_init(&w->space) ?: cfs_cond_init(&w->empty);
	if (r)
		free(w);
	else
		*ret = w;
	return r;
}

/* With the lock held: removes the job that *link points at. */
static struct cfs_job *dequeue(struct cfs_workers *w, struct cfs_job **link)
{
	struct cfs_job *job = *link;

	*link = job->next;
	if (!*link)
		w->tail = link;
	w->queued--;
	pthread_cond_signal(&w->space);
	/* Workers above the maximum have nothing to wait for: they end. */
	if (!w->head && w->stopping)
		pthread_cond_broadcast(&w->work);
	return job;
}

/* Jobs that may run at the same time. */
static unsigned may_run(const struct cfs_workers *w)
{
	return w->max + w->stuck;
}

static void *worker(void *arg)
{
	struct cfs_workers *w = arg;
	struct cfs_job *job;

	pthread_mutex_lock(&w->lock);
	for (;;) {
		while (w->head ? w->busy >= may_run(w) : !w->stopping) {
			w->idle++;
			pthread_cond_wait(&w->work, &w->lock);
			w->idle--;
		}
		if (!w->head)
			break;
		job = dequeue(w, &w->head);
		w->busy++;
		pthread_mutex_unlock(&w->lock);
		job->run(job); /* may free the job */
		pthread_mutex_lock(&w->lock);
		w->busy--;
		w->done++;
		if (!w->head && !w->busy)
			pthread_cond_broadcast(&w->empty);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

static int start_thread(struct cfs_workers *w)
{
	int r = cfs_thread_start(w->name, worker, w, &w->threads[w->n_threads]);

	if (r == 0)
		w->n_threads++;
	return r;
}

int cfs_workers_prepare(struct cfs_workers *w)
{
	CFS_LOCK_GUARD(&w->lock);

	return w->n_threads > 0 ? 0 : start_thread(w);
}

/* More jobs may run, with the lock held. */
static void run_more(struct cfs_workers *w)
{
	size_t missing = w->queued > w->idle ? w->queued - w->idle : 0;

	for (; missing && w->n_threads < may_run(w) && !w->stopping; missing--) {
		if (start_thread(w) < 0)
			break;
	}
	pthread_cond_broadcast(&w->work);
}

/* With the lock held and room in the queue. */
static int enqueue(struct cfs_workers *w, struct cfs_job *job)
{
	int r;

	/* An idle thread that was woken but has not run yet still counts as idle. */
	if (w->queued >= w->idle && w->n_threads < may_run(w)) {
		/* EAGAIN of pthread_create(3) would reach programs, which wait for a lock then. */
		r = start_thread(w);
		if (r < 0 && w->n_threads == 0)
			return -ENOMEM;
	}
	job->next = NULL;
	*w->tail = job;
	w->tail = &job->next;
	w->queued++;
	pthread_cond_signal(&w->work);
	return 0;
}

int cfs_workers_submit(struct cfs_workers *w, struct cfs_job *job, cfs_deadline_t deadline)
{
	bool full;
	int r = 0;
	CFS_LOCK_GUARD(&w->lock);

	full = w->queued >= w->limit;
	if (full)
		cfs_activity_wait(CFS_WAIT_QUEUE, 0, w->name);
	w->submitters_waiting++;
	while (!w->stopping && w->queued >= w->limit && r != -ETIMEDOUT)
		r = cfs_cond_wait(&w->space, &w->lock, deadline);
	w->submitters_waiting--;
	if (full)
		cfs_activity_wait_end();
	if (w->stopping) {
		r = -ESHUTDOWN;
		if (!w->submitters_waiting)
			pthread_cond_broadcast(&w->empty);
	} else if (w->queued < w->limit) {
		r = enqueue(w, job);
	}
	return r;
}

int cfs_workers_try_submit(struct cfs_workers *w, struct cfs_job *job)
{
	CFS_LOCK_GUARD(&w->lock);

	if (w->stopping)
		return -ESHUTDOWN;
	return w->queued < w->limit ? enqueue(w, job) : -EAGAIN;
}

int cfs_workers_drain(struct cfs_workers *w, cfs_deadline_t deadline)
{
	int r = 0;
	CFS_LOCK_GUARD(&w->lock);

	while ((w->head || w->busy) && r == 0)
		r = cfs_cond_wait(&w->empty, &w->lock, deadline);
	return w->head || w->busy ? -ETIMEDOUT : 0;
}

bool cfs_workers_cancel(struct cfs_workers *w, struct cfs_job *job)
{
	struct cfs_job **link;
	CFS_LOCK_GUARD(&w->lock);

	for (link = &w->head; *link; link = &(*link)->next) {
		if (*link == job) {
			dequeue(w, link);
			return true;
		}
	}
	return false;
}

void cfs_workers_replace(struct cfs_workers *w)
{
	pthread_mutex_lock(&w->lock);
	if (w->stuck < w->cap / 2 && !w->stopping) {
		w->stuck++;
		run_more(w);
	}
	pthread_mutex_unlock(&w->lock);
}

void cfs_workers_set_max(struct cfs_workers *w, unsigned max)
{
	pthread_mutex_lock(&w->lock);
	w->max = CFS_MAX(CFS_MIN(max, w->cap / 2), 1u);
	run_more(w);
	pthread_mutex_unlock(&w->lock);
}

void cfs_workers_stats(struct cfs_workers *w, struct cfs_workers_stats *ret)
{
	pthread_mutex_lock(&w->lock);
	ret->threads = w->n_threads;
	ret->busy = w->busy;
	ret->queued = w->queued;
	ret->done = w->done;
	pthread_mutex_unlock(&w->lock);
}

void cfs_workers_destroy(struct cfs_workers *w)
{
	unsigned i;

	if (!w)
		return;
	pthread_mutex_lock(&w->lock);
	w->stopping = true;
	pthread_cond_broadcast(&w->work);
	pthread_cond_broadcast(&w->space);
	while (w->submitters_waiting)
		pthread_cond_wait(&w->empty, &w->lock);
	pthread_mutex_unlock(&w->lock);
	/* A stopping pool starts no threads. */
	cfs_activity_wait(CFS_WAIT_THREAD, 0, w->name);
	for (i = 0; i < w->n_threads; i++)
		pthread_join(w->threads[i], NULL);
	cfs_activity_wait_end();
	pthread_cond_destroy(&w->empty);
	pthread_cond_destroy(&w->space);
	pthread_cond_destroy(&w->work);
	pthread_mutex_destroy(&w->lock);
	free(w);
}
