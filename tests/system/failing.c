/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded. The first FORKS_FAIL forks of the thread of the name FORKS_THREAD fail, as without memory. Call number
 * SOCKETPAIR_FAILS of socketpair(2) fails, as without descriptors. With KILLED_AFTER_WRITE the process is killed after its
 * first write(2) to a file. STEPS is a directory: the process is killed before an answer of N bytes to the kernel, once, if
 * it has a file kill-N; and it stops after its Nth FUSE_NOTIFY_RESEND, once, if it has a file resent-N. The host db.test is
 * 127.0.0.1, which is not told while the file RESOLVER_HANGS exists.
 */
#include <dlfcn.h>
#include <errno.h>
#include <linux/fuse.h>
#include <netdb.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define NOTIFY_RESEND 7

pid_t fork(void)
{
	static _Atomic int failed;
	const char *thread = getenv("FORKS_THREAD"), *n = getenv("FORKS_FAIL");
	pid_t (*next)(void) = (pid_t(*)(void))dlsym(RTLD_NEXT, "fork");
	char name[17] = "";

	prctl(PR_GET_NAME, name);
	if (thread && n && !strcmp(name, thread) && atomic_fetch_add(&failed, 1) < atoi(n)) {
		errno = EAGAIN;
		return -1;
	}
	return next();
}

int socketpair(int domain, int type, int protocol, int pair[2])
{
	static _Atomic int calls;
	const char *n = getenv("SOCKETPAIR_FAILS");
	int (*next)(int, int, int, int[2]) =
		(int (*)(int, int, int, int[2]))dlsym(RTLD_NEXT, "socketpair");

	if (n && atomic_fetch_add(&calls, 1) + 1 == atoi(n)) {
		errno = EMFILE;
		return -1;
	}
	return next(domain, type, protocol, pair);
}

ssize_t write(int fd, const void *buf, size_t len)
{
	ssize_t (*next)(int, const void *, size_t) =
		(ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
	ssize_t n = next(fd, buf, len);
	struct stat st;

	if (getenv("KILLED_AFTER_WRITE") && fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
		raise(SIGKILL);
	return n;
}

static void step(const char *name, unsigned n, int sig)
{
	const char *dir = getenv("STEPS");
	char path[4096];

	if (dir && snprintf(path, sizeof(path), "%s/%s-%u", dir, name, n) > 0 && unlink(path) == 0)
		raise(sig);
}

ssize_t writev(int fd, const struct iovec *iov, int n)
{
	static _Atomic unsigned resent;
	ssize_t (*next)(int, const struct iovec *, int) =
		(ssize_t(*)(int, const struct iovec *, int))dlsym(RTLD_NEXT, "writev");
	struct fuse_out_header out = {.len = 0};
	ssize_t r;

	if (iov->iov_len == sizeof(out))
		memcpy(&out, iov->iov_base, sizeof(out));
	if (out.unique && !out.error)
		step("kill", out.len, SIGKILL);
	r = next(fd, iov, n);
	if (out.len == sizeof(out) && !out.unique && out.error == NOTIFY_RESEND)
		step("resent", atomic_fetch_add(&resent, 1) + 1, SIGSTOP);
	return r;
}

int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
		struct addrinfo **ret)
{
	int (*next)(const char *, const char *, const struct addrinfo *, struct addrinfo **) =
		(int (*)(const char *, const char *, const struct addrinfo *,
			 struct addrinfo **))dlsym(RTLD_NEXT, "getaddrinfo");
	const char *hangs = getenv("RESOLVER_HANGS");

	if (!hangs || !host || strcmp(host, "db.test") ||
	    (hints && hints->ai_flags & AI_NUMERICHOST))
		return next(host, port, hints, ret);
	while (access(hangs, F_OK) == 0)
		usleep(10000);
	return next("127.0.0.1", port, hints, ret);
}
