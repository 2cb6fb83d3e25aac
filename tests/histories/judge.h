/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The judges of a history. Each gets the operations of one arena in any order, and says which one
 * cannot be explained, or NULL.
 */
#pragma once

#include "history.h"

#include <stddef.h>

struct rules {
	bool faults;   /* parts of the system were stopped: EIO and the like may come at any time */
	bool deaths;   /* processes of mounts died: a removal or rename that was done before or by
			another mount is answered with success, and a change may be done twice
			when another mount has undone it in between (docs/posix.md) */
	unsigned most; /* possibilities to follow at a time, 0: the default */
};

struct verdict {
	const struct op *op; /* cannot be explained; NULL: all is well */
	const char *why;
	bool gave_up; /* too many possibilities: not judged to the end */
	uint64_t steps;
};

/* Names are linearizable. Order of the operations: by invocation. */
void judge_names(const struct op *ops, size_t n, const struct rules *rules, struct verdict *ret);
/* Data is close-to-open. */
void judge_data(const struct op *ops, size_t n, const struct rules *rules, struct verdict *ret);
/* A lock that is held is held by one. */
void judge_locks(const struct op *ops, size_t n, const struct rules *rules, struct verdict *ret);
