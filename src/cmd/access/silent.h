/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CFS_CMD_SILENT_H
#define CFS_CMD_SILENT_H

#include <stdbool.h>
#include <sys/types.h>

#define SILENT_WHY_MAX 640

/*
 * Prints that the mount there does not answer, why as far as that is known, and what to do. Asks the
 * mount nothing. Returns CMD_SYSTEM.
 */
int silent_error(const char *point);
/*
 * Whether the process is stopped or frozen. why: the end of a sentence that begins with the process:
 * "is stopped; ...".
 */
bool silent_cannot_run(pid_t pid, char why[SILENT_WHY_MAX]);

#endif
