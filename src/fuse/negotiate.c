/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Negotiation with the kernel by its first request, FUSE_INIT. libfuse writes its answer to a
 * socket. Here the flags in it are replaced by those of the table (agreement.h), some of which this
 * libfuse may not know, and the answer is sent to the kernel. A successor process replays the
 * request to its own libfuse and drops the answer.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agreement.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "fuse-internal.h"

#define INIT_MS 30000

static void choose(struct cfs_fuse *f, struct fuse_conn_info *conn)
{
	uint64_t on, off;

	conn->max_write = f->conf.max_io;
	conn->max_read = f->conf.max_io; /* must repeat the mount option */
	conn->time_gran = 1;
	conn->max_background = 64;
	conn->congestion_threshold = 48;
	agreement_caps(&f->conf, &on, &off);
	conn->want = (conn->want & ~(unsigned)off) | (conn->capable & (unsigned)on);
}

/* A successor process cannot change what the kernel was told at the start. */
void op_init(void *userdata, struct fuse_conn_info *conn)
{
	struct cfs_fuse *f = userdata;
	struct cfs_handoff_header *h = f->conf.handoff ? cfs_handoff_header(f->conf.handoff) : NULL;

	if (!h || f->conf.device < 0)
		choose(f, conn);
	if (!h)
		return;
	if (f->conf.device < 0) {
		h->want = conn->want;
		h->max_write = conn->max_write;
		h->max_read = conn->max_read;
		h->max_background = conn->max_background;
		h->congestion_threshold = conn->congestion_threshold;
		return;
	}
	conn->want = h->want;
	conn->max_write = h->max_write;
	conn->max_read = h->max_read;
	conn->max_background = h->max_background;
	conn->congestion_threshold = h->congestion_threshold;
	conn->time_gran = 1;
}

/* ---- the exchange ---- */

struct init_answer {
	struct fuse_out_header head;
	struct init_out init;
	uint8_t more[256]; /* fields of later interfaces */
};

static int take_init(struct cfs_fuse *f, void *buf, size_t *ret_len)
{
	struct pollfd p = {.fd = f->device.fd, .events = POLLIN};
	struct cfs_request rq;
	int r = poll(&p, 1, INIT_MS);

	if (r <= 0)
		return r < 0 ? -errno : -ETIMEDOUT;
	r = f->channel->ops->receive(f->channel, buf, &rq);
	if (r < 0)
		return r;
	if (rq.in->opcode != FUSE_INIT)
		return -EPROTO;
	*ret_len = rq.len;
	return 0;
}

static void keep_init(struct cfs_fuse *f, const void *buf, size_t len)
{
	struct cfs_handoff_header *h = cfs_handoff_header(f->conf.handoff);

	if (len > sizeof(h->init) || atomic_load(&h->init_len))
		return;
	memcpy(h->init, buf, len);
	atomic_store(&h->init_len, (uint32_t)len);
}

/* Has libfuse answer the request, and catches the answer in a socket. */
static int agree(struct cfs_fuse *f, void *buf, size_t len, struct init_answer *ret,
		 size_t *ret_len)
{
	struct fuse_buf request = {.mem = buf, .size = len};
	int session_fd = fuse_session_fd(f->session), pair[2], r = 0;
	ssize_t n = -1;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	if (dup3(pair[0], session_fd, O_CLOEXEC) < 0) {
		r = -errno;
		goto out;
	}
	fuse_session_process_buf(f->session, &request);
	n = recv(pair[1], ret, sizeof(*ret), MSG_DONTWAIT | MSG_TRUNC);
	if (dup3(f->device.fd, session_fd, O_CLOEXEC) < 0)
		r = -errno;
	else if (n < (ssize_t)sizeof(ret->head) || n > (ssize_t)sizeof(*ret))
		r = -EPROTO;
	else
		*ret_len = (size_t)n;
out:
	close(pair[0]);
	close(pair[1]);
	return r;
}

static uint64_t offered_flags(const void *request, size_t len)
{
	struct fuse_init_in in = {0};
	size_t head = sizeof(struct fuse_in_header);

	if (len > head)
		memcpy(&in, (const uint8_t *)request + head, CFS_MIN(len - head, sizeof(in)));
	return in.flags | (in.flags & FUSE_INIT_EXT ? (uint64_t)in.flags2 << 32 : 0);
}

/* Sets the flags of the answer, and describes the agreement in conf.agreement. */
static int amend(struct cfs_fuse *f, const void *buf, size_t len, struct init_answer *a,
		 char err[256])
{
	struct cfs_agreement *ret = f->conf.agreement;
	uint64_t asked = offered_flags(buf, len), wanted, sent;

	if (!(asked & INIT_OVER_IO_URING)) {
		if (f->needs_ring)
			return cfs_fail(err, -EOPNOTSUPP,
					"io_uring=on: the kernel does not offer "
					"it");
		session_without_ring(f, "the kernel does not offer it");
	}
	wanted = agreement_wanted(&f->conf);
	sent = asked & wanted;
	f->payload = CFS_MAX(a->init.max_write, (size_t)a->init.max_pages * (size_t)getpagesize());
	f->payload = CFS_MAX(f->payload, (size_t)FUSE_MIN_READ_BUFFER);
	a->init.flags = (uint32_t)sent;
	a->init.flags2 = (uint32_t)(sent >> 32);
	/* Files may be on file systems that are not stacked themselves. */
	if (sent & INIT_PASSTHROUGH) {
		a->init.max_stack_depth = 1;
		if (f->conf.handoff)
			cfs_handoff_header(f->conf.handoff)->version =
				CFS_HANDOFF_VERSION_PASSTHROUGH;
	}
	*ret = (struct cfs_agreement){
		.asked = asked,
		.wanted = wanted,
		.sent = sent,
		.minor = a->init.minor,
		.max_write = a->init.max_write,
		.max_readahead = a->init.max_readahead,
		.max_pages = a->init.max_pages,
		.max_background = a->init.max_background,
		.congestion_threshold = a->init.congestion_threshold,
		.time_gran_ns = a->init.time_gran,
		.max_stack_depth = a->init.max_stack_depth,
	};
	return 0;
}

static bool is_refusal(const struct cfs_fuse *f, const struct init_answer *a, size_t len)
{
	return fuse_session_exited(f->session) || a->head.error ||
	       len < offsetof(struct init_answer, more);
}

int negotiate_mount(struct cfs_fuse *f, char err[256])
{
	cfs_auto_free void *buf = malloc(f->channel->buffer_size);
	struct init_answer answer = {0};
	size_t len = 0, answer_len = 0;
	int r = buf ? take_init(f, buf, &len) : -ENOMEM;

	if (r == 0)
		r = agree(f, buf, len, &answer, &answer_len);
	if (r < 0)
		return cfs_fail(err, r, "%s: the kernel's first request: %s", f->mount_point,
				strerror(-r));
	if (f->conf.handoff)
		keep_init(f, buf, len);
	if (is_refusal(f, &answer, answer_len)) {
		r = cfs_fail(err, -EPROTO, "%s: this libfuse and this kernel do not agree",
			     f->mount_point);
	} else {
		r = amend(f, buf, len, &answer, err);
	}
	if (write(f->device.fd, &answer, answer_len) != (ssize_t)answer_len && r == 0) {
		r = -errno;
		snprintf(err, 256, "%s: the kernel refuses the first answer: %s", f->mount_point,
			 strerror(-r));
	}
	/* The negotiated value replaces the read-ahead of the mount, so it is set afterwards. */
	if (r == 0)
		session_tune_read_ahead(f);
	return r;
}

int negotiate_resume(struct cfs_fuse *f, char err[256])
{
	struct cfs_handoff_header *h = cfs_handoff_header(f->conf.handoff);
	uint32_t len = atomic_load(&h->init_len);
	struct init_answer answer = {0};
	size_t answer_len = 0;
	int r;

	if (len < sizeof(struct fuse_in_header) + sizeof(uint32_t) || len > sizeof(h->init))
		return cfs_fail(err, -EPROTO, "%s: the mount was not in use yet", f->mount_point);
	/* The kernel has the answer already. */
	r = agree(f, h->init, len, &answer, &answer_len);
	if (r == 0 && is_refusal(f, &answer, answer_len))
		r = -EPROTO;
	if (r < 0)
		snprintf(err, 256, "%s: this libfuse cannot go on with what was agreed on: %s",
			 f->mount_point, strerror(-r));
	return r;
}

bool cfs_fuse_can_resume(struct cfs_handoff *handoff)
{
	const struct cfs_handoff_header *h = cfs_handoff_header(handoff);
	uint32_t len = atomic_load(&h->init_len);

	return len < sizeof(h->init) && (offered_flags(h->init, len) & INIT_HAS_RESEND);
}
