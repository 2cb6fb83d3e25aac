/* SPDX-License-Identifier: Apache-2.0 */
/* The layers of a mount below FUSE, opened as src/cmd/mountd/layers.c does, and closed. */
#ifndef EXHAUSTIVE_MOUNT_H
#define EXHAUSTIVE_MOUNT_H

#include <cachefs/disk.h>
#include <cachefs/replica.h>
#include <cachefs/vfs.h>

struct mount_conf {
	const char *url;
	const char *cache_dir; /* NULL: none */
	bool writeback, commit_later;
	const char *replicated; /* the database file, replicated as with sync; NULL: it is not */
	/* Of the supervisor: both survive the death of the process. */
	struct cfs_handoff *handoff; /* NULL: none */
	int bucket[2];		     /* open descriptions of the bucket; -1: none */
};

struct mount {
	struct cfs_meta *meta;
	struct cfs_setting *setting;
	struct cfs_object_store *objects;
	struct cfs_replica *replica;
	struct cfs_pool *pool;
	struct cfs_store *store;
	struct cfs_disk *disk;
	struct cfs_data *data;
	struct cfs_vfs *vfs;
};

/*
 * resume: continues the session and the handles in conf->handoff. A failure ends the process with
 * a message: no scene allows one.
 */
void mount_open(const struct mount_conf *conf, bool resume, struct mount *ret);
/* As an unmount: 0, or the first error. */
int mount_close(struct mount *m);

#endif
