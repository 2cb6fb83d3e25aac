/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libfuse answers some requests itself: those without a handler, and those that it refuses. It
 * writes the answers to its descriptor, which is a socket here. A thread reads them and has the
 * channel send them.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"
#include "fuse-internal.h"

#define ANSWER_MAX (64u << 10)

struct own_answers {
	struct cfs_fuse *fuse;
	int sock;
	pthread_t thread;
	uint8_t buf[ANSWER_MAX] __attribute__((aligned(8)));
};

static void forward(struct own_answers *a, size_t len)
{
	const struct fuse_out_header *out = (const void *)a->buf;
	struct cfs_request_id id = ring_find(a->fuse->ring, out->unique);
	struct iovec iov[2] = {
		{0},
		{.iov_base = a->buf + sizeof(*out), .iov_len = len - sizeof(*out)},
	};

	channel_reply(a->fuse->channel, &id, "libfuse", out->error, iov,
		      len > sizeof(*out) ? 2 : 1);
}

static void *run(void *arg)
{
	struct own_answers *a = arg;
	ssize_t n;

	for (;;) {
		n = recv(a->sock, a->buf, sizeof(a->buf), 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < (ssize_t)sizeof(struct fuse_out_header))
			return NULL;
		forward(a, (size_t)n);
	}
}

int own_answers_start(struct cfs_fuse *f)
{
	struct own_answers *a = malloc(sizeof(*a));
	int pair[2], r = a ? 0 : -ENOMEM;

	if (r == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		r = -errno;
	if (r < 0)
		goto out;
	a->fuse = f;
	a->sock = pair[1];
	r = cfs_thread_start("fuse-answers", run, a, &a->thread);
	if (r == 0) {
		f->own = a;
		if (dup3(pair[0], fuse_session_fd(f->session), O_CLOEXEC) < 0) {
			r = -errno;
			own_answers_stop(f);
			a = NULL;
		}
	} else {
		close(pair[1]);
	}
	close(pair[0]);
out:
	if (r < 0)
		free(a);
	return r;
}

void own_answers_stop(struct cfs_fuse *f)
{
	struct own_answers *a = f->own;

	if (!a)
		return;
	if (dup3(f->device.fd, fuse_session_fd(f->session), O_CLOEXEC) < 0)
		cfs_warn("libfuse does not get its descriptor back: mount=%s error=%s",
			 f->mount_point, cfs_errname(-errno));
	/* The thread reads what is left, and then the end. */
	shutdown(a->sock, SHUT_RDWR);
	pthread_join(a->thread, NULL);
	close(a->sock);
	f->own = NULL;
	free(a);
}
