/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/access/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "cmd/access/cmd.h"
#include "cmd/access/control.h"
#include "cmd/access/silent.h"

#define TICK_MS 500
/* Longer than the deadlines of control.h, whose messages come first. */
#define FIRST_MS   12000 /* for the first answer of the mount */
#define SILENCE_MS 60000 /* for each other one: an upgrade or a restart takes time */
#define LOOK_UP_MS 60000
#define SIGNAL_MS  2000 /* for an answer after a signal that ends the command */
#define READ_TRIES 100

/* Shared with the child. */
struct place {
	_Atomic uint32_t version; /* odd while it changes */
	bool is_mount;
	char path[PATH_MAX];
};

static struct place *place;

/* ---- the child ---- */

static void set_place(const char *path, bool is_mount)
{
	if (!place)
		return;
	atomic_fetch_add(&place->version, 1);
	place->is_mount = is_mount;
	snprintf(place->path, sizeof(place->path), "%s", path ? path : "");
	atomic_fetch_add(&place->version, 1);
}

void watch_path(const char *path)
{
	set_place(path, false);
}

void watch_mount(const char *point)
{
	set_place(point, true);
}

/* ---- the watching process ---- */

/* Output that is passed on. A pipe that the child had itself would stay open while it hangs. */
struct stream {
	int from, to; /* from: -1 when it has ended */
	char buf[PIPE_BUF];
	size_t at, len;
	bool failed; /* to write */
};

struct watch {
	pid_t child, asker;
	int ended, signals; /* descriptors that tell of the child's end, and of signals */
	int sock;	    /* to the asker; -1: none yet */
	struct stream out[2];
	uint32_t version;
	char point[PATH_MAX]; /* mount that is asked; "": none */
	uint64_t ticked_ms, looking_ms, silent_ms;
	bool asked, answered, looking;
	int signo;
};

static bool read_place(char path[PATH_MAX], bool *ret_is_mount, uint32_t *ret_version)
{
	uint32_t version;
	int i;

	for (i = 0; i < READ_TRIES; i++) {
		version = atomic_load(&place->version);
		memcpy(path, place->path, PATH_MAX);
		path[PATH_MAX - 1] = '\0';
		*ret_is_mount = place->is_mount;
		*ret_version = version;
		if (!(version & 1) && atomic_load(&place->version) == version)
			return true;
	}
	return false;
}

/*
 * Asks for attributes of a file that needs neither metadata nor permission; the kernel may not answer
 * by itself. Any result is an answer.
 */
__attribute__((noreturn)) static void answer_questions(int sock)
{
	char path[PATH_MAX + sizeof(CFS_CONTROL_NAME) + 1];
	struct statx st;
	ssize_t n;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(sock, STDIN_FILENO);
	close_range(STDOUT_FILENO, ~0U, 0);
	while ((n = recv(STDIN_FILENO, path, sizeof(path) - 1, 0)) > 0) {
		path[n] = '\0';
		(void)statx(AT_FDCWD, path, AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &st);
		if (send(STDIN_FILENO, "", 1, MSG_NOSIGNAL) != 1)
			break;
	}
	_exit(0);
}

static int start_asker(struct watch *w)
{
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	w->asker = fork();
	if (w->asker == 0) {
		close(pair[0]);
		answer_questions(pair[1]);
	}
	close(pair[1]);
	if (w->asker < 0) {
		close(pair[0]);
		return -EAGAIN;
	}
	w->sock = pair[0];
	return 0;
}

static void end_asker(struct watch *w)
{
	if (w->sock < 0)
		return;
	kill(w->asker, SIGKILL);
	waitpid(w->asker, NULL, WNOHANG);
	close(w->sock);
	w->sock = -1;
	w->asked = w->answered = false;
}

static void ask(struct watch *w)
{
	char path[PATH_MAX + sizeof(CFS_CONTROL_NAME) + 1];
	int n = snprintf(path, sizeof(path), "%s/" CFS_CONTROL_NAME, w->point);

	/* Without an asker the mount counts as silent. */
	w->asked = true;
	w->silent_ms = 0;
	if (w->sock >= 0 || start_asker(w) == 0)
		(void)send(w->sock, path, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void take_answer(struct watch *w)
{
	char byte;

	if (recv(w->sock, &byte, 1, MSG_DONTWAIT) != 1) {
		end_asker(w);
		return;
	}
	w->asked = false;
	w->answered = true;
}

/* Where the child is. */
static void find_place(struct watch *w)
{
	char path[PATH_MAX], point[PATH_MAX] = "";
	uint32_t version;
	bool is_mount;

	if (!read_place(path, &is_mount, &version) || version == w->version)
		return;
	w->version = version;
	w->looking = !is_mount && *path;
	w->looking_ms = 0;
	if (is_mount)
		memcpy(point, path, sizeof(point));
	else if (*path && control_seek_mount(path, point, sizeof(point)) < 0)
		*point = '\0';
	if (strcmp(point, w->point) != 0)
		end_asker(w);
	memcpy(w->point, point, sizeof(point));
}

/* Returns false when the command is given up, after a message. */
static bool tick(struct watch *w, uint64_t ms)
{
	uint64_t limit = w->signo ? SIGNAL_MS : w->answered ? SILENCE_MS : FIRST_MS;
	char path[PATH_MAX];
	uint32_t version;
	bool is_mount;

	find_place(w);
	w->silent_ms += w->asked ? ms : 0;
	w->looking_ms += w->looking ? ms : 0;
	if (!w->asked && *w->point)
		ask(w);
	if (w->asked && w->silent_ms >= limit) {
		silent_error(w->point);
		return false;
	}
	if (w->looking && w->looking_ms >= (w->signo ? SIGNAL_MS : LOOK_UP_MS)) {
		if (read_place(path, &is_mount, &version))
			cmd_error("%s: a file system on the way to it does not answer", path);
		return false;
	}
	return true;
}

/* Never waits: a pipe that is ready takes PIPE_BUF bytes. */
static void pass_on(struct stream *s, short from, short to)
{
	ssize_t n;

	if (s->len && to) {
		n = write(s->to, s->buf + s->at, s->len);
		s->failed = n < 0 && errno != EINTR && errno != EAGAIN;
		if (s->failed)
			goto end;
		s->at += n > 0 ? (size_t)n : 0;
		s->len -= n > 0 ? (size_t)n : 0;
	} else if (!s->len && from) {
		n = read(s->from, s->buf, sizeof(s->buf));
		if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
			goto end;
		s->at = 0;
		s->len = n > 0 ? (size_t)n : 0;
	}
	return;
end:
	/* The child gets the error at its next write. */
	close(s->from);
	s->from = -1;
	s->len = 0;
}

static int end_by(int sig)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, sig);
	signal(sig, SIG_DFL);
	raise(sig);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	return CMD_INTERRUPTED;
}

static void take_signal(struct watch *w)
{
	struct signalfd_siginfo info;

	if (read(w->signals, &info, sizeof(info)) != sizeof(info))
		return;
	if (!w->signo)
		w->silent_ms = w->looking_ms = 0;
	w->signo = (int)info.ssi_signo;
	if (w->child)
		kill(w->child, w->signo);
	else
		exit(end_by(w->signo));
}

/* One round of waiting. *ret_idle: no output was passed on. */
static void step(struct watch *w, int timeout_ms, bool *ret_idle)
{
	struct pollfd p[] = {
		{.fd = w->ended, .events = POLLIN},
		{.fd = w->signals, .events = POLLIN},
		{.fd = w->sock, .events = POLLIN},
		{.fd = w->out[0].len ? -1 : w->out[0].from, .events = POLLIN},
		{.fd = w->out[0].len ? w->out[0].to : -1, .events = POLLOUT},
		{.fd = w->out[1].len ? -1 : w->out[1].from, .events = POLLIN},
		{.fd = w->out[1].len ? w->out[1].to : -1, .events = POLLOUT},
	};
	size_t i;

	*ret_idle = true;
	if (poll(p, CFS_ARRAY_SIZE(p), timeout_ms) <= 0)
		return;
	if (p[1].revents)
		take_signal(w);
	if (p[2].revents)
		take_answer(w);
	for (i = 0; i < 2; i++) {
		pass_on(&w->out[i], p[3 + 2 * i].revents, p[4 + 2 * i].revents);
		*ret_idle = *ret_idle && !p[3 + 2 * i].revents && !p[4 + 2 * i].revents;
	}
}

/* Returns false when the child was given up. */
static bool await_child(struct watch *w, int *ret_status)
{
	uint64_t now_ms;
	bool idle;

	w->ticked_ms = cfs_now_ms();
	while (waitpid(w->child, ret_status, WNOHANG) == 0) {
		step(w, TICK_MS, &idle);
		now_ms = cfs_now_ms();
		if (now_ms < w->ticked_ms + TICK_MS)
			continue;
		/* A time in which this process was stopped is not one of silence. */
		if (!tick(w, CFS_MIN(now_ms - w->ticked_ms, (uint64_t)(2 * TICK_MS))))
			return false;
		w->ticked_ms = now_ms;
	}
	return true;
}

/* Output that the child has written before its end. */
static void pass_rest_on(struct watch *w)
{
	bool idle = false;

	w->ended = -1;
	w->child = 0;
	while (!idle || w->out[0].len || w->out[1].len)
		step(w, w->out[0].len || w->out[1].len ? TICK_MS : 0, &idle);
}

static int watch(struct watch *w)
{
	bool ends = signal(SIGPIPE, SIG_IGN) == SIG_DFL;
	int status = 0;

	w->ended = (int)syscall(SYS_pidfd_open, w->child, 0);
	if (!await_child(w, &status)) {
		kill(w->child, SIGKILL);
		end_asker(w);
		pass_rest_on(w);
		return w->signo ? end_by(w->signo) : CMD_SYSTEM;
	}
	pass_rest_on(w);
	if (WIFSIGNALED(status))
		return end_by(WTERMSIG(status));
	if (w->out[0].failed && ends)
		return end_by(SIGPIPE);
	if (w->out[0].failed)
		return cmd_error("the output could not be written: %s", strerror(EPIPE));
	return WEXITSTATUS(status);
}

/* A pipe for an output that somebody may read to its end. */
static int make_stream(int fd, struct stream *ret, int *ret_child_fd)
{
	struct stat st;
	int pair[2];

	ret->from = ret->to = *ret_child_fd = -1;
	if (fstat(fd, &st) < 0 || !(S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode)))
		return 0;
	if (pipe2(pair, O_CLOEXEC) < 0)
		return -errno;
	ret->from = pair[0];
	ret->to = fd;
	*ret_child_fd = pair[1];
	return 0;
}

/* Output for one pipe keeps its order. */
static bool is_one_file(int a, int b)
{
	struct stat x, y;

	return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev &&
	       x.st_ino == y.st_ino;
}

static int prepare(struct watch *w, int fds[2], sigset_t *ret_mask)
{
	sigset_t set;
	int r;

	place = mmap(NULL, sizeof(*place), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		     0);
	if (place == MAP_FAILED)
		return -errno;
	r = make_stream(STDOUT_FILENO, &w->out[0], &fds[0]);
	w->out[1].from = -1;
	if (r == 0 && fds[0] >= 0 && is_one_file(STDOUT_FILENO, STDERR_FILENO))
		fds[1] = fcntl(fds[0], F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	else if (r == 0)
		r = make_stream(STDERR_FILENO, &w->out[1], &fds[1]);
	if (r < 0)
		return r;
	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	w->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (w->signals < 0)
		return -errno;
	sigprocmask(SIG_BLOCK, &set, ret_mask);
	return 0;
}

int watch_command(void)
{
	static struct watch w = {.sock = -1};
	int fds[2] = {-1, -1}, i, r;
	pid_t parent = getpid();
	sigset_t mask;

	r = prepare(&w, fds, &mask);
	w.child = r < 0 ? -1 : fork();
	if (w.child < 0)
		return cmd_error("cannot start a process: %s", strerror(r < 0 ? -r : errno));
	for (i = 0; i < 2; i++) {
		if (fds[i] < 0)
			continue;
		if (w.child == 0)
			dup2(fds[i], STDOUT_FILENO + i);
		close(fds[i]);
	}
	if (w.child > 0)
		return watch(&w);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(CMD_SYSTEM);
	sigprocmask(SIG_SETMASK, &mask, NULL);
	for (i = 0; i < 2; i++)
		if (w.out[i].from >= 0)
			close(w.out[i].from);
	close(w.signals);
	return -1;
}
