/* SPDX-License-Identifier: Apache-2.0 */
/* Connections over plain TCP, and the socket options of all connections. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "link.h"

#define BUFFER	     (4 << 20)
#define BACKLOG	     1024
#define KEEPALIVE_S  30
#define USER_LOST_MS 60000 /* without acknowledgement, then the connection is lost */

static void set_int(int fd, int level, int name, int value)
{
	(void)setsockopt(fd, level, name, &value, sizeof(value)); /* each option is only for
								   * speed */
}

/*
 * A buffer size that the system limits would be cut to that limit, and would disable the kernel's
 * autotuning, which may go further.
 */
static bool is_allowed(const char *limit)
{
	char text[32];
	int fd = open(limit, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return false;
	text[n] = '\0';
	return strtol(text, NULL, 10) >= BUFFER;
}

static bool set_snd, set_rcv;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void read_limits(void)
{
	set_snd = is_allowed("/proc/sys/net/core/wmem_max");
	set_rcv = is_allowed("/proc/sys/net/core/rmem_max");
}

/*
 * The system's congestion control may be bbr, which costs a third of the bandwidth within a rack
 * and three times the CPU.
 */
static void tune(int fd)
{
	pthread_once(&once, read_limits);
	set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	if (set_snd)
		set_int(fd, SOL_SOCKET, SO_SNDBUF, BUFFER);
	if (set_rcv)
		set_int(fd, SOL_SOCKET, SO_RCVBUF, BUFFER);
	set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
	set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_S);
	set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_S / 3);
	set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
	set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, USER_LOST_MS);
	if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5) < 0)
		(void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

static int tcp_socket(const struct sockaddr *addr)
{
	int fd = socket(addr->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);

	if (fd < 0)
		return -errno;
	tune(fd);
	return fd;
}

int cfs_tcp_listen(const struct sockaddr *addr, socklen_t len)
{
	int fd = tcp_socket(addr), r;

	if (fd < 0)
		return fd;
	set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1);
	if (addr->sa_family == AF_INET6)
		set_int(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
	if (bind(fd, addr, len) == 0 && listen(fd, BACKLOG) == 0)
		return fd;
	r = -errno;
	close(fd);
	return r;
}

int cfs_tcp_accept(struct cfs_link *l, int listen_fd, struct sockaddr_storage *from)
{
	socklen_t len = sizeof(*from);

	memset(from, 0, sizeof(*from));
	l->fd = accept4(listen_fd, (struct sockaddr *)from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (l->fd < 0)
		return -errno;
	l->low = 1;
	tune(l->fd);
	return 0;
}

static int tcp_connect(struct cfs_link *l, const struct sockaddr *addr, socklen_t len)
{
	int r;

	l->fd = tcp_socket(addr);
	if (l->fd < 0)
		return l->fd;
	l->low = 1;
	if (connect(l->fd, addr, len) == 0 || errno == EINPROGRESS)
		return 0;
	r = -errno;
	close(l->fd);
	l->fd = -1;
	return r;
}

int cfs_tcp_connected(struct cfs_link *l)
{
	int err = 0;
	socklen_t len = sizeof(err);

	if (getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0)
		return -errno;
	return -err;
}

static ssize_t tcp_recv(struct cfs_link *l, struct iovec *iov, int n)
{
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = (size_t)n};
	ssize_t r = TEMP_FAILURE_RETRY(recvmsg(l->fd, &msg, MSG_DONTWAIT));

	return r < 0 ? -errno : r;
}

ssize_t cfs_tcp_send(struct cfs_link *l, struct iovec *iov, int n, bool more)
{
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = (size_t)n};
	int flags = MSG_DONTWAIT | MSG_NOSIGNAL | (more ? MSG_MORE : 0);
	ssize_t r = TEMP_FAILURE_RETRY(sendmsg(l->fd, &msg, flags));

	return r < 0 ? -errno : r;
}

ssize_t cfs_tcp_splice(struct cfs_link *l, int pipe_fd, size_t len, bool more)
{
	unsigned flags = SPLICE_F_NONBLOCK | SPLICE_F_MOVE | (more ? SPLICE_F_MORE : 0);
	ssize_t r = TEMP_FAILURE_RETRY(splice(pipe_fd, NULL, l->fd, NULL, len, flags));

	return r < 0 ? -errno : r;
}

static void tcp_expect(struct cfs_link *l, size_t bytes)
{
	if (l->low == (int)bytes)
		return;
	l->low = (int)bytes;
	set_int(l->fd, SOL_SOCKET, SO_RCVLOWAT, l->low);
}

void cfs_tcp_cut(struct cfs_link *l)
{
	(void)shutdown(l->fd, SHUT_RDWR);
}

static void tcp_close(struct cfs_link *l)
{
	close(l->fd);
	l->fd = -1;
}

const struct cfs_link_ops cfs_link_tcp = {
	.transport = CFS_PEER_TCP,
	.listen = cfs_tcp_listen,
	.accept = cfs_tcp_accept,
	.connect = tcp_connect,
	.connected = cfs_tcp_connected,
	.recv = tcp_recv,
	.send = cfs_tcp_send,
	.splice = cfs_tcp_splice,
	.expect = tcp_expect,
	.cut = cfs_tcp_cut,
	.close = tcp_close,
};
