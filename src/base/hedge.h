/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hedge: another way to bytes that have been asked for, used when the first is late, so that the
 * slowest answers cost about as much as the others (Dean and Barroso: The Tail at Scale, CACM
 * 2013).
 */
#ifndef CFS_HEDGE_H
#define CFS_HEDGE_H

#include <stdbool.h>

struct cfs_hedge {
	/*
	 * Gets the bytes into memory of its own, as the first way may still write to the
	 * destination. Called at most once, in the waiting thread. 0: it has them. -EAGAIN: it has
	 * no room for them, so the caller abandons the first way. After other errors the caller
	 * waits for the first way. Ends soon, with any error, once settled(arg) tells that the
	 * first way has brought the bytes.
	 */
	int (*fetch)(struct cfs_hedge *h, bool (*settled)(void *arg), void *arg);
	/* The first way makes progress, and is waited for. Any thread, must not wait. May be NULL.
	 */
	void (*working)(struct cfs_hedge *h);
};

#endif
