/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regular backups of the metadata (cmd/access/backup.h) by a mount. One mount of the volume makes
 * each: it sets the mark `lastBackup`, which JuiceFS honours, too, under a lease. A child process
 * does the work; only calls of the metadata are made here, by a thread of its own.
 */
#ifndef CFS_CMD_BACKUPS_H
#define CFS_CMD_BACKUPS_H

#include <cachefs/meta.h>

#include "base/metric.h"
#include "cmd/access/volume.h"

struct backups;
struct backups_conf {
	struct cfs_meta *meta;
	const char *url, *volume, *dir; /* borrowed */
	struct volume_objects objects;	/* overrides; strings are borrowed */
	uint64_t interval_ms;		/* 0: never */
	uint64_t meta_timeout_ms;
	int64_t max_inodes; /* beyond, there are none at intervals of up to an hour; 0: no limit */
	bool skip_trash;
};

int backups_create(const struct backups_conf *conf, struct backups **ret);
/* The session runs. Does nothing with interval_ms 0. */
int backups_start(struct backups *b);
/*
 * Kills a child that is at work and removes its mark, so that the next mount need not wait. Frees;
 * NULL is fine.
 */
void backups_destroy(struct backups *b);

extern const struct cfs_metric_table cfs_backup_metrics; /* part: struct backups */

#endif
