/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands that watch a running mount. A signal does not end a read of a mount that hangs: files
 * are read by a child, which is left behind at the deadline.
 */
#ifndef CFS_CMD_LIVE_H
#define CFS_CMD_LIVE_H

#include <stddef.h>
#include <sys/types.h>

#include "base/clock.h"

/* How long a file of the mount may take. */
#define LIVE_READ_MS 10000

struct live_reader {
	int fd; /* not blocking; end of file: the child has ended */
	pid_t pid;
};
int live_reader_start(const char *path, struct live_reader *ret);
/* Bytes; 0 at the end of the file, -ETIMEDOUT, -EINTR when live_stopped() has become true. */
ssize_t live_reader_read(struct live_reader *r, void *buf, size_t size, cfs_deadline_t deadline);
/* Why the child has ended: 0 or a negative errno. */
int live_reader_stop(struct live_reader *r);

/* A file as a whole, malloc'ed and terminated, cut off after `max` bytes. */
int live_read(const char *path, size_t max, uint64_t timeout_ms, char **ret, size_t *ret_len);
/* The same of what a program, found in PATH, writes to standard output. */
int live_run(char *const argv[], size_t max, uint64_t timeout_ms, char **ret, size_t *ret_len);

/* From here on SIGINT and SIGTERM end waits only. */
void live_begin(void);
bool live_stopped(void);
/* Until the deadline; false when stopped before it. */
bool live_wait(cfs_deadline_t deadline);

#endif
