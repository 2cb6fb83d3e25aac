/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport table: what carries a connection's bytes. tcp is the one there is; TLS differs in
 * connected/recv/send (and has no splice without kernel TLS).
 *
 * Nothing waits: -EAGAIN when it would; then poll(2) on fd says when to try again. All on the
 * loop's thread, except that send of a client's connection may be called by others, one at a time.
 */
#ifndef CFS_TRANSPORT_LINK_H
#define CFS_TRANSPORT_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

struct cfs_link {
	const struct cfs_link_ops *ops;
	int fd;
	int low; /* what expect has set */
};

/* A descriptor that listens, or a negative errno. */
typedef int (*cfs_link_listen_fn)(const struct sockaddr *addr, socklen_t len);
/* A connection that has arrived; -EAGAIN: none. */
typedef int (*cfs_link_accept_fn)(struct cfs_link *l, int listen_fd, struct sockaddr_storage *from);
/* Starts connecting; fd becomes writable when that has ended. */
typedef int (*cfs_link_connect_fn)(struct cfs_link *l, const struct sockaddr *addr, socklen_t len);
/* How it has ended. */
typedef int (*cfs_link_connected_fn)(struct cfs_link *l);
/* 0: the other side has closed. */
typedef ssize_t (*cfs_link_recv_fn)(struct cfs_link *l, struct iovec *iov, int n);
/* more: the next send follows at once. */
typedef ssize_t (*cfs_link_send_fn)(struct cfs_link *l, struct iovec *iov, int n, bool more);
/* Moves up to len bytes out of a pipe. Optional: large answers are copied. */
typedef ssize_t (*cfs_link_splice_fn)(struct cfs_link *l, int pipe_fd, size_t len, bool more);
/* fd is not to be seen as readable before so many bytes are there. Optional. */
typedef void (*cfs_link_expect_fn)(struct cfs_link *l, size_t bytes);
/* Cuts it in both directions; fd stays until close. Any thread. */
typedef void (*cfs_link_cut_fn)(struct cfs_link *l);
typedef void (*cfs_link_close_fn)(struct cfs_link *l);

struct cfs_link_ops {
	const char *name;
	cfs_link_listen_fn listen;
	cfs_link_accept_fn accept;
	cfs_link_connect_fn connect;
	cfs_link_connected_fn connected;
	cfs_link_recv_fn recv;
	cfs_link_send_fn send;
	cfs_link_splice_fn splice;
	cfs_link_expect_fn expect;
	cfs_link_cut_fn cut;
	cfs_link_close_fn close;
};

extern const struct cfs_link_ops cfs_link_tcp;

#endif
