/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "cmd/cmd.h"

#define KILL_GRACE_MS 2000

/* What the child sends: one status byte, then the reason. */
struct report {
	uint8_t status;
	char reason[511];
};

static volatile sig_atomic_t interrupted;

static void on_signal(int sig)
{
	interrupted = sig;
}

/* True when the child has exited before the deadline. */
static bool reap(pid_t pid, cfs_deadline_t deadline)
{
	while (waitpid(pid, NULL, WNOHANG) == 0) {
		if (cfs_deadline_passed(deadline))
			return false;
		poll(NULL, 0, 10);
	}
	return true;
}

static void end_child(pid_t pid)
{
	kill(pid, SIGTERM);
	if (reap(pid, cfs_deadline_in(KILL_GRACE_MS)))
		return;
	kill(pid, SIGKILL);
	reap(pid, cfs_deadline_in(KILL_GRACE_MS));
}

static int wait_report(pid_t pid, int fd, uint64_t timeout_ms)
{
	cfs_deadline_t deadline = cfs_deadline_in(timeout_ms);
	struct pollfd p = {.fd = fd, .events = POLLIN};
	struct report rep = {0};
	ssize_t n;
	int r;

	do {
		r = poll(&p, 1, (int)CFS_MIN(cfs_deadline_left_ms(deadline), 1000000));
	} while ((r < 0 && errno == EINTR && !interrupted) ||
		 (r == 0 && !cfs_deadline_passed(deadline)));
	if (interrupted) {
		end_child(pid);
		cmd_error("interrupted");
		return CMD_INTERRUPTED;
	}
	if (r == 0) {
		end_child(pid);
		cmd_error("the mount did not answer within %llu s (mount_timeout)",
			  (unsigned long long)(timeout_ms / 1000));
		return CMD_MOUNT_FAILED;
	}
	n = read(fd, &rep, sizeof(rep) - 1);
	if (n < 1) {
		reap(pid, cfs_deadline_in(KILL_GRACE_MS));
		cmd_error("the mount process died while starting");
		return CMD_MOUNT_FAILED;
	}
	if (rep.reason[0] && rep.status)
		cmd_error("%s", rep.reason);
	else if (rep.reason[0])
		printf("%s\n", rep.reason);
	if (rep.status)
		reap(pid, cfs_deadline_in(timeout_ms));
	return rep.status;
}

int daemon_fork(uint64_t timeout_ms, int *ret_fd)
{
	struct sigaction sa = {.sa_handler = on_signal};
	int fds[2], status;
	pid_t pid;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return -errno;
	cfs_log_flush();
	fflush(NULL);
	pid = fork();
	if (pid < 0) {
		int r = -errno;

		close(fds[0]);
		close(fds[1]);
		return r;
	}
	if (pid == 0) {
		close(fds[0]);
		*ret_fd = fds[1];
		return 0;
	}
	close(fds[1]);
	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
	status = wait_report(pid, fds[0], timeout_ms);
	close(fds[0]);
	return 1 + status;
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
		cfs_warn("cannot change to the root directory: err=%s", cfs_errname(errno));
	if (setsid() < 0)
		cfs_warn("cannot leave the session of the terminal: err=%s", cfs_errname(errno));
}

/* False when nobody reads it. */
static bool send_report(int fd, int status, const char *reason)
{
	struct report rep = {.status = (uint8_t)status};
	size_t len;

	snprintf(rep.reason, sizeof(rep.reason), "%s", reason);
	len = offsetof(struct report, reason) + strlen(rep.reason);
	return write(fd, &rep, len) == (ssize_t)len;
}

void daemon_ready(int fd, const char *note)
{
	daemon_detach();
	if (!send_report(fd, CMD_OK, note))
		cfs_warn("nobody waits for this mount any more: err=%s", cfs_errname(errno));
	close(fd);
}

void daemon_failed(int fd, int status, const char *reason)
{
	if (!send_report(fd, status, reason))
		cfs_err("%s", reason);
	close(fd);
}
