/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process that outlives the workers of a mount. It holds the connection to the kernel and the
 * state that is kept of the mount (cachefs/handoff.h). It starts a worker that resumes the mount
 * when one has died, and hands both to another supervisor when the mount is upgraded. It is idle
 * while all is well, starts no thread and opens no volume.
 */
#ifndef CFS_CMD_SUPERVISOR_H
#define CFS_CMD_SUPERVISOR_H

#include <stdbool.h>
#include <stdint.h>

#include "cmd/mountd/supervise/daemon.h"

struct mount_opts;
struct worker;

struct supervised {
	const char *url, *point;
	const struct mount_opts *opts;
	uint64_t mount_timeout_ms, io_timeout_ms; /* of opts */
	/* The life of a worker, in its own process: serve_mount(). */
	int (*serve)(const char *url, const char *dir, const struct mount_opts *o, struct worker *w,
		     char err[256]);
	struct daemon *report; /* NULL: in the foreground */
	/*
	 * The mount is there, and is taken over. The connection to its supervisor is made in here:
	 * a supervisor that takes its mount back kills the process that connected.
	 */
	bool takes_over;
};

/* Returns the exit status of the mount when it has ended, or has been handed over. */
int supervise(const struct supervised *s);

#endif
