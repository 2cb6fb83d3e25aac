/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call that may hang, made by a worker for a caller with a bounded wait. An abandoned task
 * continues with its own data, and frees them at its end.
 */
#ifndef CFS_TASK_H
#define CFS_TASK_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

#include "clock.h"
#include "workers.h"

struct cfs_task;
typedef ssize_t (*cfs_task_run_fn)(struct cfs_task *t);
/*
 * Called by the last holder, which may be the worker. uncollected: the task has run, and no caller
 * has taken its result.
 */
typedef void (*cfs_task_free_fn)(struct cfs_task *t, bool uncollected);

/* Embedded, first, in a structure with what the task needs and returns. */
struct cfs_task {
	struct cfs_job job; /* first */
	cfs_task_run_fn run;
	cfs_task_free_fn free;
	bool stays; /* runs even when its caller has stopped waiting before it began */

	pthread_mutex_t lock; /* protects what follows; a leaf */
	pthread_cond_t ended;
	unsigned refs;
	bool started, done, taken;
	ssize_t result;
};

/*
 * A structure of `size` bytes that begins with the task; the rest is zeros. NULL: no memory.
 * free_task NULL: free(3).
 */
void *cfs_task_new(size_t size, cfs_task_run_fn run_task, cfs_task_free_fn free_task);
/*
 * Has a worker run the task, once, and waits. 0: *ret is the task's result; -ETIMEDOUT: it has
 * begun and is abandoned; -EAGAIN: it has not begun, and will not unless it stays.
 */
int cfs_task_wait(struct cfs_task *t, struct cfs_workers *w, cfs_deadline_t deadline, ssize_t *ret);
/* Drops the reference of the caller. */
void cfs_task_end(struct cfs_task *t);

#endif
