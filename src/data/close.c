/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Closes that do not wait. The slices of a closed file are stored at once and held back from the
 * metadata until the file is the first of the queue. So other mounts see a file of this mount only
 * when they can see those that were closed before it.
 *
 * A file has one place in the queue at a time: a second close with more slices waits for the first.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/activity.h"
#include "base/cleanup.h"
#include "data-internal.h"

#define END_PATIENCE 3 /* io_timeout_ms */

int cfs_closing_init(struct cfs_closing_queue *q)
{
	int r = cfs_cond_init(&q->moved);

	if (r < 0)
		return r;
	pthread_mutex_init(&q->lock, NULL);
	TAILQ_INIT(&q->files);
	return 0;
}

void cfs_closing_fini(struct cfs_closing_queue *q)
{
	pthread_mutex_destroy(&q->lock);
	pthread_cond_destroy(&q->moved);
}

void cfs_closing_release(struct cfs_file *f)
{
	struct cfs_wslice *s;

	if (!f->closing)
		return;
	TAILQ_FOREACH(s, &f->slices, in_file)
	s->held = false;
}

/* ---- the front of the queue ---- */

static void release(struct cfs_file *f)
{
	cfs_closing_release(f);
	cfs_file_kick(f);
}

/* True when nothing of the file is left to wait for. */
static bool has_ended(struct cfs_closing *c)
{
	struct cfs_file *f = c->file;
	struct cfs_wslice *s;
	bool ended;
	CFS_LOCK_GUARD(&f->lock);

	s = TAILQ_FIRST(&f->slices);
	ended = !s || s->seq > c->last || f->late_seq != c->late_seq;
	if (!ended && atomic_load(&f->data->closing.ending)) {
		c->err = -EIO;
		ended = true;
	}
	if (ended && !c->err && f->err_seq != c->err_seq)
		c->err = f->errs[(f->err_seq - 1) % CFS_FILE_ERRORS];
	if (ended)
		release(f);
	return ended;
}

/* ---- group commit ---- */

/*
 * The files at the front of the queue whose data is stored. There is no timer: a file that is alone
 * is committed at once, and those that get ready meanwhile are the next group.
 */
struct group {
	struct cfs_job job;
	struct cfs_data *data;
	size_t n;
	struct cfs_group_commit v[CFS_COMMITS_MAX];
};

static void group_job(struct cfs_job *job)
{
	struct group *g = caa_container_of(job, struct group, job);

	cfs_group_commit(g->data, g->v, g->n);
	free(g);
}

/* Called by the thread that advances: no other thread removes files from the queue. */
static size_t front(struct cfs_closing_queue *q, struct cfs_closing *ret[CFS_COMMITS_MAX])
{
	struct cfs_closing *c;
	size_t n = 0;
	CFS_LOCK_GUARD(&q->lock);

	for (c = TAILQ_FIRST(&q->files); c && n < CFS_COMMITS_MAX; c = TAILQ_NEXT(c, in_queue))
		ret[n++] = c;
	return n;
}

static bool take(struct cfs_closing *c, struct cfs_group_commit *ret)
{
	CFS_LOCK_GUARD(&c->file->lock);

	return cfs_group_take(c->file, c->last, ret);
}

/* False: the first file is to be committed alone. */
static bool begin_group(struct cfs_data *d)
{
	struct cfs_closing *files[CFS_COMMITS_MAX];
	size_t n = front(&d->closing, files), i;
	struct group *g = n > 1 ? calloc(1, sizeof(*g)) : NULL;

	if (!g)
		return false;
	g->data = d;
	g->job.run = group_job;
	while (g->n < n && take(files[g->n], &g->v[g->n]))
		g->n++;
	if (g->n > 1 && cfs_workers_try_submit(d->flushers, &g->job) == 0)
		return true;
	for (i = 0; i < g->n; i++)
		cfs_group_return(&g->v[i]);
	free(g);
	return false;
}

static void commit_alone(struct cfs_closing *c)
{
	pthread_mutex_lock(&c->file->lock);
	release(c->file);
	pthread_mutex_unlock(&c->file->lock);
}

/* Until an error is told, flushes of the file find it in f->closing. */
static void end_first(struct cfs_closing_queue *q, struct cfs_closing *c)
{
	struct cfs_file *f = c->file;

	c->closed(c->arg, c->err);
	pthread_mutex_lock(&f->lock);
	f->closing = NULL;
	cfs_file_wake(f);
	pthread_mutex_unlock(&f->lock);
	cfs_file_unref(f);
	pthread_mutex_lock(&q->lock);
	TAILQ_REMOVE(&q->files, c, in_queue);
	atomic_fetch_sub(&q->n, 1);
	pthread_cond_broadcast(&q->moved);
	pthread_mutex_unlock(&q->lock);
	free(c);
}

void cfs_closing_advance(struct cfs_data *d)
{
	struct cfs_closing_queue *q = &d->closing;
	struct cfs_closing *c;

	if (!atomic_load(&q->n))
		return;
	pthread_mutex_lock(&q->lock);
	q->again = true;
	/* Only the thread that advances removes the first one, so that it may use it unlocked. */
	while (q->again && !q->advancing) {
		q->again = false;
		c = TAILQ_FIRST(&q->files);
		if (!c)
			break;
		q->advancing = true;
		pthread_mutex_unlock(&q->lock);
		if (has_ended(c)) {
			end_first(q, c);
			pthread_mutex_lock(&q->lock);
			q->again = true;
		} else {
			if (!begin_group(d))
				commit_alone(c);
			pthread_mutex_lock(&q->lock);
		}
		q->advancing = false;
	}
	pthread_mutex_unlock(&q->lock);
}

/* ---- closes ---- */

static int take_place(struct cfs_data *d, cfs_deadline_t deadline)
{
	struct cfs_closing_queue *q = &d->closing;
	int r = 0;
	CFS_LOCK_GUARD(&q->lock);

	if (atomic_load(&q->n) >= d->conf.max_closing) {
		cfs_activity_wait(CFS_WAIT_QUEUE, 0, "of closed files to be committed");
		while (atomic_load(&q->n) >= d->conf.max_closing && r == 0)
			r = cfs_cond_wait(&q->moved, &q->lock, deadline);
		cfs_activity_wait_end();
	}
	r = atomic_load(&q->n) < d->conf.max_closing ? 0 : -EIO;
	if (r == 0)
		atomic_fetch_add(&q->n, 1);
	return r;
}

static void return_place(struct cfs_closing_queue *q)
{
	pthread_mutex_lock(&q->lock);
	atomic_fetch_sub(&q->n, 1);
	pthread_cond_broadcast(&q->moved);
	pthread_mutex_unlock(&q->lock);
}

/* Slices that no close has queued; called with the file's lock. */
static bool has_unqueued(const struct cfs_file *f)
{
	const struct cfs_wslice *s = TAILQ_LAST(&f->slices, cfs_wslice_list);

	return s && (!f->closing || s->seq > f->closing->last);
}

bool cfs_closing_has_all(struct cfs_file *f)
{
	CFS_LOCK_GUARD(&f->lock);

	return f->closing && !has_unqueued(f);
}

/* Called with the file's lock; drops it while waiting. */
static int await_earlier_close(struct cfs_file *f, cfs_deadline_t deadline)
{
	int r = 0;

	f->waiters++;
	while (f->closing && has_unqueued(f) && r == 0) {
		cfs_file_await_commit(f, TAILQ_FIRST(&f->slices)->id);
		r = cfs_cond_wait(&f->cond, &f->lock, deadline);
		cfs_activity_wait_end();
	}
	f->waiters--;
	return f->closing && has_unqueued(f) ? -EIO : 0;
}

/* Called with the file's lock. */
static void enqueue(struct cfs_file *f, struct cfs_closing *c)
{
	struct cfs_closing_queue *q = &f->data->closing;
	struct cfs_wslice *s;
	bool first;

	cfs_file_ref(f);
	c->file = f;
	c->last = f->seq;
	c->err_seq = f->err_seq;
	c->late_seq = f->late_seq;
	f->closing = c;
	cfs_file_freeze(f);
	pthread_mutex_lock(&q->lock);
	first = TAILQ_EMPTY(&q->files);
	c->ticket = ++q->tickets;
	TAILQ_INSERT_TAIL(&q->files, c, in_queue);
	pthread_mutex_unlock(&q->lock);
	TAILQ_FOREACH(s, &f->slices, in_file)
	s->held = !first && !f->settling;
	cfs_file_kick(f);
}

int cfs_file_flush_later(struct cfs_file *f, const struct cfs_ctx *ctx, uint32_t err_seq,
			 cfs_file_closed_fn closed, void *arg)
{
	struct cfs_closing_queue *q = &f->data->closing;
	struct cfs_closing *c = calloc(1, sizeof(*c));
	bool failed, queued = false;
	int r;

	if (!c)
		return cfs_file_flush(f, ctx, err_seq);
	c->closed = closed;
	c->arg = arg;
	r = take_place(f->data, ctx->deadline);
	if (r < 0) {
		free(c);
		return r;
	}
	pthread_mutex_lock(&f->lock);
	r = await_earlier_close(f, ctx->deadline);
	failed = f->err_seq != err_seq;
	queued = r == 0 && !failed && has_unqueued(f);
	if (queued)
		enqueue(f, c);
	pthread_mutex_unlock(&f->lock);
	if (queued)
		return 1;
	return_place(q);
	free(c);
	/* A file with an error is no longer one that its writer need not wait for. */
	return failed ? cfs_file_flush(f, ctx, err_seq) : r;
}

/* ---- waiting ---- */

bool cfs_data_has_closed(struct cfs_data *d)
{
	return atomic_load(&d->closing.n) > 0;
}

int cfs_data_await_closed(struct cfs_data *d, cfs_deadline_t deadline)
{
	struct cfs_closing_queue *q = &d->closing;
	struct cfs_closing *c;
	uint64_t last;
	int r = 0;

	if (!cfs_data_has_closed(d))
		return 0;
	cfs_activity_wait(CFS_WAIT_QUEUE, 0, "of closed files to be committed");
	pthread_mutex_lock(&q->lock);
	last = q->tickets;
	while ((c = TAILQ_FIRST(&q->files)) && c->ticket <= last && r == 0)
		r = cfs_cond_wait(&q->moved, &q->lock, deadline);
	r = c && c->ticket <= last ? -EIO : 0;
	pthread_mutex_unlock(&q->lock);
	cfs_activity_wait_end();
	return r;
}

int cfs_data_sync_closed(struct cfs_data *d, cfs_deadline_t deadline)
{
	int r = cfs_data_await_closed(d, deadline);

	return r < 0 ? r : cfs_store_sync(d->conf.store, deadline);
}

static uint64_t first_ticket(struct cfs_closing_queue *q)
{
	struct cfs_closing *c;
	CFS_LOCK_GUARD(&q->lock);

	c = TAILQ_FIRST(&q->files);
	return c ? c->ticket : 0;
}

void cfs_data_end_closed(struct cfs_data *d)
{
	uint64_t ticket;

	while ((ticket = first_ticket(&d->closing))) {
		if (cfs_data_await_closed(
			    d, cfs_deadline_in(END_PATIENCE * d->conf.io_timeout_ms)) < 0 &&
		    first_ticket(&d->closing) == ticket)
			break;
	}
	atomic_store(&d->closing.ending, true);
	cfs_closing_advance(d);
	cfs_data_await_closed(d, cfs_deadline_in(END_PATIENCE * d->conf.io_timeout_ms));
}
