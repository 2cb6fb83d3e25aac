/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of byte streams under a connection: tcp, tls, and tls with sent data encrypted by the
 * kernel.
 *
 * No call waits: one that would returns -EAGAIN, and poll(2) on fd tells when to retry. All calls
 * are on the loop's thread, except for a client's connection: send may be called by other threads,
 * one at a time; recv and expect by the thread in inline receive (inline.c). After -EAGAIN the next
 * send must start with the same bytes.
 */
#ifndef CFS_TRANSPORT_LINK_H
#define CFS_TRANSPORT_LINK_H

#include <cachefs/transport.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#define CFS_LINK_BINDING 32

struct cfs_link {
	const struct cfs_link_ops *ops;
	int fd;
	int low;	/* value of the last expect */
	bool unread;	/* data may be buffered here, which poll(2) does not see */
	bool key_limit; /* too many records under its keys (RFC 8446 5.5): open another connection */
	struct cfs_tls *tls; /* set before accept or connect; unused by tcp */
	struct cfs_tls_session *session;
};

struct cfs_link_ops {
	enum cfs_peer_transport transport;
	/* Returns a listening descriptor, or a negative errno. */
	int (*listen)(const struct sockaddr *addr, socklen_t len);
	/* Accepts a connection; -EAGAIN: none. */
	int (*accept)(struct cfs_link *l, int listen_fd, struct sockaddr_storage *from);
	/* Starts connecting; fd becomes writable when that has ended. */
	int (*connect)(struct cfs_link *l, const struct sockaddr *addr, socklen_t len);
	/* The result of connecting: 0, or a negative errno. */
	int (*connected)(struct cfs_link *l);
	/*
	 * Handshake of the link; optional. 0: done, and ops may be others; -EAGAIN: call again once
	 * fd is readable (*ret_out: writable). -EPROTOTYPE: the other side does not speak this
	 * protocol.
	 */
	int (*handshake)(struct cfs_link *l, bool *ret_out);
	/*
	 * A secret that only the two ends of this connection know (RFC 9266); optional, after the
	 * handshake.
	 */
	void (*binding)(struct cfs_link *l, uint8_t ret[CFS_LINK_BINDING]);
	/* 0: the other side has closed. */
	ssize_t (*recv)(struct cfs_link *l, struct iovec *iov, int n);
	/* more: the next send follows at once. */
	ssize_t (*send)(struct cfs_link *l, struct iovec *iov, int n, bool more);
	/* Moves up to len bytes out of a pipe. Optional: large answers are copied. */
	ssize_t (*splice)(struct cfs_link *l, int pipe_fd, size_t len, bool more);
	/* poll(2) shows fd as readable only from so many bytes on (SO_RCVLOWAT). Optional. */
	void (*expect)(struct cfs_link *l, size_t bytes);
	/* Shuts the connection down in both directions; fd stays open until close. Any thread. */
	void (*cut)(struct cfs_link *l);
	void (*close)(struct cfs_link *l);
};

/* Members of the table for TCP that TLS has, too. */
int cfs_tcp_listen(const struct sockaddr *addr, socklen_t len);
int cfs_tcp_accept(struct cfs_link *l, int listen_fd, struct sockaddr_storage *from);
int cfs_tcp_connected(struct cfs_link *l);
ssize_t cfs_tcp_send(struct cfs_link *l, struct iovec *iov, int n, bool more);
ssize_t cfs_tcp_splice(struct cfs_link *l, int pipe_fd, size_t len, bool more);
void cfs_tcp_cut(struct cfs_link *l);

extern const struct cfs_link_ops cfs_link_tcp;
extern const struct cfs_link_ops cfs_link_tls; /* tls.h */

#endif
