/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bytes.h"
#include "cmd/cmd.h"
#include "cmd/control.h"
#include "cmd/mounted.h"

struct umount_opts {
	bool force;
	uint64_t timeout_ms;
};

static const struct cfs_opt umount_table[] = {
	{.name = "force",
	 .kind = CFS_OPT_FLAG,
	 .offset = offsetof(struct umount_opts, force),
	 .help = "detach at once even when busy; open files keep working until closed"},
	{.name = "timeout",
	 .kind = CFS_OPT_DURATION,
	 .offset = offsetof(struct umount_opts, timeout_ms),
	 .def = "300",
	 .arg = "TIME",
	 .help = "how long to wait for data to be flushed"},
	{0},
};

/* The mount process ends only when everything it held is stored. */
static int wait_for_process(pid_t pid, uint64_t timeout_ms)
{
	struct pollfd p = {.events = POLLIN};
	int r;

	/* Readable when the process has ended, reaped or not. */
	p.fd = pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
	if (p.fd < 0)
		return CMD_OK;
	r = poll(&p, 1, (int)CFS_MIN(timeout_ms, (uint64_t)INT_MAX));
	close(p.fd);
	if (r > 0)
		return CMD_OK;
	cmd_error("unmounted, but process %d still flushes data", (int)pid);
	return CMD_SYSTEM;
}

static int umount_run(int argc, char **argv)
{
	struct umount_opts o = {0};
	struct mounted m;
	const char *dir;
	char point[4096];
	pid_t pid;
	int r;

	cfs_opt_defaults(umount_table, &o);
	r = cmd_parse(&cmd_umount, umount_table, &o, argc, argv, &dir, 1, 1);
	if (r >= 0)
		return r;
	r = mounted_resolve(dir, point, sizeof(point));
	if (r < 0 || mounted_at(point, &m) < 0) {
		cmd_error("%s: not mounted", dir);
		return CMD_USAGE;
	}
	if (strcmp(m.type, CFS_FSTYPE)) {
		cmd_error("%s: not a cachefs mount (%s)", dir, m.type);
		return CMD_USAGE;
	}
	pid = control_pid(point);
	if (umount2(point, o.force ? MNT_DETACH : 0) < 0) {
		if (errno == EBUSY)
			cmd_error("%s is busy; close what is open there, or use --force", dir);
		else
			cmd_error("cannot unmount %s: %s", dir, strerror(errno));
		return CMD_SYSTEM;
	}
	return o.force ? CMD_OK : wait_for_process(pid, o.timeout_ms);
}

const struct cmd cmd_umount = {
	.name = "umount",
	.synopsis = "[--force] DIR",
	.summary = "Unmounts and waits until everything is stored",
	.run = umount_run,
};
