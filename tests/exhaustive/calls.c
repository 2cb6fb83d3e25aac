/* SPDX-License-Identifier: Apache-2.0 */
/* The names without and with 64 are both wanted. */
#undef _FILE_OFFSET_BITS
#include "calls.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "libc.h"

/* Longest wait for an answer, in milliseconds. */
#define ANSWER_MS 10000

static struct calls *calls;
static char dir[PATH_MAX];
static size_t dir_len;
static dev_t dev;
static const char *unsynced; /* see EXHAUSTIVE_BREAK */

void calls_watch(struct calls *c, const char *path)
{
	const char *broken = getenv("EXHAUSTIVE_BREAK");
	struct stat st;

	if (stat(path, &st) < 0 || strlen(path) >= sizeof(dir)) {
		perror(path);
		abort();
	}
	strcpy(dir, path);
	dir_len = strlen(path);
	dev = st.st_dev;
	if (broken && !strncmp(broken, "sync:", 5))
		unsynced = broken + 5;
	calls = c;
}

/* The call of this thread is the last thing that the process does. */
static __thread bool is_last;

static long ended(long result)
{
	if (is_last)
		kill(getpid(), SIGKILL);
	return result;
}

static bool is_watched(void)
{
	return calls && atomic_load_explicit(&calls->armed, memory_order_relaxed);
}

/* The part of a path that tells files apart, and that two runs have in common. */
static const char *short_name(const char *path)
{
	return !strncmp(path, dir, dir_len) ? path + dir_len : path;
}

/* Numbers the call. FATE_DIE does not return, but for a receiver, which dies at its answer. */
static enum fate number(const char *call, const char *what, bool receives)
{
	uint32_t n = atomic_fetch_add(&calls->n, 1) + 1;

	if (n <= CALLS_MAX)
		snprintf(calls->name[n - 1], CALL_NAME, "%s %s", call, what);
	if (n != calls->at)
		return FATE_NONE;
	atomic_store(&calls->met, true);
	if (calls->fate == FATE_DIE && !receives)
		kill(getpid(), SIGKILL);
	is_last = calls->fate == FATE_AFTER;
	return is_last ? FATE_NONE : calls->fate;
}

/* ---- names ---- */

static bool is_ours(const char *path)
{
	return is_watched() && !strncmp(path, dir, dir_len);
}

/* Relative to a directory of the cache or of the bucket: is its file system the watched one? */
static bool is_ours_at(int at, const char *path)
{
	struct stat st;

	if (!is_watched() || path[0] == '/' || at == AT_FDCWD)
		return is_ours(path);
	return fstat(at, &st) == 0 && st.st_dev == dev;
}

/* Nothing is done, and that is a failure: 0 goes on. */
static int name_fails(const char *call, int at, const char *path)
{
	int saved = errno;
	bool fails = is_ours_at(at, path) && number(call, short_name(path), false) == FATE_FAIL;

	errno = fails ? EIO : saved;
	return fails;
}

static int open_at(int at, const char *path, int flags, mode_t mode)
{
	if ((flags & O_CREAT) && is_ours_at(at, path) &&
	    faccessat(at, path, F_OK, AT_SYMLINK_NOFOLLOW) < 0 && name_fails("create", at, path))
		return -1;
	return (int)ended(CALL(openat)(at, path, flags, mode));
}

DEFINE_OPEN(open_at)

int rename(const char *from, const char *to)
{
	return name_fails("rename", AT_FDCWD, to) ? -1 : (int)ended(CALL(rename)(from, to));
}

int renameat(int at, const char *from, int to_at, const char *to)
{
	return name_fails("rename", to_at, to) ? -1
					       : (int)ended(CALL(renameat)(at, from, to_at, to));
}

int renameat2(int at, const char *from, int to_at, const char *to, unsigned flags)
{
	return name_fails("rename", to_at, to)
		       ? -1
		       : (int)ended(CALL(renameat2)(at, from, to_at, to, flags));
}

int link(const char *from, const char *to)
{
	return name_fails("link", AT_FDCWD, to) ? -1 : (int)ended(CALL(link)(from, to));
}

int linkat(int at, const char *from, int to_at, const char *to, int flags)
{
	return name_fails("link", to_at, to) ? -1
					     : (int)ended(CALL(linkat)(at, from, to_at, to, flags));
}

int unlink(const char *path)
{
	return name_fails("unlink", AT_FDCWD, path) ? -1 : (int)ended(CALL(unlink)(path));
}

int unlinkat(int at, const char *path, int flags)
{
	return name_fails("unlink", at, path) ? -1 : (int)ended(CALL(unlinkat)(at, path, flags));
}

int rmdir(const char *path)
{
	return name_fails("rmdir", AT_FDCWD, path) ? -1 : (int)ended(CALL(rmdir)(path));
}

/* One that is there already is not changed. */
int mkdir(const char *path, mode_t mode)
{
	if (is_ours(path) && access(path, F_OK) < 0 && name_fails("mkdir", AT_FDCWD, path))
		return -1;
	return (int)ended(CALL(mkdir)(path, mode));
}

int mkdirat(int at, const char *path, mode_t mode)
{
	if (is_ours_at(at, path) && faccessat(at, path, F_OK, 0) < 0 &&
	    name_fails("mkdir", at, path))
		return -1;
	return (int)ended(CALL(mkdirat)(at, path, mode));
}

/* ---- open files ---- */

static void path_of(int fd, char path[PATH_MAX])
{
	char link[40];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, PATH_MAX - 1);
	path[n > 0 ? n : 0] = '\0';
}

/* The name is read for the label only. */
static int file_fails(const char *call, int fd)
{
	int saved = errno, fails = 0;
	char path[PATH_MAX];
	struct stat st;

	if (!is_watched() || fstat(fd, &st) < 0 || st.st_dev != dev ||
	    !(S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))) {
		errno = saved;
		return 0;
	}
	path_of(fd, path);
	fails = number(call, short_name(path), false) == FATE_FAIL;
	errno = fails ? EIO : saved;
	return fails;
}

static enum fate socket_fate(const char *call, int fd, bool receives, int flags);

ssize_t write(int fd, const void *buf, size_t len)
{
	if (is_watched() && socket_fate("send", fd, false, 0) != FATE_NONE)
		return -1;
	return file_fails("write", fd) ? -1 : ended(CALL(write)(fd, buf, len));
}

ssize_t writev(int fd, const struct iovec *v, int n)
{
	if (is_watched() && socket_fate("send", fd, false, 0) != FATE_NONE)
		return -1;
	return file_fails("write", fd) ? -1 : ended(CALL(writev)(fd, v, n));
}

ssize_t pwrite(int fd, const void *buf, size_t len, off_t off)
{
	return file_fails("write", fd) ? -1 : ended(CALL(pwrite)(fd, buf, len, off));
}

ssize_t pwrite64(int fd, const void *buf, size_t len, off_t off)
{
	return pwrite(fd, buf, len, off);
}

ssize_t pwritev(int fd, const struct iovec *v, int n, off_t off)
{
	return file_fails("write", fd) ? -1 : ended(CALL(pwritev)(fd, v, n, off));
}

ssize_t pwritev64(int fd, const struct iovec *v, int n, off_t off)
{
	return pwritev(fd, v, n, off);
}

ssize_t pwritev2(int fd, const struct iovec *v, int n, off_t off, int flags)
{
	return file_fails("write", fd) ? -1 : ended(CALL(pwritev2)(fd, v, n, off, flags));
}

ssize_t pwritev64v2(int fd, const struct iovec *v, int n, off_t off, int flags)
{
	return pwritev2(fd, v, n, off, flags);
}

int ftruncate(int fd, off_t size)
{
	return file_fails("truncate", fd) ? -1 : (int)ended(CALL(ftruncate)(fd, size));
}

int ftruncate64(int fd, off_t size)
{
	return ftruncate(fd, size);
}

int fallocate(int fd, int mode, off_t off, off_t len)
{
	return file_fails("fallocate", fd) ? -1 : (int)ended(CALL(fallocate)(fd, mode, off, len));
}

int fallocate64(int fd, int mode, off_t off, off_t len)
{
	return fallocate(fd, mode, off, len);
}

static bool is_left_out(int fd)
{
	char path[PATH_MAX];

	if (!unsynced)
		return false;
	path_of(fd, path);
	return strstr(path, unsynced) != NULL;
}

int fsync(int fd)
{
	return file_fails("sync", fd) ? -1 : is_left_out(fd) ? 0 : (int)ended(CALL(fsync)(fd));
}

int fdatasync(int fd)
{
	return file_fails("sync", fd) ? -1 : is_left_out(fd) ? 0 : (int)ended(CALL(fdatasync)(fd));
}

int syncfs(int fd)
{
	return file_fails("syncfs", fd) ? -1 : is_left_out(fd) ? 0 : (int)ended(CALL(syncfs)(fd));
}

/* ---- sockets ---- */

/* Whether there is something to receive; waits for it where the call would. */
static bool has_answer(int fd, int flags)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	bool waits = !(flags & MSG_DONTWAIT) && !(fcntl(fd, F_GETFL) & O_NONBLOCK);

	return poll(&p, 1, waits ? ANSWER_MS : 0) > 0;
}

/* FATE_NONE: the call goes on. Otherwise it fails, and errno says why. */
static enum fate socket_fate(const char *call, int fd, bool receives, int flags)
{
	int saved = errno;
	enum fate fate;
	struct stat st;

	if (!is_watched() || fstat(fd, &st) < 0 || !S_ISSOCK(st.st_mode))
		fate = FATE_NONE;
	/* Looking into an empty receive buffer is no call of its own. */
	else if (receives && !has_answer(fd, flags))
		fate = FATE_NONE;
	else
		fate = number(call, "socket", receives);
	if (fate == FATE_DIE)
		kill(getpid(), SIGKILL);
	if (fate != FATE_NONE)
		shutdown(fd, SHUT_RDWR);
	errno = fate == FATE_NONE ? saved : receives ? ECONNRESET : EPIPE;
	return fate;
}

ssize_t send(int fd, const void *buf, size_t len, int flags)
{
	return socket_fate("send", fd, false, 0) ? -1 : ended(CALL(send)(fd, buf, len, flags));
}

ssize_t sendto(int fd, const void *buf, size_t len, int flags, const struct sockaddr *to,
	       socklen_t to_len)
{
	return socket_fate("send", fd, false, 0)
		       ? -1
		       : ended(CALL(sendto)(fd, buf, len, flags, to, to_len));
}

ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
	return socket_fate("send", fd, false, 0) ? -1 : ended(CALL(sendmsg)(fd, m, flags));
}

ssize_t recv(int fd, void *buf, size_t len, int flags)
{
	return socket_fate("recv", fd, true, flags) ? -1 : ended(CALL(recv)(fd, buf, len, flags));
}

ssize_t recvfrom(int fd, void *buf, size_t len, int flags, struct sockaddr *from,
		 socklen_t *from_len)
{
	return socket_fate("recv", fd, true, flags)
		       ? -1
		       : ended(CALL(recvfrom)(fd, buf, len, flags, from, from_len));
}

ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
	return socket_fate("recv", fd, true, flags) ? -1 : ended(CALL(recvmsg)(fd, m, flags));
}

ssize_t read(int fd, void *buf, size_t len)
{
	if (is_watched() && socket_fate("recv", fd, true, 0) != FATE_NONE)
		return -1;
	return ended(CALL(read)(fd, buf, len));
}

/* ---- what takes time and is no part of it ---- */

/* A session names the addresses of the machine. There may be hundreds. */
int getifaddrs(struct ifaddrs **ret)
{
	*ret = NULL;
	return 0;
}

/* liburcu's pause for more callbacks, twice for each unmount: there are thousands. */
int poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
	const struct timespec pause = {.tv_nsec = 50000};

	if (n || timeout_ms != 10)
		return CALL(poll)(fds, n, timeout_ms);
	nanosleep(&pause, NULL);
	return 0;
}
