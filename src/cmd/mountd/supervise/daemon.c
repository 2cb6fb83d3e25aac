/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/mountd/supervise/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "cmd/access/cmd.h"
#include "cmd/access/respawn.h"

#define KILL_GRACE_MS 2000
/*
 * Time for the report of a child that goes on: it first awaits the last message of the running
 * mount.
 */
#define REPORT_MS 10000

enum decision { UNDECIDED, GOES_ON, GIVEN_UP };

struct daemon {
	_Atomic int *decision; /* in shared memory */
	int report;	       /* the child's end of a socket; -1: closed */
};

/* A report of the child: one status byte, then the reason. */
struct report {
	uint8_t status;
	char reason[511];
};

static volatile sig_atomic_t interrupted;

static void on_signal(int sig)
{
	interrupted = sig;
}

/* Returns true for the first caller. */
static bool decide(struct daemon *d, enum decision decision)
{
	int undecided = UNDECIDED;

	return atomic_compare_exchange_strong(d->decision, &undecided, decision);
}

static void end_child(pid_t pid)
{
	kill(pid, SIGTERM);
	if (reap_child(pid, cfs_deadline_in(KILL_GRACE_MS)))
		return;
	kill(pid, SIGKILL);
	reap_child(pid, cfs_deadline_in(KILL_GRACE_MS));
}

/* Returns false when the deadline has passed, or by the first signal if *mask lets it through. */
static bool report_comes(int fd, cfs_deadline_t deadline, const sigset_t *mask)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	struct timespec left;
	uint64_t ms;
	int r;

	do {
		ms = cfs_deadline_left_ms(deadline);
		left = (struct timespec){(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
		r = ppoll(&p, 1, &left, mask);
	} while ((r < 0 && errno == EINTR && !interrupted) ||
		 (r == 0 && !cfs_deadline_passed(deadline)));
	return r > 0;
}

/* mask: the signal mask before SIGINT and SIGTERM were blocked, for waiting. */
static int wait_report(struct daemon *d, pid_t pid, int fd, uint64_t timeout_ms,
		       const sigset_t *mask)
{
	bool comes = report_comes(fd, cfs_deadline_in(timeout_ms), mask);
	struct report rep = {0};
	ssize_t n;

	if (!comes && decide(d, GIVEN_UP)) {
		end_child(pid);
		if (interrupted)
			cmd_error("interrupted");
		else
			cmd_error("the mount did not answer within %g s (mount_timeout)",
				  (double)timeout_ms / 1000);
		return interrupted ? CMD_INTERRUPTED : CMD_MOUNT_FAILED;
	}
	if (!comes && !report_comes(fd, cfs_deadline_in(REPORT_MS), NULL))
		return cmd_fail(
			CMD_MOUNT_FAILED,
			"process %d has the mount, and does not report whether it serves it",
			(int)pid);
	n = read(fd, &rep, sizeof(rep) - 1);
	if (n < 1) {
		reap_child(pid, cfs_deadline_in(KILL_GRACE_MS));
		return cmd_fail(CMD_MOUNT_FAILED, "the mount process died while starting");
	}
	if (rep.reason[0] && rep.status)
		cmd_error("%s", rep.reason);
	else if (rep.reason[0])
		printf("%s\n", rep.reason);
	if (rep.status)
		reap_child(pid, cfs_deadline_in(timeout_ms));
	return rep.status;
}

/* The parent's part after the fork. */
static int be_parent(struct daemon *d, pid_t pid, int fd, uint64_t timeout_ms, const sigset_t *mask)
{
	struct sigaction sa = {.sa_handler = on_signal};
	int status;

	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
	status = wait_report(d, pid, fd, timeout_ms, mask);
	sigprocmask(SIG_SETMASK, mask, NULL);
	return 1 + status;
}

int daemon_fork(uint64_t timeout_ms, struct daemon **ret)
{
	static struct daemon d;
	sigset_t set, mask;
	int fds[2], r;
	pid_t pid;

	d.decision = mmap(NULL, sizeof(*d.decision), PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (d.decision == MAP_FAILED)
		return -errno;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0) {
		r = -errno;
		munmap(d.decision, sizeof(*d.decision));
		return r;
	}
	d.report = fds[1];
	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, &mask);
	cfs_log_flush();
	fflush(NULL);
	pid = fork();
	r = pid < 0 ? -errno : 0;
	if (pid == 0) {
		close(fds[0]);
		sigprocmask(SIG_SETMASK, &mask, NULL);
		*ret = &d;
		return 0;
	}
	close(fds[1]);
	if (pid > 0)
		r = be_parent(&d, pid, fds[0], timeout_ms, &mask);
	else
		sigprocmask(SIG_SETMASK, &mask, NULL);
	close(fds[0]);
	munmap(d.decision, sizeof(*d.decision));
	return r;
}

/* The number may be reused by another descriptor, so it is forgotten. */
void daemon_close(struct daemon *d)
{
	if (d->report >= 0)
		close(d->report);
	d->report = -1;
}

bool daemon_keep(struct daemon *d)
{
	return decide(d, GOES_ON) || atomic_load(d->decision) == GOES_ON;
}

void daemon_detach(void)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	cfs_log_flush();
	if (null >= 0) {
		dup2(null, STDIN_FILENO);
		dup2(null, STDOUT_FILENO);
		dup2(null, STDERR_FILENO);
		if (null > STDERR_FILENO)
			close(null);
	}
	if (chdir("/") < 0)
		cfs_warn("cannot change to the root directory: error=%s", cfs_errname(errno));
	if (getsid(0) != getpid() && setsid() < 0)
		cfs_warn("cannot leave the session of the terminal: error=%s", cfs_errname(errno));
}

/* False when the reader is gone. */
static bool send_report(struct daemon *d, int status, const char *reason)
{
	struct report rep = {.status = (uint8_t)status};
	size_t len;
	bool sent;

	snprintf(rep.reason, sizeof(rep.reason), "%s", reason);
	len = offsetof(struct report, reason) + strlen(rep.reason);
	sent = send(d->report, &rep, len, MSG_NOSIGNAL) == (ssize_t)len;
	daemon_close(d);
	return sent;
}

void daemon_ready(struct daemon *d, const char *note)
{
	daemon_detach();
	if (!daemon_keep(d) || !send_report(d, CMD_OK, note))
		cfs_warn("the command that started this mount has exited already");
}

void daemon_failed(struct daemon *d, int status, const char *reason)
{
	if (!send_report(d, status, reason))
		cfs_err("%s", reason);
}
