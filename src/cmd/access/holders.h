/* SPDX-License-Identifier: Apache-2.0 */
/* Lists the processes that keep a mount busy: working directories, open files and mappings. */
#ifndef CFS_CMD_HOLDERS_H
#define CFS_CMD_HOLDERS_H

#include <stddef.h>

struct mounted;

/* The name of a program, as the kernel has it; "" when it has ended. pid: as /proc names it. */
void holders_name(const char *pid, char *buf, size_t size);
/* Prints one line per process on stderr, at most a few. Only root sees processes of other users. */
void holders_print(const char *point);
/*
 * Prints one line per other mount namespace that has the file system, at most a few. Returns how
 * many were found.
 */
unsigned holders_print_elsewhere(const struct mounted *like);

#endif
