/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regular backups of the metadata (cmd/access/backup.h) by a mount. One mount of the volume makes
 * each backup: under a lease it sets the mark `lastBackup`, which JuiceFS honours, too. A child
 * process does the work. A thread of this process looks when one is due, and calls the metadata.
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
	/* Volumes with more have no backups at intervals of up to an hour; 0: no limit. */
	int64_t max_inodes;
	bool skip_trash;
};

int backups_create(const struct backups_conf *conf, struct backups **ret);
/* Called when the session has started. Does nothing with interval_ms 0. */
int backups_start(struct backups *b);
/*
 * Kills a child that is at work, and removes the mark, so that the next mount makes a backup at
 * once. Frees b; NULL is fine.
 */
void backups_destroy(struct backups *b);

extern const struct cfs_metric_table cfs_backup_metrics; /* part: struct backups */

#endif
