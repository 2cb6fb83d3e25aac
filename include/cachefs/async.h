/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A read that no thread waits for: one thread starts it, and the thread that receives the bytes
 * ends it. That thread serves others, so a read that is not answered soon ends with an error, and
 * a thread that waits repeats it: only the repetition knows deadlines, hedges and other members.
 */
#ifndef CFS_ASYNC_H
#define CFS_ASYNC_H

#include <stdint.h>

struct cfs_page;

struct cfs_async {
	/*
	 * Called at most once, on the thread of the read, immediately before the read is started.
	 * Until then the structure may be on that thread's stack. Returns one that outlives the
	 * call, with page and len set; NULL: the read is not started. A layer that wraps the
	 * structure of its caller finishes its own work on the read here: from the start on, the
	 * file may be closed at any time.
	 */
	struct cfs_async *(*keep)(struct cfs_async *a);
	/*
	 * Called once for what keep() has returned, on any thread, also before the call that
	 * started the read returns. Must not wait. 0: the page has the bytes. Negative: the read is
	 * to be repeated. Takes over the page, and frees the structure.
	 */
	void (*done)(struct cfs_async *a, int err);
	struct cfs_page *page;
	uint32_t len; /* bytes of the read, all in the page */
};

#endif
