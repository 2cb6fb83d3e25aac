/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watches the end of a mount. The service manager is told how much is still to be stored. When
 * nothing moves for too long, because a backend is away or a local disk hangs, the process reports
 * the data that is lost, detaches its mount and exits, whatever its threads wait for.
 */
#ifndef CFS_CMD_ENDING_H
#define CFS_CMD_ENDING_H

#include <cachefs/data.h>
#include <cachefs/store.h>

struct ending_conf {
	const char *volume, *dir; /* borrowed, as all here */
	struct cfs_data *data;
	struct cfs_store *store;
	uint64_t timeout_ms; /* without progress */
	/* Detaches the mount if it is still there. The process exits when it returns. */
	void (*abandon)(void *arg);
	void *arg;
};

struct ending;
int ending_create(const struct ending_conf *conf, struct ending **ret);
/* Starts watching the end. Repeated calls do nothing. Any thread. */
void ending_begin(struct ending *e);
/*
 * Called before the data layer is closed: logs how much data could not be stored. Returns -EIO when
 * there is such data, else 0.
 */
int ending_judge(struct ending *e);
/* The data layer, or the store, is about to be freed and must not be used any more. */
void ending_forget_data(struct ending *e);
void ending_forget_store(struct ending *e);
/* The end is over: stops watching. NULL is fine, for the functions above too. */
void ending_done(struct ending *e);

#endif
