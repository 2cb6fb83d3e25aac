/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The standby of a connection that has no serving process. It leaves requests unanswered, as the
 * next process has them resent (channel_resend()), and answers each with EIO at its deadline. A
 * release is answered at once and recorded for the next process. A flush of a handle that nothing
 * was written through is answered at once, too. A wait for a file lock has no deadline, here as
 * elsewhere, and any signal ends it. Other requests of a caller with a signal are answered early
 * only when the caller is being killed, as in killed.c.
 */
#include <cachefs/fuse.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "fuse-internal.h"

#define UNANSWERED_MAX 4096 /* the kernel keeps further requests until there is room */
#define MORE_MS	       5000 /* at least, for requests that the dead process had received */
#define LOOK_MS	       100  /* between two looks at callers that a signal has reached */

struct unanswered {
	struct cfs_request_id id;
	cfs_deadline_t until;
	uint64_t since_ms;
	pid_t pid;
	bool waits_for_lock;
	bool signalled; /* the caller has got a signal */
};

struct cfs_fuse_standby {
	struct cfs_handoff *handoff;
	struct cfs_device device;
	int event;
	uint64_t timeout_ms;
	cfs_deadline_t resent_until; /* of requests that the dead process had received */
	pthread_t thread;
	_Atomic bool ended; /* the connection */
	uint64_t failed;    /* requests answered with an error */

	void *buf;
	size_t n;
	struct unanswered unanswered[UNANSWERED_MAX];
	bool signalled; /* one of them is */
};

static void answer(struct cfs_fuse_standby *s, const struct cfs_request_id *id, int error)
{
	int r = channel_reply_error(&s->device.channel, id, error);

	/* -ENOENT: the caller no longer waits. */
	if (r < 0 && r != -ENOENT)
		cfs_debug("the kernel does not take an answer: error=%s", cfs_errname(r));
}

/*
 * Marks the handles that dead processes have opened for requests without an answer as closed: the
 * kernel does not know them, and sends no release. A request whose caller is killed between the
 * resend and its reading is not even read. The others open a handle again.
 */
static void undo_opens(struct cfs_handoff *handoff, struct cfs_device *device)
{
	struct cfs_handoff_request *r;
	uint32_t pos = 0;
	uint64_t fh;

	while ((r = cfs_handoff_next_request(handoff, &pos)) != NULL) {
		fh = atomic_load(&r->fh);
		if (fh && device_has_unanswered(device, atomic_load(&r->unique)))
			cfs_handoff_released(handoff, fh);
	}
}

static void fail(struct cfs_fuse_standby *s, size_t i, int error)
{
	answer(s, &s->unanswered[i].id, error);
	s->unanswered[i] = s->unanswered[--s->n];
	s->failed++;
}

static void fail_late(struct cfs_fuse_standby *s)
{
	cfs_deadline_t now = cfs_now_ms();
	size_t i = 0;

	while (i < s->n) {
		if (s->unanswered[i].until <= now)
			fail(s, i, -EIO);
		else
			i++;
	}
}

/* FUSE_INTERRUPT comes once, for the first signal, which need not be the fatal one. */
static void interrupt(struct cfs_fuse_standby *s, uint64_t unique)
{
	size_t i;

	for (i = 0; i < s->n && s->unanswered[i].id.unique != unique; i++)
		;
	if (i == s->n)
		return;
	s->signalled = s->unanswered[i].signalled = true;
	if (s->unanswered[i].waits_for_lock)
		fail(s, i, -EINTR);
}

static void fail_killed(struct cfs_fuse_standby *s)
{
	struct unanswered *u;
	size_t i = 0;

	if (!s->signalled)
		return;
	s->signalled = false;
	while (i < s->n) {
		u = &s->unanswered[i];
		if (u->signalled && caller_is_killed(u->pid, cfs_now_ms() - u->since_ms)) {
			fail(s, i, -EINTR);
			continue;
		}
		s->signalled |= u->signalled;
		i++;
	}
}

static void enqueue(struct cfs_fuse_standby *s, const struct cfs_request *rq)
{
	struct unanswered *u = &s->unanswered[s->n++];

	*u = (struct unanswered){
		.id = rq->id,
		.until = cfs_deadline_in(s->timeout_ms),
		.since_ms = cfs_now_ms(),
		.pid = (pid_t)rq->in->pid,
		.waits_for_lock = rq->in->opcode == FUSE_SETLKW,
	};
	if (u->waits_for_lock)
		u->until = UINT64_MAX;
	else if (request_is_resent(&rq->id))
		u->until = s->resent_until;
}

static void take(struct cfs_fuse_standby *s, const struct cfs_request *rq)
{
	const struct fuse_in_header *in = rq->in;
	const void *arg = in + 1;
	size_t len = rq->len;

	switch (in->opcode) {
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_NOTIFY_REPLY:
		break;
	case FUSE_INTERRUPT:
		if (len >= sizeof(*in) + sizeof(struct fuse_interrupt_in))
			interrupt(s, ((const struct fuse_interrupt_in *)arg)->unique);
		break;
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
		if (len >= sizeof(*in) + sizeof(struct fuse_release_in))
			cfs_handoff_released(s->handoff, ((const struct fuse_release_in *)arg)->fh);
		answer(s, &rq->id, 0);
		break;
	case FUSE_FLUSH:
		if (len >= sizeof(*in) + sizeof(struct fuse_flush_in) &&
		    cfs_handoff_is_clean(s->handoff, ((const struct fuse_flush_in *)arg)->fh))
			answer(s, &rq->id, 0);
		else
			enqueue(s, rq);
		break;
	default:
		enqueue(s, rq);
	}
}

static int wait_ms(const struct cfs_fuse_standby *s)
{
	cfs_deadline_t first = s->signalled ? cfs_deadline_in(LOOK_MS) : UINT64_MAX;
	size_t i;

	for (i = 0; i < s->n; i++)
		first = cfs_deadline_min(first, s->unanswered[i].until);
	return first == UINT64_MAX ? -1
				   : (int)CFS_MIN(cfs_deadline_left_ms(first), (uint64_t)INT_MAX);
}

static void *run(void *arg)
{
	struct cfs_fuse_standby *s = arg;
	struct pollfd p[2] = {{.fd = s->event, .events = POLLIN}, {.events = POLLIN}};
	struct cfs_channel *c = &s->device.channel;
	struct cfs_request rq;
	int r;

	for (;;) {
		p[1].fd = s->n < UNANSWERED_MAX ? s->device.fd : -1;
		if (poll(p, 2, wait_ms(s)) < 0 && errno != EINTR)
			break;
		if (p[0].revents)
			break;
		fail_late(s);
		fail_killed(s);
		r = s->n < UNANSWERED_MAX ? c->ops->receive(c, s->buf, &rq) : -EAGAIN;
		if (r == 0) {
			take(s, &rq);
		} else if (r == -ENODEV) {
			atomic_store(&s->ended, true);
			break;
		}
	}
	return NULL;
}

/* The flag is that of the open file, which all processes of the connection share. */
static void set_nonblocking(int device, bool on)
{
	int flags = fcntl(device, F_GETFL);

	if (flags >= 0)
		fcntl(device, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
}

int cfs_fuse_standby_begin(int device, struct cfs_handoff *handoff, uint64_t timeout_ms,
			   uint64_t since_ms, struct cfs_fuse_standby **ret)
{
	struct cfs_fuse_standby *s = calloc(1, sizeof(*s));
	uint64_t more_ms = CFS_MIN(timeout_ms, (uint64_t)MORE_MS);
	struct cfs_device d;
	int r = -ENOMEM;

	device_init(&d, device, cfs_handoff_header(handoff)->max_write);
	undo_opens(handoff, &d);
	if (!s)
		return r;
	s->device = d;
	s->handoff = handoff;
	s->timeout_ms = timeout_ms;
	s->resent_until = CFS_MAX(since_ms + timeout_ms, cfs_deadline_in(more_ms));
	s->buf = malloc(s->device.channel.buffer_size);
	s->event = s->buf ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
	if (s->event >= 0) {
		set_nonblocking(device, true);
		channel_resend(&s->device.channel);
		r = cfs_thread_start("fuse-standby", run, s, &s->thread);
	}
	if (r < 0) {
		set_nonblocking(device, false);
		if (s->event >= 0)
			close(s->event);
		free(s->buf);
		free(s);
		return r;
	}
	*ret = s;
	return 0;
}

bool cfs_fuse_standby_is_ended(struct cfs_fuse_standby *s)
{
	return s && atomic_load(&s->ended);
}

uint64_t cfs_fuse_standby_end(struct cfs_fuse_standby *s)
{
	uint64_t one = 1, failed;
	ssize_t n;

	if (!s)
		return 0;
	n = write(s->event, &one, sizeof(one));
	(void)n; /* it is the first one */
	pthread_join(s->thread, NULL);
	set_nonblocking(s->device.fd, false);
	failed = s->failed;
	close(s->event);
	free(s->buf);
	free(s);
	return failed;
}
