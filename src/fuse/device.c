/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection to the kernel (fuse(4)), and those parts of its messages that libfuse hides: the
 * request that opens the connection (a successor process replays it to its own libfuse), the mark
 * of resent requests, and the flag that clears setuid and setgid when content changes.
 *
 * Requests are read here. Only the first answer matters: while libfuse writes it, the session's
 * descriptor is a socket.
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

#include "base/cleanup.h"
#include "base/log.h"
#include "fuse-internal.h"

#define NOTIFY_RESEND 7
#define HAS_RESEND    (1ULL << 39)
#define HEADROOM      (64u << 10) /* of a request, beyond its data */

static _Thread_local uint64_t taken;   /* unique of the request that this thread read last */
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

size_t device_buffer_size(const struct cfs_fuse *f)
{
	return f->conf.max_io + HEADROOM;
}

ssize_t device_take(struct cfs_fuse *f, void *buf)
{
	const struct fuse_in_header *in = buf;
	ssize_t n = device_read(f->device, buf, device_buffer_size(f));

	if (n < (ssize_t)sizeof(*in))
		return n;
	taken = in->unique;
	taken_drops = drops_set_id(in, (size_t)n);
	dying_note(buf, (size_t)n);
	return n;
}

/* ---- the first request ---- */

#define INIT_MS 30000

/* An answer has at least the flags, in every interface since 7.5. */
struct init_answer {
	struct fuse_out_header head;
	struct fuse_init_out init;
	uint8_t more[256]; /* fields of later interfaces */
};

static int take_init(struct cfs_fuse *f, void *buf, size_t *ret_len)
{
	const struct fuse_in_header *in = buf;
	struct pollfd p = {.fd = f->device, .events = POLLIN};
	ssize_t n;
	int r = poll(&p, 1, INIT_MS);

	if (r <= 0)
		return r < 0 ? -errno : -ETIMEDOUT;
	n = device_take(f, buf);
	if (n < 0)
		return -errno;
	if (n < (ssize_t)sizeof(*in) || in->opcode != FUSE_INIT)
		return -EPROTO;
	*ret_len = (size_t)n;
	return 0;
}

static void keep_init(struct cfs_fuse *f, const void *buf, size_t len)
{
	struct cfs_keep_header *h = cfs_keep_header(f->conf.keep);

	if (len > sizeof(h->init) || atomic_load(&h->init_len))
		return;
	memcpy(h->init, buf, len);
	atomic_store(&h->init_len, (uint32_t)len);
}

/* libfuse negotiates over a socket: its answer arrives here and not at the kernel. */
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
	if (dup3(f->device, session_fd, O_CLOEXEC) < 0)
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

static uint32_t with_flag(uint32_t flags, uint32_t flag, bool on)
{
	return on ? flags | flag : flags & ~flag;
}

/* Sets the flags that libfuse 3.14 has no name for, or forgets to send. */
static void amend(const struct cfs_fuse *f, const void *buf, size_t len, struct init_answer *a)
{
	const struct fuse_in_header *in = buf;
	const struct fuse_init_in *init = (const void *)(in + 1);
	uint32_t offers;

	if (len < sizeof(*in) + offsetof(struct fuse_init_in, flags) + sizeof(init->flags))
		return;
	offers = init->flags;
	a->init.flags =
		with_flag(a->init.flags, FUSE_PARALLEL_DIROPS, offers & FUSE_PARALLEL_DIROPS);
	a->init.flags = with_flag(a->init.flags, FUSE_HANDLE_KILLPRIV_V2,
				  f->conf.drops_set_id && (offers & FUSE_HANDLE_KILLPRIV_V2));
}

static bool is_refusal(const struct cfs_fuse *f, const struct init_answer *a, size_t len)
{
	return fuse_session_exited(f->session) || a->head.error ||
	       len < offsetof(struct init_answer, init.flags) + sizeof(a->init.flags);
}

int device_open(struct cfs_fuse *f, char err[256])
{
	cfs_auto_free void *buf = malloc(device_buffer_size(f));
	struct init_answer answer = {0};
	size_t len = 0, answer_len = 0;
	int r = buf ? take_init(f, buf, &len) : -ENOMEM;

	if (r == 0)
		r = agree(f, buf, len, &answer, &answer_len);
	if (r < 0) {
		snprintf(err, 256, "%s: the kernel's first request: %s", f->mount_point,
			 strerror(-r));
		return r;
	}
	if (f->conf.keep)
		keep_init(f, buf, len);
	if (is_refusal(f, &answer, answer_len)) {
		snprintf(err, 256, "%s: this libfuse and this kernel do not agree", f->mount_point);
		r = -EPROTO;
	} else {
		amend(f, buf, len, &answer);
	}
	if (write(f->device, &answer, answer_len) != (ssize_t)answer_len && r == 0) {
		r = -errno;
		snprintf(err, 256, "%s: the kernel refuses the first answer: %s", f->mount_point,
			 strerror(-r));
	}
	/* The negotiated value replaces the read-ahead of the mount, so it is set afterwards. */
	if (r == 0)
		session_tune_read_ahead(f);
	return r;
}

int device_resume(struct cfs_fuse *f, char err[256])
{
	struct cfs_keep_header *h = cfs_keep_header(f->conf.keep);
	uint32_t len = atomic_load(&h->init_len);
	struct init_answer answer = {0};
	size_t answer_len = 0;
	int r;

	if (len < sizeof(struct fuse_in_header) + sizeof(uint32_t) || len > sizeof(h->init)) {
		snprintf(err, 256, "%s: the mount was not in use yet", f->mount_point);
		return -EPROTO;
	}
	/* The kernel has the answer already. */
	r = agree(f, h->init, len, &answer, &answer_len);
	if (r == 0 && is_refusal(f, &answer, answer_len))
		r = -EPROTO;
	if (r < 0)
		snprintf(err, 256, "%s: this libfuse cannot go on with what was agreed on: %s",
			 f->mount_point, strerror(-r));
	return r;
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
		cfs_err("FUSE_NOTIFY_RESEND failed, requests taken before the crash wait until the "
			"mount ends: error=%s",
			cfs_errname(errno));
}
