/* SPDX-License-Identifier: Apache-2.0 */
/* read(2) for each request, writev(2) for each reply (fuse(4)). */
#include "device.h"

#include <errno.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/tsan.h"

#define NOTIFY_RESEND 7		  /* interface 7.40 */
#define HEADROOM      (64u << 10) /* of a request, beyond its data */
/* A bit of `unique`: names the FUSE_INTERRUPT of the request. */
#define INTERRUPT_BIT 1ULL

static int device_receive(struct cfs_channel *c, void *buf, struct cfs_request *ret)
{
	const struct cfs_device *d = (const struct cfs_device *)c;
	ssize_t n = read(d->fd, buf, c->buffer_size);

	if (n < 0 && errno == ECONNABORTED)
		return -ENODEV;
	/* ENOENT: the caller was interrupted while the kernel handed the request out. */
	if (n < 0)
		return errno == ENOENT ? -EAGAIN : -errno;
	CFS_TSAN_ACQUIRE(c);
	if (n < (ssize_t)sizeof(*ret->in))
		return -EAGAIN;
	ret->in = buf;
	ret->len = (size_t)n;
	ret->id = (struct cfs_request_id){.unique = ret->in->unique};
	ret->gid = ret->in->gid;
	ret->opcode = ret->in->opcode;
	return 0;
}

static int send_message(struct cfs_channel *c, uint64_t unique, int error, struct iovec *iov, int n)
{
	const struct cfs_device *d = (const struct cfs_device *)c;
	struct fuse_out_header out = {.error = error, .unique = unique};

	out.len = (uint32_t)(sizeof(out) + cfs_iov_len(iov + 1, n - 1));
	iov[0] = (struct iovec){.iov_base = &out, .iov_len = sizeof(out)};
	CFS_TSAN_RELEASE(c);
	return writev(d->fd, iov, n) < 0 ? -errno : 0;
}

static int device_reply(struct cfs_channel *c, const struct cfs_request_id *id, int error,
			struct iovec *iov, int n)
{
	return send_message(c, id->unique, error, iov, n);
}

static int device_notify(struct cfs_channel *c, int code, struct iovec *iov, int n)
{
	return send_message(c, 0, code, iov, n);
}

static int device_resend(struct cfs_channel *c)
{
	struct iovec head;

	return device_notify(c, NOTIFY_RESEND, &head, 1);
}

/*
 * By an answer to a FUSE_INTERRUPT, which changes nothing. The kernel refuses it when the request is
 * not one of those that were read (fs/fuse/dev.c, fuse_dev_do_write()).
 */
bool device_has_unanswered(struct cfs_device *d, uint64_t number)
{
	struct iovec head;

	return send_message(&d->channel, number | INTERRUPT_BIT, 0, &head, 1) == 0 ||
	       send_message(&d->channel, number | CFS_REQUEST_RESENT | INTERRUPT_BIT, 0, &head,
			    1) == 0;
}

static const struct cfs_channel_ops ops = {
	.name = "device",
	.receive = device_receive,
	.reply = device_reply,
	.notify = device_notify,
	.resend = device_resend,
};

void device_init(struct cfs_device *d, int fd, size_t max_io)
{
	*d = (struct cfs_device){
		.channel = {.ops = &ops, .buffer_size = max_io + HEADROOM},
		.fd = fd,
	};
}
