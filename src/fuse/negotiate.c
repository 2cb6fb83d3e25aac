/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Negotiation of a mount with the kernel in its first request, FUSE_INIT. A successor process
 * replays that request to its own libfuse. Only the first answer is read here: while libfuse
 * writes it, the session's descriptor is a socket. So the answer can carry flags that this libfuse
 * does not know.
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
#include "fuse-internal.h"

#define INIT_MS	   30000
#define HAS_RESEND (1ULL << 39)

static void want(struct fuse_conn_info *conn, unsigned cap, bool on)
{
	if (on)
		conn->want |= conn->capable & cap;
	else
		conn->want &= ~cap;
}

static void choose(struct cfs_fuse *f, struct fuse_conn_info *conn)
{
	conn->max_write = f->conf.max_io;
	conn->max_read = f->conf.max_io; /* must repeat the mount option */
	conn->time_gran = 1;
	conn->max_background = 64;
	conn->congestion_threshold = 48;
	want(conn, FUSE_CAP_ASYNC_READ | FUSE_CAP_ASYNC_DIO, true);
	want(conn, FUSE_CAP_PARALLEL_DIROPS, true);
	want(conn, FUSE_CAP_ATOMIC_O_TRUNC, true);
	want(conn, FUSE_CAP_EXPORT_SUPPORT, true);
	want(conn, FUSE_CAP_IOCTL_DIR, true);
	want(conn, FUSE_CAP_POSIX_LOCKS | FUSE_CAP_FLOCK_LOCKS, !f->conf.local_locks);
	/* A write of another client shows as a newer mtime, on which the kernel drops its pages. */
	want(conn, FUSE_CAP_AUTO_INVAL_DATA, true);
	want(conn, FUSE_CAP_CACHE_SYMLINKS, true);
	/*
	 * Listings always carry attributes: otherwise each stat after one is a metadata round trip,
	 * and the kernel's heuristic (auto) asks for them in the first part only.
	 */
	want(conn, FUSE_CAP_READDIRPLUS, true);
	want(conn, FUSE_CAP_READDIRPLUS_AUTO, false);
	/* The umask must not be applied where the parent has a default ACL. */
	want(conn, FUSE_CAP_DONT_MASK, true);
	/* The kernel then checks ACLs, and turns on default_permissions. */
	want(conn, FUSE_CAP_POSIX_ACL, f->conf.posix_acl);
	/* The kernel then clears setuid and setgid by explicit setattr, only where they are set. */
	want(conn, FUSE_CAP_HANDLE_KILLPRIV, false);
	/* Requests arrive in memory and replies leave from pinned pages: pipes would add copies. */
	want(conn, FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE, false);
	want(conn, FUSE_CAP_WRITEBACK_CACHE, f->conf.writeback_cache);
}

/* A later process cannot change settings that the kernel got at the start. */
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

/* An answer has at least the flags, in every interface since 7.5. */
struct init_answer {
	struct fuse_out_header head;
	struct fuse_init_out init;
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

int negotiate_mount(struct cfs_fuse *f, char err[256])
{
	cfs_auto_free void *buf = malloc(f->channel->buffer_size);
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
	if (f->conf.handoff)
		keep_init(f, buf, len);
	if (is_refusal(f, &answer, answer_len)) {
		snprintf(err, 256, "%s: this libfuse and this kernel do not agree", f->mount_point);
		r = -EPROTO;
	} else {
		amend(f, buf, len, &answer);
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

bool cfs_fuse_can_resume(struct cfs_handoff *handoff)
{
	const struct cfs_handoff_header *h = cfs_handoff_header(handoff);
	uint32_t len = atomic_load(&h->init_len);
	struct fuse_init_in in;
	uint64_t flags;

	if (len < sizeof(struct fuse_in_header) + sizeof(in))
		return false;
	memcpy(&in, h->init + sizeof(struct fuse_in_header), sizeof(in));
	flags = in.flags | (in.flags & FUSE_INIT_EXT ? (uint64_t)in.flags2 << 32 : 0);
	return flags & HAS_RESEND;
}
