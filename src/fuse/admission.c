/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The admission queue for requests that may block. A write waits for memory while the store is
 * down. A flush waits until all data is stored, and so does a change of a file with unstored data.
 * A read that misses every cache waits for the object store. Such requests could occupy every
 * thread of the loop and block those that need only a cache. So a few threads are reserved for the
 * others: when all slots are taken, further requests are queued, and the thread that frees a slot
 * runs the next. The queue is bounded in bytes; beyond that, requests wait on their own threads.
 */
#include <stdlib.h>
#include <string.h>

#include "base/activity.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "fuse-internal.h"

#define SPARE_THREADS 4
#define QUEUED_WRITES 32 /* of the largest size */

static const char queue_name[] = "requests that wait for data";

void admission_init(struct cfs_fuse *f)
{
	unsigned threads = f->conf.max_threads;

	pthread_mutex_init(&f->admission.lock, NULL);
	TAILQ_INIT(&f->admission.queue);
	f->admission.max =
		threads > 2 * SPARE_THREADS ? threads - SPARE_THREADS : CFS_DIV_UP(threads, 2);
	f->admission.bytes_max = (size_t)QUEUED_WRITES * f->conf.max_io;
}

void admission_fini(struct cfs_fuse *f)
{
	pthread_mutex_destroy(&f->admission.lock);
}

bool admission_try(struct cfs_fuse *f)
{
	struct admission *a = &f->admission;
	CFS_LOCK_GUARD(&a->lock);

	if (a->taken >= a->max)
		return false;
	a->taken++;
	return true;
}

bool admission_queue(struct cfs_fuse *f, struct queued *q)
{
	struct admission *a = &f->admission;
	CFS_LOCK_GUARD(&a->lock);

	/* If a slot was freed meanwhile, its thread has left and would not run this request. */
	if (a->taken < a->max || a->bytes + q->bytes > a->bytes_max) {
		a->taken++;
		return false;
	}
	TAILQ_INSERT_TAIL(&a->queue, q, link);
	a->bytes += q->bytes;
	return true;
}

void admission_release(struct cfs_fuse *f)
{
	struct admission *a = &f->admission;
	struct queued *q;
	bool passed_on = false;

	do {
		pthread_mutex_lock(&a->lock);
		q = TAILQ_FIRST(&a->queue);
		if (q) {
			TAILQ_REMOVE(&a->queue, q, link);
			a->bytes -= q->bytes;
		} else {
			a->taken--;
		}
		pthread_mutex_unlock(&a->lock);
		if (q)
			passed_on = q->run(q);
	} while (q && !passed_on);
}

/* ---- requests that may block ---- */

static bool run_queued(struct queued *q)
{
	struct blocking *b = (struct blocking *)q;

	cfs_activity_dequeue(b->shown);
	call_take(&b->call);
	b->apply(b);
	free(b);
	return false;
}

/* A thread of the ring that waits for a slot: it has nothing else to do until its own request is
 * answered. */
struct slot_wait {
	struct queued queued; /* must be the first member */
	struct cfs_fuse *fuse;
	pthread_cond_t got;
	bool mine; /* with admission.lock */
};

static bool pass_slot(struct queued *q)
{
	struct slot_wait *w = (struct slot_wait *)q;
	struct admission *a = &w->fuse->admission;
	CFS_LOCK_GUARD(&a->lock);

	w->mine = true;
	pthread_cond_signal(&w->got);
	return true;
}

static void wait_for_slot(struct cfs_fuse *f)
{
	struct admission *a = &f->admission;
	struct slot_wait w = {.queued = {.run = pass_slot}, .fuse = f};

	pthread_cond_init(&w.got, NULL);
	cfs_activity_wait(CFS_WAIT_QUEUE, 0, queue_name);
	if (admission_queue(f, &w.queued)) {
		pthread_mutex_lock(&a->lock);
		while (!w.mine)
			pthread_cond_wait(&w.got, &a->lock);
		pthread_mutex_unlock(&a->lock);
	}
	cfs_activity_wait_end();
	pthread_cond_destroy(&w.got);
}

struct blocking *blocking_copy(const struct blocking *what)
{
	size_t groups_bytes = what->call.ctx.n_groups * sizeof(gid_t);
	struct blocking *b = malloc(sizeof(*b) + groups_bytes + what->size);
	uint8_t *at;

	if (!b)
		return NULL;
	*b = *what;
	at = (uint8_t *)(b + 1);
	if (groups_bytes)
		b->call.ctx.groups = memcpy(at, what->call.ctx.groups, groups_bytes);
	at += groups_bytes;
	b->iov[0] = (struct iovec){.iov_base = at, .iov_len = what->size};
	b->n_iov = what->size > 0;
	cfs_iov_gather(what->iov, what->n_iov, at);
	b->queued.run = run_queued;
	b->queued.bytes = sizeof(*b) + groups_bytes + what->size;
	return b;
}

bool blocking_enqueue(struct blocking *b)
{
	struct call *c = &b->call;

	b->shown = cfs_activity_queue(c->op, c->ino, c->ctx.pid, c->start_ns / 1000000,
				      CFS_WAIT_QUEUE, queue_name);
	if (admission_queue(c->fuse, &b->queued))
		return true;
	cfs_activity_dequeue(b->shown);
	return false;
}

void blocking_queue(struct blocking *b)
{
	struct cfs_fuse *f = b->call.fuse;
	struct blocking *copy;

	if (b->call.id.entry) {
		wait_for_slot(f);
		b->apply(b);
		admission_release(f);
		return;
	}
	copy = blocking_copy(b);
	if (!copy) { /* no memory to queue it: it waits on this thread */
		b->apply(b);
		return;
	}
	/* Once queued, the request may be taken by another thread. */
	call_leave();
	if (blocking_enqueue(copy))
		return;
	free(copy);
	call_take(&b->call);
	b->apply(b);
	admission_release(f);
}

void blocking_run(struct blocking *b, bool may_wait)
{
	struct cfs_fuse *f = b->call.fuse;

	if (!may_wait) {
		b->apply(b);
	} else if (admission_try(f)) {
		b->apply(b);
		admission_release(f);
	} else {
		blocking_queue(b);
	}
}
