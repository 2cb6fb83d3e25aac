/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One line on the terminal shows how far a command has come. Without a terminal on stderr it is
 * silent. Any thread may add.
 */
#ifndef CFS_CMD_PROGRESS_H
#define CFS_CMD_PROGRESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct progress {
	const char *what; /* "objects listed" */
	bool on;
	bool bytes; /* counts bytes instead of items; set before the first number */
	uint64_t start_ms;
	_Atomic uint64_t done, total; /* total 0: not known */
	_Atomic uint64_t shown_ms;
};

void progress_begin(struct progress *p, const char *what);
void progress_add(struct progress *p, uint64_t n);
void progress_set(struct progress *p, uint64_t done, uint64_t total);
/* Erases the line; also called before any other output. */
void progress_end(struct progress *p);

/* "1.5 GiB"; returns buf. */
const char *progress_size(uint64_t bytes, char buf[32]);

#endif
