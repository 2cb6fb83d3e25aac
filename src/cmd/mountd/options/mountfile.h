/* SPDX-License-Identifier: Apache-2.0 */
/* Volumes by name: sections of cachefs.conf(5). */
#ifndef CFS_CMD_MOUNTFILE_H
#define CFS_CMD_MOUNTFILE_H

#include <stdbool.h>

#include "base/text/opt.h"

#define MOUNT_FILE "/etc/cachefs/cachefs.conf"

/*
 * Replaces the name of a volume by its section. argv: the arguments of `cachefs mount` or
 * mount.cachefs, in which argv[at] is the META-URL or the name. has_dir: a directory follows. For a
 * name, *ret_argv are equivalent arguments with the content of its section: the section's options
 * come first, so that those in argv win.
 *
 * file: value of the option config, or NULL. 1: *ret_argv is to be used, and freed by
 * mount_file_free(); 0: argv[at] is a META-URL; negative: err names file and line, without secrets.
 */
int mount_file_args(const char *file, int argc, char **argv, int at, bool has_dir, int *ret_argc,
		    char ***ret_argv, char err[CFS_OPT_ERRLEN]);
void mount_file_free(int argc, char **argv);
/*
 * For a name: runs the command again with those arguments, and returns true and its exit status;
 * also after a message. False: argv[at] is a META-URL.
 */
bool mount_file_run(const char *file, int argc, char **argv, int at, bool has_dir,
		    int (*run)(int argc, char **argv), int *ret_status);

#endif
