/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection to the kernel (fuse(4)): what must be seen of the messages that libfuse does not
 * show. That is the request that opens the connection, which a process that goes on with it gives
 * to its own libfuse, the mark of requests that are sent a second time, and who clears setuid and
 * setgid when content changes.
 */
#include <errno.h>
#include <linux/fuse.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/log.h"
#include "fuse-internal.h"

#define NOTIFY_RESEND 7
#define HAS_RESEND    (1ULL << 39)

static _Thread_local uint64_t taken;   /* unique of the request that this thread has taken */
static _Thread_local bool taken_first; /* it is the one that opens the connection, */
static _Thread_local bool taken_offer; /* and would leave setuid and setgid to us */
static _Thread_local bool taken_drops; /* device_drops_set_id() */

uint64_t device_unique(bool *ret_resent)
{
	*ret_resent = taken & DEVICE_RESENT;
	return taken & ~DEVICE_RESENT;
}

bool device_drops_set_id(void)
{
	return taken_drops;
}

static bool drops_set_id(const struct fuse_in_header *in, size_t len)
{
	const void *body = in + 1;

	len -= sizeof(*in);
	if (in->opcode == FUSE_WRITE && len >= sizeof(struct fuse_write_in))
		return ((const struct fuse_write_in *)body)->write_flags & FUSE_WRITE_KILL_SUIDGID;
	if (in->opcode == FUSE_SETATTR && len >= sizeof(struct fuse_setattr_in))
		return ((const struct fuse_setattr_in *)body)->valid & FATTR_KILL_SUIDGID;
	return false;
}

ssize_t device_read(int device, void *buf, size_t size)
{
	ssize_t n = read(device, buf, size);

	if (n < 0 && errno == ECONNABORTED)
		errno = ENODEV;
	return n;
}

static bool offers_set_id(const struct fuse_in_header *in, size_t len)
{
	const struct fuse_init_in *init = (const void *)(in + 1);

	return len >= sizeof(*in) + offsetof(struct fuse_init_in, flags) + sizeof(init->flags) &&
	       (init->flags & FUSE_HANDLE_KILLPRIV_V2);
}

/* libfuse 3.14 has no name for it. */
static void accept_set_id(struct iovec *iov, int count)
{
	struct fuse_init_out *out;

	if (count != 2 || iov[1].iov_len < FUSE_COMPAT_22_INIT_OUT_SIZE)
		return;
	out = iov[1].iov_base;
	out->flags |= FUSE_HANDLE_KILLPRIV_V2;
}

static void keep_init(struct cfs_fuse *f, const void *buf, size_t len)
{
	struct cfs_keep_header *h = cfs_keep_header(f->conf.keep);

	if (len > sizeof(h->init) || atomic_load(&h->init_len))
		return;
	memcpy(h->init, buf, len);
	atomic_store(&h->init_len, (uint32_t)len);
}

/*
 * libfuse ends threads that wait here by cancelling them. So nothing of this lies on the stack: the
 * address sanitizer would go on guarding it for those who use the stack next.
 */
static ssize_t take(int fd, void *buf, size_t size, void *userdata)
{
	const struct fuse_in_header *in = buf;
	struct cfs_fuse *f = userdata;
	ssize_t n = device_read(fd, buf, size);

	if (n < (ssize_t)sizeof(*in))
		return n;
	taken = in->unique;
	taken_drops = drops_set_id(in, (size_t)n);
	taken_first = in->opcode == FUSE_INIT;
	taken_offer = taken_first && offers_set_id(in, (size_t)n);
	if (taken_first && f->conf.keep)
		keep_init(f, buf, (size_t)n);
	return n;
}

static ssize_t answer(int fd, struct iovec *iov, int count, void *userdata)
{
	struct cfs_fuse *f = userdata;
	ssize_t n = 0;
	int i;

	if (!atomic_load_explicit(&f->muted, memory_order_relaxed)) {
		if (taken_offer && f->conf.drops_set_id)
			accept_set_id(iov, count);
		taken_offer = false;
		n = writev(fd, iov, count);
		/* What was agreed on sets it; who has mounted is not to meet us there. */
		if (taken_first)
			session_tune_read_ahead(f);
		taken_first = false;
		return n;
	}
	for (i = 0; i < count; i++)
		n += (ssize_t)iov[i].iov_len;
	return n;
}

int device_attach(struct cfs_fuse *f)
{
	static const struct fuse_custom_io io = {.writev = answer, .read = take};

	return fuse_session_custom_io(f->session, &io, fuse_session_fd(f->session));
}

int device_resume(struct cfs_fuse *f, char err[256])
{
	struct cfs_keep_header *h = cfs_keep_header(f->conf.keep);
	uint32_t len = atomic_load(&h->init_len);
	struct fuse_buf buf = {.mem = h->init, .size = len};

	if (len < sizeof(struct fuse_in_header) + sizeof(uint32_t) || len > sizeof(h->init)) {
		snprintf(err, 256, "%s: the mount was not in use yet", f->mount_point);
		return -EPROTO;
	}
	atomic_store(&f->muted, true);
	fuse_session_process_buf(f->session, &buf);
	atomic_store(&f->muted, false);
	if (fuse_session_exited(f->session)) {
		snprintf(err, 256, "%s: this libfuse cannot go on with what was agreed on",
			 f->mount_point);
		return -EPROTO;
	}
	return 0;
}

bool cfs_fuse_can_resume(struct cfs_keep *keep)
{
	const struct cfs_keep_header *h = cfs_keep_header(keep);
	uint32_t len = atomic_load(&h->init_len);
	struct fuse_init_in in;
	uint64_t flags;

	if (len < sizeof(struct fuse_in_header) + sizeof(in))
		return false;
	memcpy(&in, h->init + sizeof(struct fuse_in_header), sizeof(in));
	flags = in.flags | (in.flags & FUSE_INIT_EXT ? (uint64_t)in.flags2 << 32 : 0);
	return flags & HAS_RESEND;
}

void device_ask_again(int device)
{
	struct fuse_out_header out = {.len = sizeof(out), .error = NOTIFY_RESEND};

	if (write(device, &out, sizeof(out)) != sizeof(out))
		cfs_err("the kernel does not send again what was left unanswered, who waits for "
			"that waits until the mount ends: error=%s",
			cfs_errname(errno));
}
