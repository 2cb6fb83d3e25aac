/* SPDX-License-Identifier: Apache-2.0 */
#include "ring.h"

#include <errno.h>
#include <liburing.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/activity.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "ring-message.h"
#include "uring.h"

#define WAKE_SIGNAL   SIGUSR1 /* its handler does nothing, loop.c */
#define WAKE_EVERY_MS 20
#define START_MS      10000
#define REGISTER_MS   60000
#define PARK_MS	      1000
/* How often the watch thread looks for answers that stay, and for stalled queues. */
#define WATCH_MS	5
#define WATCH_IDLE	64	/* rounds without anything to do, after which it sleeps */
#define WATCH_ASLEEP_MS 3600000 /* at most, until it is poked */
/*
 * The first and the longest pause before a child makes a request, which keeps the mount busy; and
 * the one after a child that made the kernel hand over a request.
 */
#define NUDGE_MS       250
#define NUDGE_MAX_MS   4000
#define NUDGE_AGAIN_MS 50
/*
 * A request of at most that many bytes is copied and carried out from the copy: its entry can then
 * be used again as soon as another thread has answered it.
 */
#define COPY_MAX (16u << 10)

struct queue {
	struct cfs_ring *ring;
	unsigned number;
	_Atomic unsigned n_entries;
	_Atomic unsigned parked; /* of these, with a request that another thread answers */
	/*
	 * Registering an entry does not make the kernel look at the requests that wait for one.
	 * Handing over an answer does (fs/fuse/dev_uring.c). added: entries that were added while
	 * the ring served. drained: its value when the kernel last had no request waiting. A
	 * difference means that the queue may be stalled.
	 */
	_Atomic unsigned added, drained;
	/* Used by the watch thread only. */
	uint64_t nudge_ms, pause_ms; /* when the next child is due; pause_ms 0: none */
	unsigned nudged;	     /* `added` when the pause was set */
	pid_t nudger;		     /* a child that makes a request; 0: none */
};

/* UNREGISTERED -> ARMED (the kernel has it) -> TAKEN (with a request) -> ANSWERED -> ARMED ... The
 * thread that changes ANSWERED hands the answer over. */
enum { UNREGISTERED, ARMED, TAKEN, ANSWERED };

struct entry {
	struct queue *queue;
	_Atomic unsigned state;
	_Atomic uint64_t unique; /* of the unanswered request; 0: none */
	_Atomic uint64_t commit; /* number of the last request */
	_Atomic bool in_place;	 /* the request is carried out from the entry's memory */
	bool beyond;		 /* one more than `depth`: its memory is given back after use */
	size_t touched;		 /* bytes of the payload that have memory */
	/* Used by the watch thread only: `commit` of an answer that it has seen, and when. */
	uint64_t watched, watched_ms;
	uint8_t *page;		 /* header and payload, ring-message.h */
	pthread_cond_t answered; /* with ring.lock */
	struct entry *next;	 /* in ring.entries */
};

struct worker {
	struct cfs_ring *ring;
	struct queue *queue;
	/* NULL: another thread has got it, to hand the answer over. Changed with ring.lock held. */
	_Atomic(struct entry *) entry;
	pthread_t thread;
	unsigned place;
	struct io_uring uring;
	struct cfs_request request;
	bool done, parked;
	_Atomic bool receiving;
	uint8_t copy[COPY_MAX] __attribute__((aligned(8)));
};

struct cfs_ring {
	struct cfs_channel channel; /* must be the first member */
	struct cfs_ring_conf conf;
	size_t payload;
	unsigned n_queues, places;
	struct queue *queues;

	/* Protects the fields below, and which thread has which entry. A leaf. */
	pthread_mutex_t lock;
	pthread_cond_t changed;	 /* a thread has started, registered its entry or ended */
	struct worker **workers; /* by place */
	struct entry *entries;
	unsigned n_workers, n_starting, n_registered, orphans;
	bool failed; /* a thread could not start, or its entry could not be registered */
	/*
	 * Every thread has what it needs: entries may be registered. Once each queue has one, the
	 * kernel does not use the device again.
	 */
	bool open;
	struct io_uring spare; /* for ring_refuse(), until the threads serve */
	bool has_spare;

	_Atomic bool serving; /* every queue has its entries */
	_Atomic bool ended;   /* ring_stop() was called */
	_Atomic bool gone;    /* the connection has ended, or the ring has failed */
	pthread_t watcher;
	bool watching, poked;
	_Atomic bool asleep; /* the watch thread, until it is poked */
	pthread_cond_t poke;
};

static _Thread_local struct worker *self; /* NULL: the calling thread is none of a ring */

/* ---- memory and system calls ---- */

static size_t entry_bytes(const struct cfs_ring *r)
{
	return RING_PAGE + r->payload;
}

/* Children do not inherit its memory: copy-on-write would double it. */
static struct entry *new_entry(struct queue *q)
{
	struct cfs_ring *r = q->ring;
	struct entry *e = calloc(1, sizeof(*e));

	if (!e)
		return NULL;
	e->page = mmap(NULL, entry_bytes(r), PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (e->page == MAP_FAILED) {
		free(e);
		return NULL;
	}
	madvise(e->page, entry_bytes(r), MADV_DONTFORK);
	e->queue = q;
	cfs_cond_init(&e->answered);
	return e;
}

static void free_entry(const struct cfs_ring *r, struct entry *e)
{
	munmap(e->page, entry_bytes(r));
	pthread_cond_destroy(&e->answered);
	free(e);
}

static void prepare(struct worker *w, unsigned op, const struct iovec *iov, uint64_t commit)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&w->uring);
	struct ring_command cmd = {.commit_id = commit, .queue = (uint16_t)w->queue->number};

	/* The queue has room: a thread has one command at a time. */
	if (!sqe)
		abort();
	memset(sqe, 0, 2 * sizeof(*sqe));
	sqe->opcode = IORING_OP_URING_CMD;
	sqe->fd = w->ring->conf.fd;
	sqe->cmd_op = op;
	if (iov) {
		sqe->addr = (uint64_t)(uintptr_t)iov;
		sqe->len = 2;
	}
	memcpy(sqe->cmd, &cmd, sizeof(cmd));
}

/* ---- the watch thread ---- */

static void poke_watch(struct cfs_ring *r)
{
	pthread_mutex_lock(&r->lock);
	r->poked = true;
	atomic_store(&r->asleep, false);
	pthread_cond_signal(&r->poke);
	pthread_mutex_unlock(&r->lock);
}

static int start_worker(struct queue *q, struct entry *e);

/*
 * The calling thread is about to wait for another thread's answer, maybe for ever (a file lock).
 * The queue gets one more entry, so that such requests cannot use it up: the request that ends the
 * wait may come through it.
 */
static void replace_entry(struct queue *q)
{
	struct cfs_ring *r = q->ring;
	int ret;

	if (atomic_load(&q->n_entries) >= r->conf.depth + atomic_load(&q->parked) ||
	    atomic_load(&r->gone))
		return;
	ret = start_worker(q, NULL);
	if (ret < 0)
		cfs_warn("a queue of requests has one entry less: queue=%u error=%s", q->number,
			 cfs_errname(ret));
}

/*
 * Called before the calling thread may block. The end of its wait may depend on an answer that this
 * thread has not handed over yet: the watch thread then hands it over.
 */
static void show_answer(void)
{
	struct entry *e = self ? atomic_load(&self->entry) : NULL;

	if (e && atomic_load(&e->state) == ANSWERED && atomic_load(&self->ring->asleep))
		poke_watch(self->ring);
}

/* Has a child make a request when the queue seems stalled. False: it is not. */
static bool look_at_queue(struct queue *q)
{
	unsigned added = atomic_load(&q->added);
	struct cfs_ring *r = q->ring;
	uint64_t now = cfs_now_ms();

	if (q->nudger && waitpid(q->nudger, NULL, WNOHANG) != 0)
		q->nudger = 0;
	if (added == atomic_load(&q->drained)) {
		q->pause_ms = 0;
		return q->nudger;
	}
	if (!q->pause_ms) {
		q->pause_ms = NUDGE_MS;
		q->nudge_ms = now + NUDGE_MS;
		q->nudged = added;
	} else if (q->nudged != added) {
		/* A child gets one request out of the kernel. Many may wait, each for a lock. */
		q->pause_ms = NUDGE_MS;
		q->nudge_ms = CFS_MIN(q->nudge_ms, now + NUDGE_AGAIN_MS);
		q->nudged = added;
	} else if (!q->nudger && now >= q->nudge_ms) {
		q->nudger = r->conf.nudge(r->conf.arg, q->number);
		if (q->nudger < 0) /* no child: tried again after the pause */
			q->nudger = 0;
		q->pause_ms = CFS_MIN(2 * q->pause_ms, (uint64_t)NUDGE_MAX_MS);
		q->nudge_ms = now + q->pause_ms;
	}
	return true;
}

/* Called with ring.lock held. The thread that has the entry. NULL: none. */
static struct worker *owner_of(const struct cfs_ring *r, const struct entry *e)
{
	unsigned i;

	for (i = 0; i < r->places; i++)
		if (r->workers[i] && atomic_load(&r->workers[i]->entry) == e)
			return r->workers[i];
	return NULL;
}

/* Gives the entry of a busy thread to a new one, which hands the answer over. */
static void rescue(struct cfs_ring *r, struct entry *e)
{
	unsigned answered = ANSWERED;
	struct worker *w;

	pthread_mutex_lock(&r->lock);
	w = owner_of(r, e); /* NULL: the last attempt failed to start a thread */
	if ((w && (w->parked || r->orphans >= r->conf.orphans)) ||
	    !atomic_compare_exchange_strong(&e->state, &answered, TAKEN)) {
		pthread_mutex_unlock(&r->lock);
		return;
	}
	if (w) {
		atomic_store(&w->entry, NULL);
		r->orphans++;
	}
	pthread_mutex_unlock(&r->lock);
	if (start_worker(e->queue, e) < 0)
		atomic_store(&e->state, ANSWERED);
}

/* One round of the watch thread. False: there was nothing to do. */
static bool look(struct cfs_ring *r)
{
	struct entry *e;
	bool any = false;
	unsigned i;

	for (i = 0; i < r->n_queues; i++)
		any |= look_at_queue(&r->queues[i]);
	pthread_mutex_lock(&r->lock);
	e = r->entries; /* entries are added in front, and stay */
	pthread_mutex_unlock(&r->lock);
	for (; e; e = e->next) {
		if (atomic_load(&e->state) != ANSWERED)
			continue;
		any = true;
		if (e->watched != e->commit) {
			e->watched = e->commit;
			e->watched_ms = cfs_now_ms();
		} else if (cfs_now_ms() >= e->watched_ms + WATCH_MS) {
			rescue(r, e);
		}
	}
	return any;
}

static void *watch(void *arg)
{
	struct cfs_ring *r = arg;
	unsigned idle = 0;

	while (!atomic_load(&r->ended)) {
		/* Set before the last round: whatever that round misses pokes this thread. */
		if (idle >= WATCH_IDLE)
			atomic_store(&r->asleep, true);
		if (look(r))
			idle = 0;
		pthread_mutex_lock(&r->lock);
		if (!r->poked && !atomic_load(&r->ended))
			cfs_cond_wait(
				&r->poke, &r->lock,
				cfs_deadline_in(idle > WATCH_IDLE ? WATCH_ASLEEP_MS : WATCH_MS));
		idle = r->poked ? 0 : idle + 1;
		r->poked = false;
		pthread_mutex_unlock(&r->lock);
		if (idle == 0)
			atomic_store(&r->asleep, false);
	}
	return NULL;
}

/* ---- answers ---- */

struct cfs_channel *ring_channel(struct cfs_ring *r)
{
	return &r->channel;
}

static void answered_elsewhere(struct cfs_ring *r, struct entry *e)
{
	pthread_mutex_lock(&r->lock);
	pthread_cond_signal(&e->answered);
	pthread_mutex_unlock(&r->lock);
	if (atomic_load(&r->asleep))
		poke_watch(r);
}

/* Entries within `depth` keep the memory of their payload, others only its first page. */
static void give_memory_back(struct entry *e, size_t len)
{
	if (!e->beyond || len > RING_PAGE || e->touched <= RING_PAGE)
		return;
	madvise(e->page + (size_t)2 * RING_PAGE,
		entry_bytes(e->queue->ring) - (size_t)2 * RING_PAGE, MADV_DONTNEED);
	e->touched = RING_PAGE;
}

static int ring_reply(struct cfs_channel *c, const struct cfs_request_id *id, int error,
		      struct iovec *iov, int n)
{
	struct cfs_ring *r = (struct cfs_ring *)c;
	struct entry *e = id->entry;
	uint64_t unique = id->unique;
	bool mine = self && self->entry == e;
	size_t len = cfs_iov_len(iov + 1, n - 1);

	if (!e)
		return r->conf.device->ops->reply(r->conf.device, id, error, iov, n);
	if (len > r->payload)
		return -EINVAL;
	if (atomic_load(&e->unique) != unique)
		return -ENOENT;
	/* The next request would overwrite memory that the thread of this one still reads. */
	if (!mine && atomic_load(&e->in_place))
		return -EBUSY;
	if (!atomic_compare_exchange_strong(&e->unique, &unique, 0))
		return -ENOENT;
	give_memory_back(e, len);
	e->touched = CFS_MAX(e->touched, len);
	ring_write_answer(e->page, r->payload, id->unique, error, iov, n);
	atomic_store(&e->state, ANSWERED);
	if (!mine)
		answered_elsewhere(r, e);
	return 0;
}

static int ring_notify(struct cfs_channel *c, int code, struct iovec *iov, int n)
{
	struct cfs_channel *device = ((struct cfs_ring *)c)->conf.device;

	show_answer();
	return device->ops->notify(device, code, iov, n);
}

static int ring_resend(struct cfs_channel *c)
{
	struct cfs_channel *device = ((struct cfs_ring *)c)->conf.device;

	return device->ops->resend(device);
}

static int ring_receive(struct cfs_channel *c, void *buf, struct cfs_request *ret)
{
	struct cfs_channel *device = ((struct cfs_ring *)c)->conf.device;

	return device->ops->receive(device, buf, ret);
}

static const struct cfs_channel_ops ops = {
	.name = "io_uring",
	.receive = ring_receive,
	.reply = ring_reply,
	.notify = ring_notify,
	.resend = ring_resend,
};

/* ---- requests ---- */

/*
 * Waits until the thread's request is answered, and returns the entry. NULL: another thread has got
 * it, or the connection has ended.
 */
static struct entry *take_answer(struct worker *w)
{
	struct cfs_ring *r = w->ring;
	struct entry *e = atomic_load(&w->entry);
	unsigned answered = ANSWERED;

	if (e && atomic_compare_exchange_strong(&e->state, &answered, ARMED))
		return e;
	atomic_fetch_add(&w->queue->parked, 1);
	if (e)
		replace_entry(w->queue);
	pthread_mutex_lock(&r->lock);
	w->parked = true;
	for (;;) {
		e = atomic_load(&w->entry);
		answered = ANSWERED;
		if (!e || atomic_compare_exchange_strong(&e->state, &answered, ARMED))
			break;
		if (atomic_load(&r->gone)) {
			e = NULL;
			break;
		}
		cfs_cond_wait(&e->answered, &r->lock, cfs_deadline_in(PARK_MS));
	}
	w->parked = false;
	pthread_mutex_unlock(&r->lock);
	atomic_fetch_sub(&w->queue->parked, 1);
	return e;
}

static bool means_end(int error)
{
	return error == -ENOTCONN || error == -ECONNABORTED || error == -ENODEV;
}

/* Any failed command ends the ring: after a refused registration the kernel may refuse answers. */
static void end(struct cfs_ring *r, int error)
{
	atomic_store(&r->gone, true);
	r->conf.ended(r->conf.arg, means_end(error) ? 0 : error);
}

/* Puts the request of an entry together. False: it is malformed. */
static bool take_request(struct worker *w, struct entry *e)
{
	struct cfs_ring *r = w->ring;
	struct fuse_in_header *in;
	size_t len = 0;

	in = ring_join(e->page, r->payload, &len);
	if (!in) {
		in = (void *)e->page;
		cfs_err("a request is malformed, its caller gets EIO: op=%u bytes=%u", in->opcode,
			in->len);
	}
	e->commit = in->unique;
	e->touched = CFS_MAX(e->touched, len);
	atomic_store(&e->in_place, len > sizeof(w->copy));
	atomic_store(&e->state, TAKEN);
	atomic_store(&e->unique, in->unique);
	w->request = (struct cfs_request){
		.id = {.unique = in->unique, .entry = e},
		.in = in,
		.len = len,
		.gid = in->gid,
		.opcode = in->opcode,
	};
	if (len && len <= sizeof(w->copy))
		w->request.in = memcpy(w->copy, in, len);
	return len;
}

/* Hands the answer over, notes when the kernel has no request waiting, and waits for one. */
static int hand_over(struct worker *w)
{
	unsigned added = atomic_load(&w->queue->added);
	int n;

	if (io_uring_sq_ready(&w->uring)) {
		n = io_uring_submit_and_get_events(&w->uring);
		if (n <= 0 || io_uring_cq_ready(&w->uring))
			return n;
		atomic_store(&w->queue->drained, added);
	}
	return io_uring_submit_and_wait(&w->uring, 1);
}

/*
 * Hands the answer over and waits for the next request. The result of the command, or -EINTR: the
 * loop has ended. Requests that come after that stay unanswered until the connection ends.
 */
static int wait_completion(struct worker *w)
{
	struct cfs_ring *r = w->ring;
	struct io_uring_cqe *cqe;
	int n, res;

	for (;;) {
		atomic_store(&w->receiving, true);
		if (atomic_load(&r->ended)) {
			io_uring_submit(&w->uring);
			return -EINTR;
		}
		n = atomic_load(&w->queue->added) == atomic_load(&w->queue->drained)
			    ? io_uring_submit_and_wait(&w->uring, 1)
			    : hand_over(w);
		atomic_store(&w->receiving, false);
		if (io_uring_peek_cqe(&w->uring, &cqe) == 0) {
			res = cqe->res;
			io_uring_cqe_seen(&w->uring, cqe);
			return res;
		}
		if (n < 0 && n != -EINTR && n != -EAGAIN && n != -EBUSY)
			return n;
	}
}

/* Receives a request and carries it out. The entry is ARMED, with its command prepared or sent.
 * False: the thread ends. */
static bool receive(struct worker *w, struct entry *e)
{
	struct cfs_ring *r = w->ring;
	int res;

	res = wait_completion(w);
	if (res == -EINTR && atomic_load(&r->ended))
		return false;
	if (res < 0) {
		end(r, res);
		return false;
	}
	if (!take_request(w, e)) {
		channel_reply_error(&r->channel, &w->request.id, -EIO);
		return true;
	}
	r->conf.serve(r->conf.arg, &w->request, w->place);
	return true;
}

/* False: the entry cannot be registered. */
static bool register_entry(struct worker *w, struct entry *e)
{
	struct cfs_ring *r = w->ring;
	struct iovec iov[2] = {
		{.iov_base = e->page, .iov_len = sizeof(struct ring_header)},
		{.iov_base = e->page + RING_PAGE, .iov_len = r->payload},
	};
	struct io_uring_cqe *cqe;
	int res;

	prepare(w, RING_REGISTER, iov, 0);
	res = io_uring_submit(&w->uring);
	/* A completion that is there at once may be a request already. */
	if (res >= 0 && io_uring_peek_cqe(&w->uring, &cqe) == 0)
		res = cqe->res;
	if (res < 0 && atomic_load(&r->serving))
		end(r, res);
	if (res < 0)
		return false;
	atomic_store(&e->state, ARMED);
	if (atomic_load(&r->serving)) {
		atomic_fetch_add(&w->queue->added, 1);
		if (atomic_load(&r->asleep))
			poke_watch(r);
	}
	return true;
}

/* Reports that the thread has started. False: it must not register its entry. */
static bool await_open(struct cfs_ring *r, bool ok)
{
	CFS_LOCK_GUARD(&r->lock);

	r->n_starting--;
	r->failed |= !ok;
	pthread_cond_broadcast(&r->changed);
	while (!r->open && !r->failed && !atomic_load(&r->ended))
		pthread_cond_wait(&r->changed, &r->lock);
	return r->open && ok;
}

static void report_registration(struct cfs_ring *r, bool ok)
{
	pthread_mutex_lock(&r->lock);
	r->n_registered++;
	r->failed |= !ok;
	pthread_cond_broadcast(&r->changed);
	pthread_mutex_unlock(&r->lock);
}

/* A thread without an entry frees itself; the others are joined by ring_stop(). */
static void leave(struct worker *w)
{
	struct cfs_ring *r = w->ring;
	struct entry *e;

	self = NULL;
	cfs_activity_on_wait(NULL);
	pthread_mutex_lock(&r->lock);
	e = atomic_load(&w->entry);
	if (!e) {
		r->orphans--;
		r->workers[w->place] = NULL;
		pthread_detach(w->thread);
	} else {
		w->done = true;
	}
	r->n_workers--;
	pthread_cond_broadcast(&r->changed);
	pthread_mutex_unlock(&r->lock);
	if (!e)
		free(w);
}

static void *run(void *arg)
{
	struct worker *w = arg;
	struct entry *e = atomic_load(&w->entry);
	bool ok, fresh = atomic_load(&e->state) == UNREGISTERED;
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, WAKE_SIGNAL);
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
	self = w;
	cfs_activity_on_wait(show_answer);
	ring_pin(w->queue->number);
	ok = await_open(w->ring, uring_enable(&w->uring) == 0);
	if (ok && fresh) {
		ok = register_entry(w, e);
		report_registration(w->ring, ok);
	} else if (ok) {
		atomic_store(&e->state, ARMED);
		prepare(w, RING_COMMIT_AND_FETCH, NULL, e->commit);
	}
	while (ok && receive(w, e)) {
		e = take_answer(w);
		if (!e)
			break;
		prepare(w, RING_COMMIT_AND_FETCH, NULL, e->commit);
	}
	io_uring_queue_exit(&w->uring);
	leave(w);
	return NULL;
}

/* Called with ring.lock held. */
static int take_place(struct cfs_ring *r, struct worker *w)
{
	unsigned i;

	for (i = 0; i < r->places; i++) {
		if (r->workers[i])
			continue;
		w->place = i;
		r->workers[i] = w;
		r->n_workers++;
		r->n_starting++;
		return 0;
	}
	return -EAGAIN;
}

/* Starts a thread with that entry. NULL: with a new one. */
static int start_worker(struct queue *q, struct entry *e)
{
	struct cfs_ring *r = q->ring;
	struct worker *w = calloc(1, sizeof(*w));
	struct entry *own = e ? e : new_entry(q);
	int ret = w && own ? uring_open(&w->uring) : -ENOMEM;

	if (ret < 0)
		goto out;
	w->ring = r;
	w->queue = q;
	atomic_store(&w->entry, own);
	pthread_mutex_lock(&r->lock);
	ret = atomic_load(&r->ended) ? -ECANCELED : take_place(r, w);
	if (ret == 0)
		ret = cfs_thread_start("fuse-ring", run, w, &w->thread);
	if (ret == 0 && !e) {
		own->beyond = atomic_fetch_add(&q->n_entries, 1) >= r->conf.depth;
		own->next = r->entries;
		r->entries = own;
	}
	if (ret < 0 && w->place < r->places && r->workers[w->place] == w) {
		r->workers[w->place] = NULL;
		r->n_workers--;
		r->n_starting--;
	}
	pthread_mutex_unlock(&r->lock);
	if (ret < 0)
		io_uring_queue_exit(&w->uring);
out:
	if (ret < 0) {
		free(w);
		if (own && !e)
			free_entry(r, own);
	}
	return ret;
}

/* ---- the life of a ring ---- */

int ring_create(const struct cfs_ring_conf *conf, struct cfs_ring **ret, char why[200])
{
	struct cfs_ring *r;
	unsigned i;
	int ret_check = uring_check(why);

	if (ret_check < 0)
		return ret_check;
	r = calloc(1, sizeof(*r));
	if (!r)
		goto no_memory;
	r->channel = (struct cfs_channel){.ops = &ops, .buffer_size = conf->device->buffer_size};
	r->conf = *conf;
	r->n_queues = ring_queues();
	r->places = r->n_queues * conf->depth + conf->parked + conf->orphans;
	r->queues = calloc(r->n_queues, sizeof(*r->queues));
	r->workers = calloc(r->places, sizeof(struct worker *));
	pthread_mutex_init(&r->lock, NULL);
	cfs_cond_init(&r->changed);
	cfs_cond_init(&r->poke);
	r->has_spare = uring_open(&r->spare) == 0;
	if (!r->queues || !r->workers || !r->has_spare) {
		ring_destroy(r);
		goto no_memory;
	}
	for (i = 0; i < r->n_queues; i++) {
		r->queues[i].ring = r;
		r->queues[i].number = i;
	}
	*ret = r;
	return 0;
no_memory:
	snprintf(why, 200, "%s", strerror(ENOMEM));
	return -ENOMEM;
}

static void close_spare(struct cfs_ring *r)
{
	if (r->has_spare)
		io_uring_queue_exit(&r->spare);
	r->has_spare = false;
}

/*
 * The kernel holds requests back until every queue has an entry, or it refuses a registration. An
 * io_uring was kept for this, as another one may be what cannot be had.
 */
void ring_refuse(struct cfs_ring *r)
{
	struct worker w = {.ring = r, .queue = &(struct queue){.number = UINT16_MAX}};
	int n;

	w.uring = r->spare;
	n = uring_enable(&w.uring);
	if (n == 0) {
		prepare(&w, RING_REGISTER, NULL, 0);
		n = io_uring_submit(&w.uring);
	}
	if (n < 0) {
		cfs_err("the kernel cannot be told to use the device: error=%s", cfs_errname(n));
		r->conf.ended(r->conf.arg, n);
	}
}

/* Called with ring.lock held. Waits until *n is `until`. */
static int await_workers(struct cfs_ring *r, const unsigned *n, unsigned until, unsigned ms)
{
	cfs_deadline_t deadline = cfs_deadline_in(ms);
	int ret = 0;

	while (*n != until && !r->failed && ret == 0)
		ret = cfs_cond_wait(&r->changed, &r->lock, deadline);
	return r->failed ? -EIO : ret;
}

int ring_start(struct cfs_ring *r, size_t payload)
{
	unsigned i, n = r->n_queues * r->conf.depth;
	bool open = false;
	int ret = 0;

	r->payload = payload;
	for (i = 0; i < n && ret == 0; i++)
		ret = start_worker(&r->queues[i % r->n_queues], NULL);
	pthread_mutex_lock(&r->lock);
	if (ret == 0)
		ret = await_workers(r, &r->n_starting, 0, START_MS);
	if (ret == 0) {
		open = r->open = true;
		pthread_cond_broadcast(&r->changed);
		ret = await_workers(r, &r->n_registered, n, REGISTER_MS);
	}
	pthread_mutex_unlock(&r->lock);
	atomic_store(&r->serving, ret == 0);
	if (ret == 0) {
		ret = cfs_thread_start("fuse-watch", watch, r, &r->watcher);
		r->watching = ret == 0;
	}
	if (ret < 0)
		ring_stop(r);
	/* After a registration the kernel may not use the device any more. */
	if (ret < 0 && open)
		r->conf.ended(r->conf.arg, ret);
	if (ret == 0)
		close_spare(r);
	return ret;
}

struct cfs_request_id ring_find(struct cfs_ring *r, uint64_t unique)
{
	struct entry *e;

	pthread_mutex_lock(&r->lock);
	for (e = r->entries; e && atomic_load(&e->unique) != unique; e = e->next)
		;
	pthread_mutex_unlock(&r->lock);
	return (struct cfs_request_id){.unique = unique, .entry = e};
}

const struct cfs_request *ring_request(const struct cfs_ring *r, unsigned place)
{
	return &r->workers[place]->request;
}

/* Called with ring.lock held. False: no thread is left. */
static bool wake_workers(struct cfs_ring *r)
{
	struct entry *e;
	unsigned i;

	for (i = 0; i < r->places; i++)
		if (r->workers[i] && !r->workers[i]->done && atomic_load(&r->workers[i]->receiving))
			pthread_kill(r->workers[i]->thread, WAKE_SIGNAL);
	for (e = r->entries; e; e = e->next)
		pthread_cond_signal(&e->answered);
	return r->n_workers;
}

void ring_stop(struct cfs_ring *r)
{
	unsigned i;

	if (!r)
		return;
	pthread_mutex_lock(&r->lock);
	atomic_store(&r->ended, true);
	pthread_cond_signal(&r->poke);
	pthread_cond_broadcast(&r->changed);
	pthread_mutex_unlock(&r->lock);
	if (r->watching)
		pthread_join(r->watcher, NULL);
	r->watching = false;
	pthread_mutex_lock(&r->lock);
	while (wake_workers(r))
		cfs_cond_wait(&r->changed, &r->lock, cfs_deadline_in(WAKE_EVERY_MS));
	pthread_mutex_unlock(&r->lock);
	for (i = 0; i < r->places; i++) {
		if (!r->workers[i])
			continue;
		pthread_join(r->workers[i]->thread, NULL);
		free(r->workers[i]);
		r->workers[i] = NULL;
	}
}

void ring_destroy(struct cfs_ring *r)
{
	struct entry *e;

	if (!r)
		return;
	while ((e = r->entries)) {
		r->entries = e->next;
		free_entry(r, e);
	}
	close_spare(r);
	pthread_mutex_destroy(&r->lock);
	pthread_cond_destroy(&r->changed);
	pthread_cond_destroy(&r->poke);
	free(r->queues);
	free(r->workers);
	free(r);
}
