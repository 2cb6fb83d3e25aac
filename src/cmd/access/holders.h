/* SPDX-License-Identifier: Apache-2.0 */
/* Which processes keep a mount busy: their directories, open files and mappings. */
#ifndef CFS_CMD_HOLDERS_H
#define CFS_CMD_HOLDERS_H

/* A line per process on stderr, at most a few; processes of others show to root only. */
void holders_print(const char *point);
/*
 * A line per other mount namespace in which the file system with this device number is mounted, at
 * most a few. Returns how many it has found.
 */
unsigned holders_print_elsewhere(unsigned dev_minor);

#endif
