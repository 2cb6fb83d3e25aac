/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a .tar.gz of small texts: ustar headers (POSIX.1-2017, pax) in one gzip stream. */
#ifndef CFS_CMD_TAR_H
#define CFS_CMD_TAR_H

#include <stddef.h>

struct tar;
/* Creates the file, mode 0600; it must not exist. */
int tar_create(const char *path, struct tar **ret);
/* The name has at most 99 bytes. The first error is kept for tar_finish(). */
void tar_add(struct tar *t, const char *name, const void *text, size_t len);
/* Ends the archive and frees. Returns 0 or the first error. */
int tar_finish(struct tar *t);

#endif
