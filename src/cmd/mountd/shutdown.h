/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watches the end of a mount, and tells the service manager how much is left to store. After
 * stop-timeout without progress (a backend is away, or a local disk hangs) the process logs what is
 * lost, detaches its mount and exits, whatever its threads wait for.
 */
#ifndef CFS_CMD_SHUTDOWN_H
#define CFS_CMD_SHUTDOWN_H

#include <cachefs/data.h>
#include <cachefs/store.h>

struct shutdown_conf {
	const char *volume, *dir; /* borrowed, as all here */
	struct cfs_data *data;
	struct cfs_store *store;
	uint64_t timeout_ms; /* longest time without progress */
	/* Detaches the mount if it is still there. The process exits afterwards. */
	void (*abandon)(void *arg);
	void *arg;
};

struct shutdown;
int shutdown_create(const struct shutdown_conf *conf, struct shutdown **ret);
/* Starts watching the end. Repeated calls do nothing. Any thread. */
void shutdown_begin(struct shutdown *s);
/*
 * Called before the data layer is closed: logs how much data could not be stored. Returns -EIO when
 * there is such data, else 0.
 */
int shutdown_report_lost(struct shutdown *s);
/* Called before the data layer, or the store, is freed. */
void shutdown_forget_data(struct shutdown *s);
void shutdown_forget_store(struct shutdown *s);
/* Stops watching, and frees s. NULL is fine, for the functions above too. */
void shutdown_end(struct shutdown *s);

#endif
