/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads that no thread waits for (cachefs/async.h): the thread of the transport answers them. A read
 * that fails, or whose caller was killed meanwhile, is repeated by a worker as a request that may
 * block, so that nothing here waits. Requests of a ring have threads of their own, which a reply
 * from another thread would have to wake, so they wait for their answers.
 */
#include <stddef.h>
#include <stdlib.h>

#include "base/activity.h"
#include "base/cleanup.h"
#include "fuse-internal.h"

#define ASYNC_MAX 256 /* at a time, each with its page */

static struct blocking *of_async(struct cfs_async *a)
{
	return caa_container_of(a, struct blocking, async);
}

int async_init(struct cfs_fuse *f)
{
	pthread_mutex_init(&f->async.lock, NULL);
	pthread_cond_init(&f->async.none, NULL);
	return cfs_workers_create("fuse-again", f->admission.max, ASYNC_MAX, &f->async.workers);
}

void async_fini(struct cfs_fuse *f)
{
	cfs_workers_destroy(f->async.workers);
	pthread_cond_destroy(&f->async.none);
	pthread_mutex_destroy(&f->async.lock);
}

void async_drain(struct cfs_fuse *f)
{
	pthread_mutex_lock(&f->async.lock);
	while (f->async.n > 0) /* each has its deadline */
		pthread_cond_wait(&f->async.none, &f->async.lock);
	pthread_mutex_unlock(&f->async.lock);
}

/* False also without a thread that could repeat the read: the thread of the transport must not. */
static bool count(struct cfs_fuse *f)
{
	CFS_LOCK_GUARD(&f->async.lock);

	if (!f->async.has_worker)
		f->async.has_worker = cfs_workers_prepare(f->async.workers) == 0;
	if (!f->async.has_worker || f->async.n >= ASYNC_MAX)
		return false;
	f->async.n++;
	return true;
}

static void uncount(struct cfs_fuse *f)
{
	pthread_mutex_lock(&f->async.lock);
	if (--f->async.n == 0)
		pthread_cond_signal(&f->async.none);
	pthread_mutex_unlock(&f->async.lock);
}

/* Until a thread has it. */
static void show(struct blocking *b, enum cfs_wait what, const char *text)
{
	const struct call *c = &b->call;

	b->shown = cfs_activity_queue(c->op, c->ino, c->ctx.pid, c->start_ns / 1000000, what, text);
}

static void answer(struct blocking *b)
{
	struct cfs_fuse *f = b->call.fuse;
	struct cfs_segs segs;
	int r;

	cfs_segs_init(&segs);
	r = cfs_segs_add(&segs, b->async.page, 0, b->async.len);
	if (r < 0)
		cfs_page_unref(b->async.page);
	call_take(&b->call);
	reply_segs(&b->call, r, &segs);
	free(b);
	uncount(f);
}

/* ---- reads that are repeated ---- */

static void repeat(struct blocking *b)
{
	cfs_activity_dequeue(b->shown);
	call_take(&b->call);
	b->apply(b);
	free(b);
}

static bool run_queued(struct queued *q)
{
	struct blocking *b = (struct blocking *)q;
	struct cfs_fuse *f = b->call.fuse;

	repeat(b);
	uncount(f);
	return false;
}

/* Has a slot. Until it is counted as ended it also carries out what was queued meanwhile. */
static void run_job(struct cfs_job *job)
{
	struct blocking *b = caa_container_of(job, struct blocking, job);
	struct cfs_fuse *f = b->call.fuse;

	repeat(b);
	admission_release(f);
	uncount(f);
}

static void ended(struct cfs_async *a, int err)
{
	struct blocking *b = of_async(a);
	struct cfs_fuse *f = b->call.fuse;

	cfs_activity_dequeue(b->shown);
	if (err == 0 && killable_leave(b->call.killable)) {
		b->call.killable = NULL;
		answer(b);
		return;
	}
	cfs_page_unref(a->page);
	a->page = NULL;
	b->queued.run = run_queued;
	b->queued.bytes = 0; /* ASYNC_MAX bounds them */
	b->job.run = run_job;
	if (blocking_enqueue(b))
		return;
	/*
	 * As many threads as slots, so it runs at once; after those before it where the system gives
	 * this process no more threads. It is not refused: count() has seen a thread, the queue has
	 * room for ASYNC_MAX, and the pool ends after async_drain().
	 */
	show(b, CFS_WAIT_QUEUE, "fuse-again");
	(void)cfs_workers_try_submit(f->async.workers, &b->job);
}

struct cfs_async *async_keep(struct cfs_async *a)
{
	const struct blocking *what = of_async(a);
	struct cfs_fuse *f = what->call.fuse;
	struct blocking *b;

	if (!count(f))
		return NULL;
	b = blocking_copy(what);
	if (!b) {
		uncount(f);
		return NULL;
	}
	show(b, CFS_WAIT_PEER, NULL);
	b->async.done = ended;
	return &b->async;
}
