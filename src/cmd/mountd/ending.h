/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a mount, watched: how much is still to be stored is told to the service manager, and
 * when nothing of it moves for too long, because a backend is away or a local disk hangs, the
 * process says what is left behind, takes its mount away and ends, whatever its threads wait for.
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
	/* Takes away the mount if it is still there; the process ends when it returns. */
	void (*abandon)(void *arg);
	void *arg;
};

struct ending;
int ending_create(const struct ending_conf *conf, struct ending **ret);
/* The end has begun; again: nothing. Any thread. */
void ending_begin(struct ending *e);
/*
 * What is left of the data is about to be closed: says in the log how much of it could not be
 * stored. 0, or -EIO when there is such.
 */
int ending_judge(struct ending *e);
/* These are not to be looked at any more. */
void ending_forget_data(struct ending *e);
void ending_forget_store(struct ending *e);
/* Everything has ended well, or as well as it could. NULL is fine, as it is above. */
void ending_done(struct ending *e);

#endif
