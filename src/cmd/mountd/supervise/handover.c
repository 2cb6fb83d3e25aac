/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/mountd/supervise/handover.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"

#define VERSION 1u
/* The lock is held for a system call or two. */
#define LOCK_NAME     "/lock"
#define LOCK_MS	      1000
#define LOCK_AGAIN_MS 1
#define WIRE	      offsetof(struct handover, fds)

int handover_pair(int ret[2])
{
	return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ret) < 0 ? -errno : 0;
}

int handover_send(int sock, enum handover_kind kind, uint64_t number, const char *text,
		  const int fds[HANDOVER_FDS])
{
	struct handover m = {.version = VERSION, .kind = kind, .number = number};
	union {
		char bytes[CMSG_SPACE(HANDOVER_FDS * sizeof(int))];
		struct cmsghdr align;
	} control = {0};
	struct iovec iov = {.iov_base = &m, .iov_len = WIRE};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	struct cmsghdr *c;
	size_t n = 0;

	snprintf(m.text, sizeof(m.text), "%s", text ? text : "");
	while (fds && n < HANDOVER_FDS && fds[n] >= 0)
		n++;
	if (n) {
		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_SPACE(n * sizeof(int));
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(n * sizeof(int));
		memcpy(CMSG_DATA(c), fds, n * sizeof(int));
	}
	return sendmsg(sock, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)WIRE ? 0 : -errno;
}

static void take_fds(struct msghdr *msg, struct handover *ret)
{
	struct cmsghdr *c;
	size_t n = 0, i, got;
	int fd;

	for (c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		got = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (i = 0; i < got; i++) {
			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
			if (n < HANDOVER_FDS)
				ret->fds[n++] = fd;
			else
				close(fd);
		}
	}
}

void handover_close_fds(struct handover *m)
{
	size_t i;

	for (i = 0; i < HANDOVER_FDS; i++) {
		if (m->fds[i] >= 0)
			close(m->fds[i]);
		m->fds[i] = -1;
	}
}

int handover_receive(int sock, cfs_deadline_t deadline, struct handover *ret)
{
	union {
		char bytes[CMSG_SPACE(HANDOVER_FDS * sizeof(int))];
		struct cmsghdr align;
	} control = {0};
	struct iovec iov = {.iov_base = ret, .iov_len = WIRE};
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes),
	};
	struct pollfd p = {.fd = sock, .events = POLLIN};
	size_t i;
	ssize_t n;
	int r;

	do {
		r = poll(&p, 1, (int)CFS_MIN(cfs_deadline_left_ms(deadline), (uint64_t)INT_MAX));
	} while ((r < 0 && errno == EINTR) || (r == 0 && !cfs_deadline_passed(deadline)));
	if (r < 0)
		return -errno;
	if (r == 0)
		return -ETIMEDOUT;
	memset(ret, 0, sizeof(*ret));
	for (i = 0; i < HANDOVER_FDS; i++)
		ret->fds[i] = -1;
	n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	/*
	 * ECONNRESET is reported once, when the peer closed with unread data; its messages follow.
	 */
	if (n < 0 && errno == ECONNRESET)
		n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	if (n <= 0)
		return n < 0 && errno != ECONNRESET ? -errno : -ENOTCONN;
	take_fds(&msg, ret);
	ret->text[sizeof(ret->text) - 1] = '\0';
	if (n == (ssize_t)WIRE && ret->version == VERSION)
		return 0;
	handover_close_fds(ret);
	return -EPROTO;
}

/* ---- the socket with a name ---- */

int handover_path(unsigned dev_minor, char *buf, size_t size)
{
	const char *base = getenv("XDG_RUNTIME_DIR");
	int n;

	if (geteuid() == 0)
		n = snprintf(buf, size, "/run/cachefs/mount-%u", dev_minor);
	else if (base && *base == '/')
		n = snprintf(buf, size, "%s/cachefs/mount-%u", base, dev_minor);
	else
		return -ENOENT;
	return n < 0 || (size_t)n >= size ? -ENAMETOOLONG : 0;
}

static int fill(struct sockaddr_un *sa, const char *path)
{
	*sa = (struct sockaddr_un){.sun_family = AF_UNIX};
	return (size_t)snprintf(sa->sun_path, sizeof(sa->sun_path), "%s", path) <
			       sizeof(sa->sun_path)
		       ? 0
		       : -ENAMETOOLONG;
}

/* Other users may list root's directory, but its sockets accept only their own user. */
static int make_dir(const char *path)
{
	char dir[sizeof(((struct sockaddr_un *)NULL)->sun_path)];
	struct stat st;

	snprintf(dir, sizeof(dir), "%s", path);
	*strrchr(dir, '/') = '\0';
	if (mkdir(dir, geteuid() == 0 ? 0755 : 0700) < 0 && errno != EEXIST)
		return -errno;
	if (lstat(dir, &st) < 0)
		return -errno;
	return S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 022) ? 0 : -EPERM;
}

static int lock_dir(const char *path)
{
	cfs_deadline_t deadline = cfs_deadline_in(LOCK_MS);
	char lock[sizeof(((struct sockaddr_un *)NULL)->sun_path) + sizeof(LOCK_NAME)];
	int fd;

	snprintf(lock, sizeof(lock), "%.*s" LOCK_NAME, (int)(strrchr(path, '/') - path), path);
	fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	while (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0) {
		if (cfs_deadline_passed(deadline)) {
			close(fd);
			return -1;
		}
		poll(NULL, 0, LOCK_AGAIN_MS);
	}
	return fd;
}

int handover_lock(void)
{
	char path[sizeof(((struct sockaddr_un *)NULL)->sun_path)];
	int r = handover_path(0, path, sizeof(path));

	if (r == 0)
		r = make_dir(path);
	return r < 0 ? -1 : lock_dir(path);
}

void handover_unlock(int lock)
{
	if (lock >= 0)
		close(lock);
}

int handover_listen(const char *path, int *ret, ino_t *ret_ino)
{
	struct sockaddr_un sa;
	struct stat st;
	mode_t mask;
	int fd, lock, r;

	r = fill(&sa, path);
	if (r == 0)
		r = make_dir(path);
	if (r < 0)
		return r;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	lock = lock_dir(path);
	/* Removes the socket of an earlier mount with the same number. */
	unlink(path);
	mask = umask(0177);
	r = bind(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 ? -errno : 0;
	umask(mask);
	if (r == 0 && (stat(path, &st) < 0 || listen(fd, 4) < 0))
		r = -errno;
	handover_unlock(lock);
	if (r < 0) {
		close(fd);
		return r;
	}
	*ret = fd;
	*ret_ino = st.st_ino;
	return 0;
}

void handover_unlisten(const char *path, int sock, ino_t ino)
{
	int lock = lock_dir(path);
	struct stat st;

	/* While the socket is open its inode number cannot be reused. */
	if (stat(path, &st) == 0 && st.st_ino == ino)
		unlink(path);
	handover_unlock(lock);
	close(sock);
}

static int check_peer(int fd, pid_t *ret_pid)
{
	struct ucred who;
	socklen_t len = sizeof(who);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) < 0)
		return -errno;
	if (ret_pid)
		*ret_pid = who.pid;
	return who.uid == geteuid() ? 0 : -EACCES;
}

int handover_accept(int sock, int *ret, int *ret_process)
{
	int fd = accept4(sock, NULL, NULL, SOCK_CLOEXEC), process = -1, r;
	pid_t pid = 0;

	if (fd < 0)
		return -errno;
	r = check_peer(fd, &pid);
	if (r == 0) {
		process = (int)syscall(SYS_pidfd_open, pid, 0);
		r = process < 0 ? -errno : 0;
	}
	if (r < 0) {
		close(fd);
		return r;
	}
	*ret = fd;
	*ret_process = process;
	return 0;
}

int handover_connect(const char *path, int *ret)
{
	struct sockaddr_un sa;
	int fd, r = fill(&sa, path);

	if (r < 0)
		return r;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	/* Never waits: a full queue is -EAGAIN. */
	r = connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 ? -errno : check_peer(fd, NULL);
	if (r < 0) {
		close(fd);
		return r;
	}
	*ret = fd;
	return 0;
}

static ssize_t read_group(const char *pid, char *buf, size_t size)
{
	cfs_auto_close int fd = -1;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%s/cgroup", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd < 0 ? -errno : read(fd, buf, size);
}

bool handover_same_group(int sock)
{
	char own[4096], other[4096], pid[16];
	struct ucred who;
	socklen_t len = sizeof(who);
	ssize_t n;

	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &who, &len) < 0)
		return false;
	snprintf(pid, sizeof(pid), "%d", (int)who.pid);
	n = read_group("self", own, sizeof(own));
	return n > 0 && read_group(pid, other, sizeof(other)) == n &&
	       !memcmp(own, other, (size_t)n);
}
