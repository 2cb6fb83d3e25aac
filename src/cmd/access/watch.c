/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/access/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/thread.h"
#include "cmd/access/cmd.h"
#include "cmd/access/control.h"
#include "cmd/access/silent.h"

#define TICK_MS 500
/* Longer than the deadlines of control.h, whose messages come first. */
#define FIRST_MS   12000 /* for the first answer of the mount */
#define SILENCE_MS 60000 /* for each other one: an upgrade or a restart takes time */
#define LOOK_UP_MS 60000
#define SIGNAL_MS  2000 /* for an answer after a signal that ends the command */

/* Shared by the processes. */
struct place {
	_Atomic uint32_t
		changes; /* counted after each one, so that a reader sees the last one whole */
	bool is_mount;
	char path[PATH_MAX];
	_Atomic uint32_t answers; /* of the mount to the asker */
};

static struct place *place;

/* ---- the child ---- */

static void set_place(const char *path, bool is_mount)
{
	if (!place)
		return;
	place->is_mount = is_mount;
	snprintf(place->path, sizeof(place->path), "%s", path ? path : "");
	atomic_fetch_add(&place->changes, 1);
}

void watch_path(const char *path)
{
	set_place(path, false);
}

void watch_mount(const char *point)
{
	set_place(point, true);
}

/* ---- the asker: a process that only asks the mount ---- */

static void die_with(pid_t parent)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(CMD_SYSTEM);
}

/*
 * Asks for attributes of a file that needs neither metadata nor permission; the kernel may not answer
 * by itself. Any result is an answer.
 */
__attribute__((noreturn)) static void ask(const char *path)
{
	struct statx st;

	close_range(STDIN_FILENO, ~0U, 0);
	for (;;) {
		(void)statx(AT_FDCWD, path, AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &st);
		atomic_fetch_add(&place->answers, 1);
		poll(NULL, 0, TICK_MS);
	}
}

/* ---- the watching process ---- */

/* Output that a thread passes on. A pipe that the child had itself would stay open while it hangs. */
struct stream {
	int from, to; /* from: -1 when there is none */
	pthread_t thread;
	bool failed; /* to write */
};

struct watch {
	pid_t child, asker; /* asker: 0, there is none */
	struct stream out[2];
	uint32_t changes, answers;
	char path[PATH_MAX], point[PATH_MAX]; /* point: mount that is asked; "": none */
	uint64_t looking_ms, silent_ms;
	bool answered, looking;
	int signo;
};

static _Atomic bool child_ended;

static void end_asker(struct watch *w)
{
	if (w->asker <= 0)
		return;
	kill(w->asker, SIGKILL);
	waitpid(w->asker, NULL, WNOHANG);
}

/* Without an asker the mount counts as silent. */
static void start_asker(struct watch *w)
{
	char path[PATH_MAX + sizeof(CFS_CONTROL_NAME) + 1];
	pid_t parent = getpid();

	snprintf(path, sizeof(path), "%s/" CFS_CONTROL_NAME, w->point);
	w->asker = fork();
	if (w->asker == 0) {
		die_with(parent);
		ask(path);
	}
}

/* Where the child is. */
static void find_place(struct watch *w)
{
	uint32_t changes = atomic_load(&place->changes);
	char point[PATH_MAX] = "";

	if (changes == w->changes)
		return;
	w->changes = changes;
	snprintf(w->path, sizeof(w->path), "%s", place->path);
	w->looking = !place->is_mount && *w->path;
	w->looking_ms = 0;
	if (place->is_mount)
		memcpy(point, w->path, sizeof(point));
	else if (*w->path && control_seek_mount(w->path, point, sizeof(point)) < 0)
		*point = '\0';
	if (!strcmp(point, w->point))
		return;
	end_asker(w);
	memcpy(w->point, point, sizeof(point));
	w->asker = 0;
	w->answered = false;
	w->silent_ms = 0;
	if (*point)
		start_asker(w);
}

/* Returns false when the command is given up, after a message. */
static bool tick(struct watch *w, uint64_t ms)
{
	uint64_t limit = w->signo ? SIGNAL_MS : w->answered ? SILENCE_MS : FIRST_MS;
	uint32_t answers = atomic_load(&place->answers);

	if (answers != w->answers) {
		w->answered = true;
		w->silent_ms = 0;
	} else if (w->asker) {
		w->silent_ms += ms;
	}
	w->answers = answers;
	w->looking_ms += w->looking ? ms : 0;
	find_place(w);
	if (w->silent_ms >= limit) {
		silent_error(w->point);
		return false;
	}
	if (w->looking && w->looking_ms >= (w->signo ? SIGNAL_MS : LOOK_UP_MS)) {
		cmd_error("%s: a file system on the way to it does not answer", w->path);
		return false;
	}
	return true;
}

static bool write_all(int fd, const char *buf, size_t len)
{
	struct pollfd p = {.fd = fd, .events = POLLOUT};
	ssize_t n;

	while (len) {
		n = write(fd, buf, len);
		if (n < 0 && errno != EAGAIN)
			return false;
		if (n < 0)
			poll(&p, 1, TICK_MS);
		buf += n > 0 ? n : 0;
		len -= n > 0 ? (size_t)n : 0;
	}
	return true;
}

/* Until the end of the output, or until a child that has ended has left no more. */
static void *pass_on(void *arg)
{
	struct stream *s = arg;
	struct pollfd p = {.fd = s->from, .events = POLLIN};
	char buf[PIPE_BUF];
	ssize_t n = 0;

	while (!s->failed && (poll(&p, 1, TICK_MS) > 0 || !atomic_load(&child_ended))) {
		if (!p.revents)
			continue;
		n = read(s->from, buf, sizeof(buf));
		if (n <= 0)
			break;
		s->failed = !write_all(s->to, buf, (size_t)n);
	}
	/* The child gets the error at its next write. */
	close(s->from);
	return NULL;
}

static int end_by(int sig)
{
	signal(sig, SIG_DFL);
	raise(sig);
	return CMD_INTERRUPTED;
}

/* Returns false when the child was given up. */
static bool await_child(struct watch *w, const sigset_t *signals, int *ret_status)
{
	const struct timespec wait = {.tv_nsec = TICK_MS * 1000000};
	uint64_t ticked_ms = cfs_now_ms(), now_ms;
	int sig;

	while (waitpid(w->child, ret_status, WNOHANG) == 0) {
		sig = sigtimedwait(signals, NULL, &wait);
		if (sig > 0 && sig != SIGCHLD) {
			if (!w->signo)
				w->silent_ms = w->looking_ms = 0;
			w->signo = sig;
			kill(w->child, sig);
		}
		now_ms = cfs_now_ms();
		if (now_ms < ticked_ms + TICK_MS)
			continue;
		/* A time in which this process was stopped is not one of silence. */
		if (!tick(w, CFS_MIN(now_ms - ticked_ms, (uint64_t)(2 * TICK_MS))))
			return false;
		ticked_ms = now_ms;
	}
	return true;
}

static int watch(struct watch *w, const sigset_t *signals, const sigset_t *mask)
{
	bool ends = signal(SIGPIPE, SIG_IGN) == SIG_DFL, given_up;
	int status = 0, i;

	for (i = 0; i < 2; i++) {
		if (w->out[i].from >= 0 &&
		    cfs_thread_start("output", pass_on, &w->out[i], &w->out[i].thread) < 0) {
			kill(w->child, SIGKILL);
			return cmd_error("cannot start a thread");
		}
	}
	given_up = !await_child(w, signals, &status);
	if (given_up)
		kill(w->child, SIGKILL);
	end_asker(w);
	sigprocmask(SIG_SETMASK, mask, NULL);
	atomic_store(&child_ended, true);
	for (i = 0; i < 2; i++)
		if (w->out[i].from >= 0)
			pthread_join(w->out[i].thread, NULL);
	if (given_up)
		return w->signo ? end_by(w->signo) : CMD_SYSTEM;
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

static int prepare(struct watch *w, int fds[2])
{
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
	return r;
}

int watch_command(void)
{
	static struct watch w;
	int fds[2] = {-1, -1}, i, r = prepare(&w, fds);
	pid_t parent = getpid();
	sigset_t signals, mask;

	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGHUP);
	sigaddset(&signals, SIGCHLD);
	signal(SIGCHLD, SIG_DFL);
	sigprocmask(SIG_BLOCK, &signals, &mask);
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
		return watch(&w, &signals, &mask);
	die_with(parent);
	sigprocmask(SIG_SETMASK, &mask, NULL);
	for (i = 0; i < 2; i++)
		if (w.out[i].from >= 0)
			close(w.out[i].from);
	return -1;
}
