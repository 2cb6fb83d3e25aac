/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands that watch a running mount. A signal does not end a read of a mount that hangs, so a
 * child reads the files and is abandoned at the deadline.
 */
#ifndef CFS_CMD_LIVE_H
#define CFS_CMD_LIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/clock.h"

/* Deadline for reading one file of the mount. */
#define LIVE_READ_MS 10000

struct live_reader {
	int fd; /* non-blocking; end of file means that the child has exited */
	pid_t pid;
	bool finish; /* live_stopped() does not end waits, but makes them short */
	char *text;  /* of live_reader_fill(), terminated; the caller's */
	size_t len, cap;
};
/* request: is written to the file before it is read; NULL: nothing is. */
int live_reader_start(const char *path, const char *request, struct live_reader *ret);
/* Bytes; 0 at the end of the file, -ETIMEDOUT, -EINTR when live_stopped() has become true. */
ssize_t live_reader_read(struct live_reader *r, void *buf, size_t size, cfs_deadline_t deadline);
/*
 * Reads on into text, to the end of the file or `max` bytes. -ETIMEDOUT: more may come at a further
 * call.
 */
int live_reader_fill(struct live_reader *r, size_t max, cfs_deadline_t deadline);
/*
 * Ends the child, so that it no longer keeps the mount busy. Its exit reason: 0 or a negative
 * errno; -ETIMEDOUT: it hangs for good.
 */
int live_reader_stop(struct live_reader *r);

/* Reads a whole file, malloc'ed and terminated, truncated after `max` bytes. */
int live_read(const char *path, size_t max, uint64_t timeout_ms, char **ret, size_t *ret_len);
/* As live_read(), for the standard output of a program that is found in PATH. */
int live_run(char *const argv[], size_t max, uint64_t timeout_ms, char **ret, size_t *ret_len);

/* After this call SIGINT and SIGTERM only end waits. */
void live_begin(void);
bool live_stopped(void);
/* Waits until the deadline; false when stopped earlier. */
bool live_wait(cfs_deadline_t deadline);

#endif
