/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The standby of a connection that has no serving process. Requests from the kernel stay
 * unanswered, as the next process has them resent (channel_resend()); after a deadline each is
 * answered with EIO. A release, and a flush of a handle that nothing was written through, are
 * answered at once, and releases are noted for the next process. A wait for a file lock has no
 * deadline, here as elsewhere. Only numbers are kept of a request.
 */
#include <cachefs/fuse.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "fuse-internal.h"

#define HELD_MAX 4096 /* the kernel keeps further requests until there is room */
#define MORE_MS	 5000 /* for requests that have waited for a process before */

struct held {
	struct cfs_request_id id;
	cfs_deadline_t until;
};

struct cfs_fuse_hold {
	struct cfs_keep *keep;
	struct cfs_device device;
	int event;
	uint64_t timeout_ms;
	cfs_deadline_t resent_until;
	pthread_t thread;
	_Atomic bool ended; /* the connection */
	uint64_t failed;

	void *buf;
	size_t n;
	struct held held[HELD_MAX];
};

static void answer(struct cfs_fuse_hold *h, const struct cfs_request_id *id, int error)
{
	int r = channel_reply_error(&h->device.channel, id, error);

	/* -ENOENT: the caller no longer waits. */
	if (r < 0 && r != -ENOENT)
		cfs_debug("the kernel does not take an answer: error=%s", cfs_errname(r));
}

/* The previous process may have opened a handle that the caller will never learn of. */
static void forget(struct cfs_fuse_hold *h, const struct cfs_request_id *id)
{
	struct cfs_keep_request *r;
	uint64_t fh;
	bool again;

	if (!request_is_resent(id))
		return;
	r = cfs_keep_begin(h->keep, request_number(id), true, &again);
	fh = r && again ? atomic_load(&r->fh) : 0;
	if (fh)
		cfs_keep_released(h->keep, fh);
	cfs_keep_end(r);
}

static void fail(struct cfs_fuse_hold *h, size_t i, int error)
{
	answer(h, &h->held[i].id, error);
	forget(h, &h->held[i].id);
	h->held[i] = h->held[--h->n];
	h->failed++;
}

static void fail_late(struct cfs_fuse_hold *h)
{
	cfs_deadline_t now = cfs_now_ms();
	size_t i = 0;

	while (i < h->n) {
		if (h->held[i].until <= now)
			fail(h, i, -EIO);
		else
			i++;
	}
}

static void interrupt(struct cfs_fuse_hold *h, uint64_t unique)
{
	size_t i;

	for (i = 0; i < h->n; i++) {
		if (h->held[i].id.unique == unique) {
			fail(h, i, -EINTR);
			return;
		}
	}
}

static void hold(struct cfs_fuse_hold *h, const struct cfs_request *rq)
{
	cfs_deadline_t until = cfs_deadline_in(h->timeout_ms);

	if (rq->in->opcode == FUSE_SETLKW)
		until = UINT64_MAX;
	else if (request_is_resent(&rq->id))
		until = h->resent_until;
	h->held[h->n++] = (struct held){rq->id, until};
}

static void take(struct cfs_fuse_hold *h, const struct cfs_request *rq)
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
			interrupt(h, ((const struct fuse_interrupt_in *)arg)->unique);
		break;
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
		if (len >= sizeof(*in) + sizeof(struct fuse_release_in))
			cfs_keep_released(h->keep, ((const struct fuse_release_in *)arg)->fh);
		answer(h, &rq->id, 0);
		break;
	case FUSE_FLUSH:
		if (len >= sizeof(*in) + sizeof(struct fuse_flush_in) &&
		    cfs_keep_is_clean(h->keep, ((const struct fuse_flush_in *)arg)->fh))
			answer(h, &rq->id, 0);
		else
			hold(h, rq);
		break;
	default:
		hold(h, rq);
	}
}

static int wait_ms(const struct cfs_fuse_hold *h)
{
	cfs_deadline_t first = UINT64_MAX;
	size_t i;

	for (i = 0; i < h->n; i++)
		first = cfs_deadline_min(first, h->held[i].until);
	return first == UINT64_MAX ? -1
				   : (int)CFS_MIN(cfs_deadline_left_ms(first), (uint64_t)INT_MAX);
}

static void *run(void *arg)
{
	struct cfs_fuse_hold *h = arg;
	struct pollfd p[2] = {{.fd = h->event, .events = POLLIN}, {.events = POLLIN}};
	struct cfs_channel *c = &h->device.channel;
	struct cfs_request rq;
	int r;

	for (;;) {
		p[1].fd = h->n < HELD_MAX ? h->device.fd : -1;
		if (poll(p, 2, wait_ms(h)) < 0 && errno != EINTR)
			break;
		if (p[0].revents)
			break;
		fail_late(h);
		r = h->n < HELD_MAX ? c->ops->receive(c, h->buf, &rq) : -EAGAIN;
		if (r == 0) {
			take(h, &rq);
		} else if (r == -ENODEV) {
			atomic_store(&h->ended, true);
			break;
		}
	}
	return NULL;
}

/* The file is the same for every process that has the connection. */
static void set_nonblocking(int device, bool on)
{
	int flags = fcntl(device, F_GETFL);

	if (flags >= 0)
		fcntl(device, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
}

int cfs_fuse_hold_begin(int device, struct cfs_keep *keep, uint64_t timeout_ms, uint64_t since_ms,
			struct cfs_fuse_hold **ret)
{
	struct cfs_fuse_hold *h = calloc(1, sizeof(*h));
	uint64_t more_ms = CFS_MIN(timeout_ms, (uint64_t)MORE_MS);
	int r = -ENOMEM;

	if (!h)
		return r;
	device_init(&h->device, device, cfs_keep_header(keep)->max_write);
	h->keep = keep;
	h->timeout_ms = timeout_ms;
	h->resent_until = CFS_MAX(since_ms + timeout_ms, cfs_deadline_in(more_ms));
	h->buf = malloc(h->device.channel.buffer_size);
	h->event = h->buf ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
	if (h->event >= 0) {
		set_nonblocking(device, true);
		channel_resend(&h->device.channel);
		r = cfs_thread_start("fuse-hold", run, h, &h->thread);
	}
	if (r < 0) {
		set_nonblocking(device, false);
		if (h->event >= 0)
			close(h->event);
		free(h->buf);
		free(h);
		return r;
	}
	*ret = h;
	return 0;
}

bool cfs_fuse_hold_is_ended(struct cfs_fuse_hold *h)
{
	return h && atomic_load(&h->ended);
}

uint64_t cfs_fuse_hold_end(struct cfs_fuse_hold *h)
{
	uint64_t one = 1, failed;
	ssize_t n;

	if (!h)
		return 0;
	n = write(h->event, &one, sizeof(one));
	(void)n; /* it is the first one */
	pthread_join(h->thread, NULL);
	set_nonblocking(h->device.fd, false);
	failed = h->failed;
	close(h->event);
	free(h->buf);
	free(h);
	return failed;
}
