/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CFS_CMD_MOUNT_H
#define CFS_CMD_MOUNT_H

#include <cachefs/meta.h>

#include "cmd/mountd/options/mountopts.h"

/*
 * Mounts (or checks, or remounts) a volume and returns the exit status of mount(8). In the
 * foreground it returns when the mount has ended.
 */
int mount_volume(const char *url, const char *dir, const struct mount_opts *o, bool verbose);

/*
 * The life of one mount in this process: opens every layer, mounts or resumes a mount, reports that
 * (worker_ready), serves until unmounted or told to stop, flushes, and closes. Does not return when
 * another process takes the mount over. Returns an exit status, with err on a failure before ready.
 */
struct worker;
int serve_mount(const char *url, const char *dir, const struct mount_opts *o, struct worker *w,
		char err[256]);

#endif
