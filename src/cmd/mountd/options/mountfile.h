/* SPDX-License-Identifier: Apache-2.0 */
/* Volumes by name: sections of cachefs.conf(5). */
#ifndef CFS_CMD_MOUNTFILE_H
#define CFS_CMD_MOUNTFILE_H

#include <stdbool.h>

#include "base/text/opt.h"

#define MOUNT_FILE "/etc/cachefs/cachefs.conf"

/*
 * The arguments of `cachefs mount` and of mount.cachefs, of which args[at] is the META-URL and
 * has_dir says whether a directory follows. When args[at] is a name, *ret_args are others that say
 * the same with what its section has: the options in front, so that those in args win.
 *
 * file: of the option config, or NULL. 1: *ret_args are to be used, and freed; 0: args[at] is a
 * META-URL; -EINVAL and the like with err, which names file and line and has no secrets.
 */
int mount_file_args(const char *file, int argc, char **argv, int at, bool has_dir, int *ret_argc,
		    char ***ret_argv, char err[CFS_OPT_ERRLEN]);
void mount_file_free(int argc, char **argv);

#endif
