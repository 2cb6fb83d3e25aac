/* SPDX-License-Identifier: Apache-2.0 */
/* The event loop: rounds, work from other threads, start and end. */
#include "loop.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/thread.h"

#define ENTRIES	    1024
#define COMPLETIONS 8192
#define WORKERS	    256 /* of the ring, for reads of disks; users have smaller limits */
#define IDLE_MS	    1000
#define BATCH	    256
#define LATE_MS	    100 /* delays up to here are those of a loop at work */

/*
 * Called with the lock held: without it, the loop could see the reason, end and be freed before the
 * write. Writing to an eventfd does not wait. A thread that is awake looks at `woken` before it
 * waits.
 */
static void wake(struct cfs_loop *loop)
{
	uint64_t one = 1;
	ssize_t r;

	if (loop->woken)
		return;
	loop->woken = true;
	if (atomic_load(&loop->awake_ms) > 0)
		return;
	do
		r = write(loop->wake_fd, &one, sizeof(one));
	while (r < 0 && errno == EINTR);
}

void cfs_loop_run(struct cfs_loop *loop, struct cfs_work *w)
{
	pthread_mutex_lock(&loop->lock);
	if (!w->queued) {
		w->queued = true;
		w->next = NULL;
		*loop->last = w;
		loop->last = &w->next;
		wake(loop);
	}
	pthread_mutex_unlock(&loop->lock);
}

void cfs_loop_wake(struct cfs_loop *loop)
{
	pthread_mutex_lock(&loop->lock);
	wake(loop);
	pthread_mutex_unlock(&loop->lock);
}

/* For errors that only a defect of this program, or a completion that the kernel dropped, causes. */
static _Noreturn void broken(int err)
{
	cfs_err("peer transport: io_uring_enter() failed, the process aborts: error=%s",
		cfs_errname(err));
	abort();
}

struct io_uring_sqe *cfs_loop_sqe(struct cfs_loop *loop, struct cfs_op *op)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&loop->ring);
	int r = 0;

	while (!sqe && (r >= 0 || r == -EAGAIN || r == -EBUSY || r == -EINTR)) {
		r = io_uring_submit_and_get_events(&loop->ring);
		sqe = io_uring_get_sqe(&loop->ring);
	}
	if (!sqe)
		broken(r);
	/* The prep functions do not change user_data. */
	io_uring_sqe_set_data(sqe, op);
	if (op)
		loop->ops++;
	return sqe;
}

void cfs_loop_poll(struct cfs_loop *loop, int fd, unsigned mask, struct cfs_op *op)
{
	struct io_uring_sqe *sqe = cfs_loop_sqe(loop, op);

	io_uring_prep_poll_add(sqe, fd, mask);
}

void cfs_loop_cancel(struct cfs_loop *loop, struct cfs_op *op)
{
	struct io_uring_sqe *sqe = cfs_loop_sqe(loop, NULL);

	io_uring_prep_cancel(sqe, op, 0);
}

static void arm_wake(struct cfs_loop *loop)
{
	struct io_uring_sqe *sqe = cfs_loop_sqe(loop, &loop->wake_op);

	io_uring_prep_read(sqe, loop->wake_fd, &loop->wake_value, sizeof(loop->wake_value), 0);
}

static void woken(struct cfs_op *op, int res)
{
	struct cfs_loop *loop = caa_container_of(op, struct cfs_loop, wake_op);

	arm_wake(loop);
}

static void run_queue(struct cfs_loop *loop)
{
	struct cfs_work *w, *next;

	pthread_mutex_lock(&loop->lock);
	w = loop->first;
	loop->first = NULL;
	loop->last = &loop->first;
	loop->woken = false;
	pthread_mutex_unlock(&loop->lock);
	for (; w; w = next) {
		pthread_mutex_lock(&loop->lock);
		next = w->next;
		w->queued = false;
		pthread_mutex_unlock(&loop->lock);
		w->fn(w);
	}
}

static void run_completions(struct cfs_loop *loop)
{
	struct io_uring_cqe *cqes[BATCH];
	unsigned n, i;

	n = io_uring_peek_batch_cqe(&loop->ring, cqes, BATCH);
	for (i = 0; i < n; i++) {
		struct cfs_op *op = io_uring_cqe_get_data(cqes[i]);
		int res = cqes[i]->res;

		if (!op)
			continue;
		loop->ops--;
		op->fn(op, res);
	}
	io_uring_cq_advance(&loop->ring, n);
}

static void wait_for_more(struct cfs_loop *loop, uint64_t timeout_ms)
{
	struct __kernel_timespec ts = {
		.tv_sec = (long long)(timeout_ms / 1000),
		.tv_nsec = (long long)(timeout_ms % 1000 * 1000000),
	};
	struct io_uring_cqe *cqe;
	int r;

	pthread_mutex_lock(&loop->lock);
	if (loop->woken)
		timeout_ms = 0;
	if (timeout_ms > 0)
		atomic_store(&loop->awake_ms, 0);
	pthread_mutex_unlock(&loop->lock);
	if (timeout_ms == 0)
		r = io_uring_submit_and_get_events(&loop->ring);
	else
		r = io_uring_submit_and_wait_timeout(&loop->ring, &cqe, 1, &ts, NULL);
	if (r < 0 && r != -ETIME && r != -EINTR && r != -EAGAIN && r != -EBUSY)
		broken(r);
}

static bool must_end(struct cfs_loop *loop)
{
	bool stop;

	pthread_mutex_lock(&loop->lock);
	stop = loop->stop && !loop->first;
	pthread_mutex_unlock(&loop->lock);
	return stop && loop->held == 0 && loop->ops <= 1; /* 1: the read of wake_fd */
}

/* Updates the clocks. planned_ms: how long the loop intended to wait since the last update. */
static void update_clock(struct cfs_loop *loop, uint64_t planned_ms)
{
	uint64_t now_ms = cfs_now_ms(), gap_ms = now_ms - loop->now_ms;

	planned_ms += LATE_MS;
	if (gap_ms > planned_ms)
		atomic_fetch_add_explicit(&loop->late_ms, gap_ms - planned_ms,
					  memory_order_relaxed);
	loop->now_ms = now_ms;
}

static void loop_rounds(struct cfs_loop *loop)
{
	uint64_t tick_at_ms = 0;
	unsigned touched = 0;

	arm_wake(loop);
	loop->now_ms = cfs_now_ms();
	while (!must_end(loop)) {
		uint64_t timeout_ms;

		update_clock(loop, 0);
		if (loop->now_ms >= tick_at_ms) {
			bool busy = touched != atomic_load(&loop->touched);

			touched = atomic_load(&loop->touched);
			if (loop->tick(loop->arg) || busy)
				loop->busy_until_ms = loop->now_ms + IDLE_MS;
			tick_at_ms = loop->now_ms + CFS_LOOP_TICK_MS;
		}
		loop->flush(loop->arg);
		timeout_ms = tick_at_ms - loop->now_ms;
		/* A thread that starts an operation while the loop is idle wakes it. */
		if (loop->now_ms >= loop->busy_until_ms) {
			atomic_store(&loop->idle, 1);
			if (touched == atomic_load(&loop->touched))
				timeout_ms = IDLE_MS;
		}
		if (loop->has_more(loop->arg))
			timeout_ms = 0;
		wait_for_more(loop, timeout_ms);
		update_clock(loop, timeout_ms);
		atomic_store(&loop->awake_ms, loop->now_ms);
		if (atomic_load_explicit(&loop->idle, memory_order_relaxed)) {
			atomic_store(&loop->idle, 0);
			tick_at_ms = 0;
		}
		run_completions(loop);
		run_queue(loop);
	}
}

static int ring_init(struct cfs_loop *loop)
{
	struct io_uring_params p = {
		.flags = IORING_SETUP_CQSIZE | IORING_SETUP_SINGLE_ISSUER |
			 IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_COOP_TASKRUN,
		.cq_entries = COMPLETIONS,
	};
	unsigned workers[2] = {WORKERS, WORKERS};
	int r = io_uring_queue_init_params(ENTRIES, &loop->ring, &p);

	if (r == -EINVAL) { /* before Linux 6.1 */
		memset(&p, 0, sizeof(p));
		p.flags = IORING_SETUP_CQSIZE;
		p.cq_entries = COMPLETIONS;
		r = io_uring_queue_init_params(ENTRIES, &loop->ring, &p);
	}
	if (r < 0)
		return r;
	if (!(p.features & IORING_FEAT_EXT_ARG) || !(p.features & IORING_FEAT_NODROP)) {
		io_uring_queue_exit(&loop->ring);
		return -ENOSYS;
	}
	(void)io_uring_register_ring_fd(&loop->ring); /* Linux 5.18: saves a look-up per call */
	(void)io_uring_register_iowq_max_workers(&loop->ring, workers); /* Linux 5.15 */
	return 0;
}

static void loop_free(struct cfs_loop *loop)
{
	if (loop->wake_fd >= 0)
		close(loop->wake_fd);
	free(loop->scratch);
	pthread_cond_destroy(&loop->cond);
	pthread_mutex_destroy(&loop->lock);
}

static void *loop_thread(void *arg)
{
	struct cfs_loop *loop = arg;
	void (*orphaned)(void *arg);
	int r = ring_init(loop);

	pthread_mutex_lock(&loop->lock);
	loop->thread = pthread_self();
	loop->started = r < 0 ? r : 1;
	pthread_cond_signal(&loop->cond);
	pthread_mutex_unlock(&loop->lock);
	if (r < 0)
		return NULL;
	loop_rounds(loop);
	io_uring_queue_exit(&loop->ring);
	pthread_mutex_lock(&loop->lock);
	loop->ended = true;
	orphaned = loop->orphan ? loop->orphaned : NULL;
	pthread_cond_signal(&loop->cond);
	pthread_mutex_unlock(&loop->lock);
	if (orphaned) {
		loop_free(loop);
		orphaned(loop->arg);
	}
	return NULL;
}

int cfs_loop_start(struct cfs_loop *loop)
{
	pthread_t thread;
	int r;

	r = cfs_cond_init(&loop->cond);
	if (r < 0)
		return r;
	pthread_mutex_init(&loop->lock, NULL);
	loop->last = &loop->first;
	loop->wake_op.fn = woken;
	loop->wake_fd = eventfd(0, EFD_CLOEXEC);
	loop->scratch = aligned_alloc(4096, CFS_LOOP_SCRATCH);
	if (loop->wake_fd < 0 || !loop->scratch) {
		r = loop->scratch ? -errno : -ENOMEM;
		goto fail;
	}
	r = cfs_thread_start("cfs-peer", loop_thread, loop, &thread);
	if (r < 0)
		goto fail;
	pthread_mutex_lock(&loop->lock);
	while (loop->started == 0) /* bounded by the set-up of a ring */
		pthread_cond_wait(&loop->cond, &loop->lock);
	r = loop->started;
	pthread_mutex_unlock(&loop->lock);
	if (r > 0)
		return 0;
	pthread_join(thread, NULL);
fail:
	loop_free(loop);
	return r;
}

bool cfs_loop_call_begin(struct cfs_loop *loop)
{
	bool begun;
	CFS_LOCK_GUARD(&loop->lock);

	begun = !loop->orphan;
	loop->calling = begun;
	return begun;
}

void cfs_loop_call_end(struct cfs_loop *loop)
{
	pthread_mutex_lock(&loop->lock);
	loop->calling = false;
	if (loop->stop)
		pthread_cond_signal(&loop->cond);
	pthread_mutex_unlock(&loop->lock);
}

int cfs_loop_stop(struct cfs_loop *loop, cfs_deadline_t deadline, void (*orphaned)(void *arg))
{
	pthread_t thread = loop->thread;
	int r = 0;

	pthread_mutex_lock(&loop->lock);
	loop->stop = true;
	wake(loop);
	while (!loop->ended && r != -ETIMEDOUT)
		r = cfs_cond_wait(&loop->cond, &loop->lock, deadline);
	while (!loop->ended && loop->calling) /* bounded: it must not wait */
		pthread_cond_wait(&loop->cond, &loop->lock);
	if (!loop->ended) {
		loop->orphaned = orphaned;
		loop->orphan = true;
		pthread_detach(thread);
		pthread_mutex_unlock(&loop->lock);
		return -ETIMEDOUT;
	}
	pthread_mutex_unlock(&loop->lock);
	pthread_join(thread, NULL);
	loop_free(loop);
	return 0;
}
