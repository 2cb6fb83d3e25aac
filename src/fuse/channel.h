/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way between the kernel and a session: requests come in, replies and notifications go out.
 * Handlers know nothing else of it. device.c implements it over /dev/fuse.
 *
 * Every function may be called from any thread and at the same time.
 */
#ifndef CFS_CHANNEL_H
#define CFS_CHANNEL_H

#include <linux/fuse.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct cfs_channel;

/* Names a request in its reply. Copied by value; outlives the request's memory. */
struct cfs_request_id {
	uint64_t unique; /* as the kernel sent it, with CFS_REQUEST_RESENT */
	void *entry;	 /* the channel's own record of the request; NULL where it needs none */
};

/*
 * copy_file_range with a reply of 64 bits, which the kernel sends first. Interface 7.45; the
 * headers at build time may lack it.
 */
#define CFS_FUSE_COPY_FILE_RANGE_64 53
struct cfs_copy_file_range_out {
	uint64_t bytes_copied;
};

/*
 * O_TMPFILE: the arguments and the answer of FUSE_CREATE, and "/" for a name. Interface 7.37; the
 * headers at build time may lack it.
 */
#define CFS_FUSE_TMPFILE 51

/* A bit of `unique`: the kernel sends the request again. Interface 7.40; the headers at build time
 * may lack it. */
#define CFS_REQUEST_RESENT (1ULL << 63)

static inline bool request_is_resent(const struct cfs_request_id *id)
{
	return id->unique & CFS_REQUEST_RESENT;
}

/* The same each time the request is sent. */
static inline uint64_t request_number(const struct cfs_request_id *id)
{
	return id->unique & ~CFS_REQUEST_RESENT;
}

struct cfs_request {
	struct cfs_request_id id;
	/*
	 * Header, arguments and payload, in one piece of memory: the receiver's buffer, or the
	 * channel's own. The channel leaves it alone until the receiving thread's next receive,
	 * even when the request is answered earlier by another thread. A handler that passes the
	 * request on copies what it needs.
	 */
	struct fuse_in_header *in;
	size_t len;
	/* As the kernel sent them. The header has what libfuse needs instead (loop.c). */
	uint32_t gid, opcode;
	bool other_node; /* sent for the inode's other node; in->nodeid is the inode's number */
};

/*
 * Waits for a request. buf: the calling thread's, of channel->buffer_size bytes. -EINTR: a signal
 * was handled; -EAGAIN: the request was withdrawn, or there is none and the channel does not block;
 * -ENODEV: the connection has ended. After any other error the channel is of no more use.
 *
 * The kernel sends the release of a handle after the answers to all requests that use the handle.
 * ThreadSanitizer does not see that order, so the device tells it (base/tsan.h).
 */
typedef int cfs_channel_receive_fn(struct cfs_channel *c, void *buf, struct cfs_request *ret);
/*
 * Answers a request. error: 0 or a negative errno. iov[0] is left to the channel for its header,
 * the reply's n - 1 pieces follow. Does not wait for the kernel, and keeps no reference to the
 * pieces. -ENOENT: the request was answered before, or the kernel has withdrawn it; nothing is
 * sent. The channel tells that from a later request with the same entry.
 */
typedef int cfs_channel_reply_fn(struct cfs_channel *c, const struct cfs_request_id *id, int error,
				 struct iovec *iov, int n);
/*
 * Sends an unasked message (enum fuse_notify_code); iov as above. May wait for requests under way.
 */
typedef int cfs_channel_notify_fn(struct cfs_channel *c, int code, struct iovec *iov, int n);
/* Has the kernel send again the requests that a dead process received and did not answer. */
typedef int cfs_channel_resend_fn(struct cfs_channel *c);

struct cfs_channel_ops {
	const char *name;
	cfs_channel_receive_fn *receive;
	cfs_channel_reply_fn *reply;
	cfs_channel_notify_fn *notify;
	cfs_channel_resend_fn *resend;
};

struct cfs_channel {
	const struct cfs_channel_ops *ops;
	size_t buffer_size; /* of a receiving thread; 0: the channel has memory of its own */
};

/* ---- messages ---- */

/*
 * Answers a request, as cfs_channel_reply_fn. When the kernel refuses the reply, the caller gets
 * EIO, so that it does not wait for ever. Negative: nothing of the reply has arrived. op: for the
 * log.
 */
int channel_reply(struct cfs_channel *c, const struct cfs_request_id *id, const char *op, int error,
		  struct iovec *iov, int n);
/* Answers with a number only. */
int channel_reply_error(struct cfs_channel *c, const struct cfs_request_id *id, int error);
/* Makes the kernel drop attributes of an inode, and cached pages from off on (-1: none). */
void channel_drop_inode(struct cfs_channel *c, uint64_t ino, int64_t off);
/* Makes the kernel take the file for at least so long; its pages stay as they are. */
void channel_lengthen(struct cfs_channel *c, uint64_t ino, uint64_t length);
/* Makes the kernel drop a cached name, and its directory's attributes. */
void channel_drop_name(struct cfs_channel *c, uint64_t parent, const char *name, size_t len);
/*
 * Makes the kernel look up every cached name again before it uses it. A kernel older than interface
 * 7.44 keeps each name for its cache timeout.
 */
void channel_renew_names(struct cfs_channel *c);
/* cfs_channel_resend_fn; logs a failure. */
void channel_resend(struct cfs_channel *c);
/* Whether the request changes content on behalf of a caller that may not keep setuid and setgid. */
bool request_drops_set_id(const struct cfs_request *rq);

#endif
