/* SPDX-License-Identifier: Apache-2.0 */
#include "channel.h"

#include <errno.h>

#include "base/log.h"

#define NOTIFY_INC_EPOCH 8 /* the headers at build time may lack it */

int channel_reply(struct cfs_channel *c, const struct cfs_request_id *id, const char *op, int error,
		  struct iovec *iov, int n)
{
	int r = c->ops->reply(c, id, error, iov, n);

	if (r < 0 && r != -ENOENT) {
		cfs_warn("the kernel refuses a reply, the caller gets EIO: op=%s error=%s", op,
			 cfs_errname(r));
		channel_reply_error(c, id, -EIO);
	}
	return r;
}

int channel_reply_error(struct cfs_channel *c, const struct cfs_request_id *id, int error)
{
	struct iovec head;

	return c->ops->reply(c, id, error, &head, 1);
}

void channel_drop_inode(struct cfs_channel *c, uint64_t ino, int64_t off)
{
	struct fuse_notify_inval_inode_out out = {.ino = ino, .off = off}; /* len 0: to the end */
	struct iovec iov[2] = {{0}, {.iov_base = &out, .iov_len = sizeof(out)}};

	/* -ENOENT: the kernel does not know the inode. */
	c->ops->notify(c, FUSE_NOTIFY_INVAL_INODE, iov, 2);
}

void channel_lengthen(struct cfs_channel *c, uint64_t ino, uint64_t length)
{
	struct fuse_notify_store_out out = {.nodeid = ino, .offset = length - 1, .size = 1};
	/*
	 * The kernel takes over the end of the stored bytes first, and then fails to read the byte
	 * (-EFAULT): a byte that arrives could replace a later one.
	 */
	struct iovec iov[3] = {
		{0},
		{.iov_base = &out, .iov_len = sizeof(out)},
		{.iov_base = NULL, .iov_len = 1},
	};

	c->ops->notify(c, FUSE_NOTIFY_STORE, iov, 3);
}

void channel_drop_name(struct cfs_channel *c, uint64_t parent, const char *name, size_t len)
{
	struct fuse_notify_inval_entry_out out = {.parent = parent, .namelen = (uint32_t)len};
	char end = 0; /* of the name, which the kernel wants */
	struct iovec iov[4] = {
		{0},
		{.iov_base = &out, .iov_len = sizeof(out)},
		{.iov_base = (void *)name, .iov_len = len},
		{.iov_base = &end, .iov_len = 1},
	};

	c->ops->notify(c, FUSE_NOTIFY_INVAL_ENTRY, iov, 4);
}

void channel_renew_names(struct cfs_channel *c)
{
	struct iovec head;

	c->ops->notify(c, NOTIFY_INC_EPOCH, &head, 1);
}

void channel_resend(struct cfs_channel *c)
{
	int r = c->ops->resend(c);

	if (r < 0)
		cfs_err("FUSE_NOTIFY_RESEND failed, requests taken before the crash wait until the "
			"mount ends: error=%s",
			cfs_errname(r));
}

bool request_drops_set_id(const struct cfs_request *rq)
{
	const void *body = rq->in + 1;
	size_t len = rq->len - sizeof(*rq->in);

	if (rq->in->opcode == FUSE_WRITE && len >= sizeof(struct fuse_write_in))
		return ((const struct fuse_write_in *)body)->write_flags & FUSE_WRITE_KILL_SUIDGID;
	if (rq->in->opcode == FUSE_SETATTR && len >= sizeof(struct fuse_setattr_in))
		return ((const struct fuse_setattr_in *)body)->valid & FATTR_KILL_SUIDGID;
	return false;
}
