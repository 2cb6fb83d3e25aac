/* SPDX-License-Identifier: Apache-2.0 */
#include <cachefs/fuse.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/mounted.h"
#include "cmd/access/cmd.h"
#include "cmd/access/control.h"
#include "cmd/access/holders.h"
#include "cmd/access/jsontext.h"
#include "cmd/access/live.h"
#include "cmd/access/progress.h"
#include "cmd/access/requests.h"
#include "cmd/access/silent.h"

#define POLL_MS 200
#define SOON_MS 2000 /* a mount with nothing to flush ends within this time */

struct umount_opts {
	bool force, flush;
	uint64_t timeout_ms;
};

#define OPTIONS struct umount_opts
static const struct cfs_opt umount_table[] = {
	OPT_FLAG("force", force,
		 "detach at once even when busy; open files keep working until closed"),
	OPT_FLAG("flush", flush,
		 "wait until blocks that writeback keeps on disk are uploaded; --no-flush leaves "
		 "them for the next mount with this cache-dir",
		 .def = "true"),
	OPT_DURATION("timeout", timeout_ms, "TIME", "how long to wait for data to be flushed",
		     .def = "300"),
	{0},
};

/*
 * The mount process exits only when all its data is stored and no other mount namespace has the
 * file system: a namespace that was copied (a container's) keeps it.
 */
static int wait_for_process(pid_t pid, const struct mounted *m, uint64_t timeout_ms)
{
	cfs_deadline_t deadline = cfs_deadline_in(timeout_ms);
	struct pollfd p = {.events = POLLIN};
	bool elsewhere, halted;
	char why[SILENT_WHY_MAX];
	int r;

	/* A pidfd is readable when the process has exited, reaped or not. */
	p.fd = pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
	if (p.fd < 0)
		return CMD_OK;
	r = poll(&p, 1, (int)CFS_MIN(timeout_ms, (uint64_t)SOON_MS));
	elsewhere = r == 0 && holders_print_elsewhere(m) > 0;
	halted = r == 0 && silent_cannot_run(pid, why);
	if (r == 0 && !halted)
		cmd_error("unmounted; waiting for process %d to end, at most %llu s; the log of "
			  "the mount says what it waits for",
			  (int)pid, (unsigned long long)cfs_deadline_left_ms(deadline) / 1000);
	if (r == 0 && !halted)
		r = poll(&p, 1, (int)CFS_MIN(cfs_deadline_left_ms(deadline), (uint64_t)INT_MAX));
	close(p.fd);
	if (r > 0)
		return CMD_OK;
	if (halted)
		return cmd_error("unmounted, but process %d still flushes data, and %s", (int)pid,
				 why);
	return cmd_error(elsewhere ? "unmounted here, but process %d goes on for those"
				   : "unmounted, but process %d still flushes data",
			 (int)pid);
}

/* The number of staged blocks in the reply; 0 when the reply has none. */
static uint64_t ask_staged(const char *point, const char *mode, uint64_t *ret_bytes)
{
	json_t *reply = control_ask(point, json_pack("{s:s, s:s}", "op", "staged", "mode", mode));
	json_int_t n = json_get_int(reply, "blocks");

	*ret_bytes = (uint64_t)json_get_int(reply, "bytes");
	json_decref(reply);
	return (uint64_t)n;
}

/* Flushes while the volume is still mounted, so that progress can be shown. */
static int flush_staged(const char *point, uint64_t timeout_ms)
{
	cfs_deadline_t deadline = cfs_deadline_in(timeout_ms);
	uint64_t left, bytes, most = 0;
	struct progress p;
	char size[32];

	/* A mount that stays gets its upload-delay and upload-hours back. */
	live_begin();
	progress_begin(&p, "bytes uploaded");
	while ((left = ask_staged(point, "flush", &bytes)) > 0 && !cfs_deadline_passed(deadline)) {
		most = CFS_MAX(most, bytes);
		progress_set(&p, most - bytes, most);
		if (!live_wait(cfs_deadline_in(POLL_MS)))
			break;
	}
	progress_end(&p);
	if (left == 0 && !live_stopped())
		return CMD_OK;
	ask_staged(point, "normal", &bytes);
	if (live_stopped())
		return cmd_fail(CMD_INTERRUPTED, "interrupted, %s stays mounted", point);
	return cmd_error(
		"%llu blocks (%s) are not uploaded yet, %s stays mounted; --no-flush leaves them "
		"to the next mount",
		(unsigned long long)left, progress_size(bytes, size), point);
}

/* answers: the mount replies to requests. */
static int unmount(const char *point, const struct umount_opts *o, bool answers)
{
	bool ask = answers && !o->force;
	uint64_t bytes;
	int r;

	if (ask && o->flush) {
		r = flush_staged(point, o->timeout_ms);
		if (r != CMD_OK)
			return r;
	}
	if (ask && !o->flush)
		ask_staged(point, "leave", &bytes);
	r = cfs_fuse_umount(point, o->force);
	if (r == 0)
		return CMD_OK;
	if (r == -EBUSY) {
		cmd_error("%s is busy; close what is open there, or use --force", point);
		holders_print(point);
	} else {
		cmd_error("cannot unmount %s: %s", point, strerror(-r));
	}
	if (ask)
		ask_staged(point, "normal", &bytes);
	return CMD_SYSTEM;
}

static int umount_run(void *options, const char **args)
{
	const struct umount_opts *o = options;
	struct mounted m;
	const char *dir = args[0];
	char point[4096];
	bool answers;
	pid_t pid;
	int r;

	r = mounted_follow(dir, point, sizeof(point));
	if (r < 0 || mounted_at(point, &m) < 0)
		return cmd_usage("%s: not mounted", dir);
	if (strcmp(m.type, CFS_FSTYPE))
		return cmd_usage("%s: not a cachefs mount (%s)", dir, m.type);
	errno = 0;
	pid = control_pid(point, NULL);
	answers = pid > 0;
	if (!answers && errno == ETIMEDOUT)
		cmd_error("the mount at %s does not answer, and is unmounted without a question",
			  point);
	if (!answers)
		pid = requests_find_process(m.dev_minor);
	r = unmount(point, o, answers);
	if (r != CMD_OK)
		return r;
	return o->force ? CMD_OK : wait_for_process(pid, &m, o->timeout_ms);
}

const struct cmd cmd_umount = {
	.name = "umount",
	.synopsis = "[--force] [--no-flush] DIR",
	.summary = "Unmounts and waits until everything is stored",
	CMD_OPTIONS(umount_table),
	.min_args = 1,
	.max_args = 1,
	.run = umount_run,
};
