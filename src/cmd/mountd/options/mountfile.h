/* SPDX-License-Identifier: Apache-2.0 */
/* Volumes by name: sections of cachefs.conf(5). */
#ifndef CFS_CMD_MOUNTFILE_H
#define CFS_CMD_MOUNTFILE_H

#include <stdbool.h>

#include "base/text/opt.h"

#define MOUNT_FILE "/etc/cachefs/cachefs.conf"

/*
 * Replaces the name of a volume by its section. args are the arguments of `cachefs mount` and of
 * mount.cachefs, of which args[at] is the META-URL or the name, and has_dir says whether a
 * directory follows. For a name, *ret_args are equivalent arguments with the content of its
 * section: the section's options come first, so that those in args win.
 *
 * file: value of the option config, or NULL. 1: use *ret_args and free them; 0: args[at] is a
 * META-URL; -EINVAL and the like with err, which names file and line and has no secrets.
 */
int mount_file_args(const char *file, int argc, char **argv, int at, bool has_dir, int *ret_argc,
		    char ***ret_argv, char err[CFS_OPT_ERRLEN]);
void mount_file_free(int argc, char **argv);

#endif
