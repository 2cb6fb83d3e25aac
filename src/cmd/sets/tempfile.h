/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unnamed files in $TMPDIR (or /var/tmp) for data that exceeds memory. Failures are reported on
 * stderr here, because a caller could not name the file. All return a negative errno then.
 */
#ifndef CFS_CMD_TEMPFILE_H
#define CFS_CMD_TEMPFILE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* A descriptor. */
int temp_open(void);
int temp_stream(FILE **ret); /* the same with a buffer */
/* All of len. */
int temp_write(int fd, const void *data, size_t len, uint64_t off);
int temp_read(int fd, void *data, size_t len, uint64_t off);
/* Reports err (negative) of such a file, and returns it. */
int temp_error(int err);

#endif
