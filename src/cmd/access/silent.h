/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CFS_CMD_SILENT_H
#define CFS_CMD_SILENT_H

#include <stdbool.h>
#include <sys/types.h>

/*
 * Prints that the mount there does not answer, why as far as that is known, and what to do. Asks the
 * mount nothing. Returns CMD_SYSTEM.
 */
int silent_error(const char *point);
/* Whether a signal has stopped the process. *ret_parent (or NULL): its parent. */
bool silent_is_stopped(pid_t pid, pid_t *ret_parent);

#endif
