/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The threads that read requests and carry them out. The last idle thread starts another one before
 * it takes a request, so that a blocked handler delays no other request. Threads beyond idle_max
 * that a burst has started end after it. Requests are read here and passed to libfuse, which
 * decodes them: fuse_session_custom_io(), its own interface for that, is missing in libraries built
 * without it.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "agreement.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "fuse-internal.h"

#define MIN_IDLE      4
#define WAKE_SIGNAL   SIGUSR1
#define WAKE_EVERY_MS 20

struct reader {
	TAILQ_ENTRY(reader) link;
	struct cfs_fuse *f;
	pthread_t thread;
	unsigned place; /* in loop.reader */
	void *buf;
	struct cfs_request request; /* received last */
	_Atomic bool receiving;	    /* in read(2), or about to be */
	bool done;
};

/*
 * Some threads are kept, as starting one costs more than a request. The rest end after the burst:
 * the kernel hands requests to sleeping threads in turn, so each request would wake another thread
 * while the running ones find nothing.
 */
static unsigned idle_threads(unsigned max_threads)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	return CFS_MIN(max_threads, (unsigned)CFS_MAX(2 * cpus, MIN_IDLE));
}

/* Up to as many again are started for requests that were answered early (loop_answered_early). */
static unsigned threads_max(const struct cfs_fuse *f)
{
	return 2 * f->conf.max_threads;
}

int loop_init(struct cfs_fuse *f)
{
	pthread_mutex_init(&f->loop.lock, NULL);
	cfs_cond_init(&f->loop.changed);
	TAILQ_INIT(&f->loop.readers);
	f->loop.idle_max = idle_threads(f->conf.max_threads);
	f->loop.reader = calloc(threads_max(f), sizeof(struct reader *));
	return f->loop.reader ? 0 : -ENOMEM;
}

void loop_fini(struct cfs_fuse *f)
{
	pthread_mutex_destroy(&f->loop.lock);
	pthread_cond_destroy(&f->loop.changed);
	free(f->loop.reader);
}

void loop_reset(struct cfs_fuse *f)
{
	pthread_mutex_lock(&f->loop.lock);
	f->loop.n = f->loop.idle = 0;
	f->loop.error = 0;
	atomic_store(&f->loop.ended, false);
	pthread_mutex_unlock(&f->loop.lock);
}

void loop_end(struct cfs_fuse *f, int error)
{
	pthread_mutex_lock(&f->loop.lock);
	if (!atomic_load(&f->loop.ended))
		f->loop.error = error;
	atomic_store(&f->loop.ended, true);
	pthread_cond_broadcast(&f->loop.changed);
	pthread_mutex_unlock(&f->loop.lock);
}

/* False: the loop has ended, and the kernel may send the request to another process. */
static bool receive(struct reader *r)
{
	struct cfs_fuse *f = r->f;
	int n = -EAGAIN;

	while (n < 0) {
		atomic_store(&r->receiving, true);
		if (!atomic_load(&f->loop.ended))
			n = f->channel->ops->receive(f->channel, r->buf, &r->request);
		atomic_store(&r->receiving, false);
		if (atomic_load(&f->loop.ended))
			return false;
		if (n == 0 || n == -EINTR || n == -EAGAIN)
			continue;
		if (n != -ENODEV)
			cfs_err("requests cannot be read, the mount ends: mount=%s error=%s",
				f->mount_point, cfs_errname(n));
		loop_end(f, n == -ENODEV ? 0 : n);
		return false;
	}
	return true;
}

const struct cfs_request *request_of(fuse_req_t req)
{
	const struct cfs_fuse *f = fuse_req_userdata(req);
	unsigned place = fuse_req_ctx(req)->gid;

	return place < threads_max(f) ? &f->loop.reader[place]->request
				      : ring_request(f->ring, place - threads_max(f));
}

/*
 * libfuse decodes the request and calls its handler. Of the header, every libfuse passes on only
 * the caller's ids, and it does not look at the group id. So the reader's place stands there, by
 * which the handler finds the request.
 *
 * Two requests that not every libfuse knows have the arguments of others: FUSE_TMPFILE those of
 * FUSE_CREATE, and FUSE_COPY_FILE_RANGE_64 those of FUSE_COPY_FILE_RANGE. The latter cannot be
 * refused instead: after two refusals at the same time the kernel uses neither form, and copies by
 * reading and writing until the mount ends.
 */
static void handle(struct cfs_fuse *f, struct cfs_request *rq, unsigned place)
{
	struct fuse_buf buf = {.mem = rq->in, .size = rq->len};

	take_node(rq);
	rq->in->gid = place;
	if (rq->opcode == CFS_FUSE_COPY_FILE_RANGE_64)
		rq->in->opcode = FUSE_COPY_FILE_RANGE;
	else if (rq->opcode == CFS_FUSE_TMPFILE)
		rq->in->opcode = FUSE_CREATE;
	fuse_session_process_buf(f->session, &buf);
}

void loop_serve_ring(void *arg, struct cfs_request *rq, unsigned place)
{
	struct cfs_fuse *f = arg;

	handle(f, rq, threads_max(f) + place);
	/*
	 * An entry of a listing that the kernel cannot keep: its caller waits (fuse_force_forget()
	 * of fs/fuse/readdir.c). The device ends such a request when it is read; a ring does not.
	 */
	if (rq->opcode == FUSE_FORGET)
		channel_reply_error(f->channel, &rq->id, 0);
}

/* Called with loop.lock held, for a thread that is to be started. */
static unsigned free_place(const struct cfs_fuse *f)
{
	unsigned i = 0;

	while (f->loop.reader[i])
		i++;
	return i;
}

/* Called with loop.lock held, or after the threads. */
static void remove_reader(struct reader *r)
{
	TAILQ_REMOVE(&r->f->loop.readers, r, link);
	r->f->loop.reader[r->place] = NULL;
	free(r->buf);
	free(r);
}

static void *read_requests(void *arg);

/* Called with loop.lock held, which the thread's first step takes. */
static int start_reader(struct cfs_fuse *f)
{
	struct reader *r = calloc(1, sizeof(*r));
	int ret = -ENOMEM;

	if (!r)
		return ret;
	r->f = f;
	r->place = free_place(f);
	r->buf = malloc(f->channel->buffer_size);
	f->loop.reader[r->place] = r;
	TAILQ_INSERT_TAIL(&f->loop.readers, r, link);
	if (r->buf)
		ret = cfs_thread_start("fuse", read_requests, r, &r->thread);
	if (ret < 0) {
		remove_reader(r);
		return ret;
	}
	f->loop.n++;
	f->loop.idle++;
	return 0;
}

/* Called with loop.lock held. On failure requests wait for the existing threads. */
static void start_if_all_busy(struct cfs_fuse *f)
{
	unsigned max = f->conf.max_threads + CFS_MIN(f->loop.answered_early, f->conf.max_threads);

	if (!atomic_load(&f->loop.ended) && f->loop.idle == 0 && f->loop.n < max)
		start_reader(f);
}

void loop_answered_early(struct cfs_fuse *f, int change)
{
	pthread_mutex_lock(&f->loop.lock);
	f->loop.answered_early += (unsigned)change;
	if (change > 0)
		start_if_all_busy(f);
	pthread_mutex_unlock(&f->loop.lock);
}

/* False: the loop has ended, and the request stays unanswered. */
static bool begin_request(struct cfs_fuse *f)
{
	CFS_LOCK_GUARD(&f->loop.lock);

	if (atomic_load(&f->loop.ended))
		return false;
	f->loop.idle--;
	start_if_all_busy(f);
	return true;
}

/* False: this thread is surplus, and its reader is freed. */
static bool end_request(struct reader *r)
{
	struct cfs_fuse *f = r->f;
	CFS_LOCK_GUARD(&f->loop.lock);

	if (atomic_load(&f->loop.ended) || f->loop.idle < f->loop.idle_max) {
		f->loop.idle++;
		return true;
	}
	f->loop.n--;
	pthread_detach(r->thread);
	remove_reader(r);
	return false;
}

static void *read_requests(void *arg)
{
	struct reader *r = arg;
	struct cfs_fuse *f = r->f;
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, WAKE_SIGNAL);
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
	while (receive(r) && begin_request(f)) {
		handle(f, &r->request, r->place);
		if (!end_request(r))
			return NULL;
	}
	pthread_mutex_lock(&f->loop.lock);
	r->done = true;
	pthread_cond_broadcast(&f->loop.changed);
	pthread_mutex_unlock(&f->loop.lock);
	return NULL;
}

/* Called with loop.lock held. False when none is left. */
static bool wake_readers(struct cfs_fuse *f)
{
	struct reader *r;
	bool any = false;

	TAILQ_FOREACH(r, &f->loop.readers, link)
	{
		any |= !r->done;
		if (!r->done && atomic_load(&r->receiving))
			pthread_kill(r->thread, WAKE_SIGNAL);
	}
	return any;
}

static void on_wake(int signo)
{
}

/* On failure the kernel uses the device, or the mount ends. */
static void start_ring(struct cfs_fuse *f)
{
	int r = f->ring ? own_answers_start(f) : 0;

	if (r == 0 && f->ring)
		r = ring_start(f->ring, f->payload);
	if (r == 0 || atomic_load(&f->loop.ended))
		return;
	if (f->needs_ring) {
		cfs_err("io_uring=on: the ring cannot be started, the mount ends: mount=%s "
			"error=%s",
			f->mount_point, cfs_errname(r));
		loop_end(f, r);
		return;
	}
	ring_refuse(f->ring);
	if (atomic_load(&f->loop.ended))
		return;
	f->conf.agreement->sent &= ~INIT_OVER_IO_URING;
	cfs_warn("requests come through the device, as the ring cannot be started: mount=%s "
		 "error=%s",
		 f->mount_point, cfs_errname(r));
}

int loop_run(struct cfs_fuse *f)
{
	struct sigaction wake_action = {.sa_handler = on_wake};
	struct reader *r;
	int ret;

	sigaction(WAKE_SIGNAL, &wake_action, NULL);
	pthread_mutex_lock(&f->loop.lock);
	ret = start_reader(f);
	pthread_mutex_unlock(&f->loop.lock);
	start_ring(f);
	pthread_mutex_lock(&f->loop.lock);
	while (ret == 0 && !atomic_load(&f->loop.ended))
		pthread_cond_wait(&f->loop.changed, &f->loop.lock);
	/* A signal just before read(2) is lost, so it is sent again. */
	while (wake_readers(f))
		cfs_cond_wait(&f->loop.changed, &f->loop.lock, cfs_deadline_in(WAKE_EVERY_MS));
	pthread_mutex_unlock(&f->loop.lock);
	ring_stop(f->ring);
	own_answers_stop(f);
	while ((r = TAILQ_FIRST(&f->loop.readers))) {
		pthread_join(r->thread, NULL);
		remove_reader(r);
	}
	return ret < 0 ? ret : f->loop.error;
}
