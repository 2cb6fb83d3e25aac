/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/access/live.h"
#include "base/array.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bytes.h"

#define PIECE 65536
/* How long a child may take to exit; a mount lets killed programs go within a second. */
#define END_MS 2000
/* How long a command that was stopped waits for the mount to be as it was. */
#define FINISH_MS 2000

static volatile sig_atomic_t stopped;

static void on_signal(int sig)
{
	(void)sig;
	stopped = 1;
}

void live_begin(void)
{
	struct sigaction sa = {.sa_handler = on_signal};

	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
}

bool live_stopped(void)
{
	return stopped;
}

bool live_wait(cfs_deadline_t deadline)
{
	while (!stopped && !cfs_deadline_passed(deadline))
		poll(NULL, 0, (int)CFS_MIN(cfs_deadline_left_ms(deadline), (uint64_t)INT_MAX));
	return !stopped;
}

__attribute__((noreturn)) static void copy(const char *path, const char *request, int out)
{
	size_t len = request ? strlen(request) : 0;
	static char buf[PIECE];
	ssize_t n, done, r;
	int in;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* A child that hangs in the mount must not keep the pipes of the command's caller open. */
	close_range(STDIN_FILENO, STDERR_FILENO, 0);
	signal(SIGINT, SIG_DFL);
	signal(SIGTERM, SIG_DFL);
	in = open(path, (request ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOCTTY);
	if (in < 0)
		_exit(errno & 0xff);
	if (request) {
		r = write(in, request, len);
		if (r != (ssize_t)len)
			_exit(r < 0 ? errno & 0xff : EIO);
	}
	while ((n = read(in, buf, sizeof(buf))) > 0) {
		for (done = 0; done < n; done += r) {
			r = write(out, buf + done, (size_t)(n - done));
			if (r < 0)
				_exit(errno & 0xff);
		}
	}
	_exit(n < 0 ? errno & 0xff : 0);
}

__attribute__((noreturn)) static void become(char *const argv[], int out)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (null >= 0 && dup2(null, STDIN_FILENO) >= 0 && dup2(null, STDERR_FILENO) >= 0 &&
	    dup2(out, STDOUT_FILENO) >= 0)
		execvp(argv[0], argv);
	_exit(errno & 0xff);
}

/* Either a file or a program. */
static int start(const char *path, const char *request, char *const argv[], struct live_reader *ret)
{
	int fds[2], r;
	pid_t pid;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return -errno;
	pid = fork();
	if (pid < 0) {
		r = -errno;
		close(fds[0]);
		close(fds[1]);
		return r;
	}
	if (pid == 0) {
		close(fds[0]);
		if (path)
			copy(path, request, fds[1]);
		become(argv, fds[1]);
	}
	close(fds[1]);
	fcntl(fds[0], F_SETFL, O_NONBLOCK);
	*ret = (struct live_reader){.fd = fds[0], .pid = pid};
	return 0;
}

int live_reader_start(const char *path, const char *request, struct live_reader *ret)
{
	return start(path, request, NULL, ret);
}

ssize_t live_reader_read(struct live_reader *r, void *buf, size_t size, cfs_deadline_t deadline)
{
	struct pollfd p = {.fd = r->fd, .events = POLLIN};
	bool short_wait = false;
	ssize_t n;

	for (;;) {
		n = read(r->fd, buf, size);
		if (n >= 0)
			return n;
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
		if (stopped && !r->finish)
			return -EINTR;
		if (stopped && !short_wait)
			deadline = cfs_deadline_min(deadline, cfs_deadline_in(FINISH_MS));
		short_wait = stopped;
		if (cfs_deadline_passed(deadline))
			return -ETIMEDOUT;
		poll(&p, 1, (int)CFS_MIN(cfs_deadline_left_ms(deadline), (uint64_t)INT_MAX));
	}
}

int live_reader_stop(struct live_reader *r)
{
	cfs_deadline_t deadline = cfs_deadline_in(END_MS);
	int status = 0;
	pid_t pid;

	close(r->fd);
	while ((pid = waitpid(r->pid, &status, WNOHANG)) == 0 && !cfs_deadline_passed(deadline)) {
		/* The child hangs in the mount, or exits at its next write into the closed pipe. */
		kill(r->pid, SIGKILL);
		poll(NULL, 0, 1);
	}
	if (pid != r->pid)
		return -ETIMEDOUT;
	return WIFEXITED(status) ? -WEXITSTATUS(status) : -EINTR;
}

int live_reader_fill(struct live_reader *r, size_t max, cfs_deadline_t deadline)
{
	ssize_t n;

	do {
		if (r->cap - r->len < 2 &&
		    CFS_ARRAY_RESERVE(r->text, r->cap ? 2 * r->cap : PIECE, r->cap) < 0)
			return -ENOMEM;
		n = live_reader_read(r, r->text + r->len, r->cap - r->len - 1, deadline);
		if (n > 0)
			r->len += (size_t)n;
	} while (n > 0 && r->len < max);
	r->len = CFS_MIN(r->len, max);
	r->text[r->len] = '\0';
	return n < 0 ? (int)n : 0;
}

static int take_all(struct live_reader *reader, size_t max, uint64_t timeout_ms, char **ret,
		    size_t *ret_len)
{
	int r = live_reader_fill(reader, max, cfs_deadline_in(timeout_ms));
	int ended = live_reader_stop(reader);

	if (r == 0 && reader->len < max && ended < 0 && ended != -EINTR)
		r = ended;
	if (r < 0) {
		free(reader->text);
		return r;
	}
	*ret = reader->text;
	*ret_len = reader->len;
	return 0;
}

int live_read(const char *path, size_t max, uint64_t timeout_ms, char **ret, size_t *ret_len)
{
	struct live_reader reader;
	int r = start(path, NULL, NULL, &reader);

	return r < 0 ? r : take_all(&reader, max, timeout_ms, ret, ret_len);
}

int live_run(char *const argv[], size_t max, uint64_t timeout_ms, char **ret, size_t *ret_len)
{
	struct live_reader reader;
	int r = start(NULL, NULL, argv, &reader);

	return r < 0 ? r : take_all(&reader, max, timeout_ms, ret, ret_len);
}
