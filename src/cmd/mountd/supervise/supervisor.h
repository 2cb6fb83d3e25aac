/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process that outlives those that serve a mount: it holds the connection to the kernel and
 * what is kept of the mount (cachefs/keep.h), starts a worker that goes on when one has died, and
 * hands these to another supervisor when the mount is upgraded. It does nothing while all is well,
 * starts no thread and opens no volume.
 */
#ifndef CFS_CMD_SUPERVISOR_H
#define CFS_CMD_SUPERVISOR_H

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
	 * Where the supervisor of the running mount listens, to take that over, or NULL. It is
	 * called from here, as it kills the process that called when it gives that up.
	 */
	const char *old;
};

/* Returns the exit status of the mount when it has ended, or has been handed over. */
int supervise(const struct supervised *s);

#endif
