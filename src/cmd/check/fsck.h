/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of fsck: names (fsck-tree.c), usage (fsck-usage.c), slices and blocks (fsck-data.c),
 * one subtree (fsck-path.c). */
#ifndef CFS_CMD_FSCK_H
#define CFS_CMD_FSCK_H

#include "cmd/access/admin.h"
#include "cmd/access/progress.h"
#include "cmd/sets/inostack.h"

struct fsck {
	struct admin *a;
	bool repair, sync_dir_stat, json;
	bool again; /* another round after repairs: unrepaired faults have been reported already */
	struct progress p;
	struct inostack stats; /* directories whose statistics are suspect */
	json_t *problems;
	cfs_ino_t path_ino; /* of the last report, and its path: on Redis a path costs a listing */
	char *path;
	uint64_t found, repaired;
	uint64_t inodes, names, slices, objects; /* looked at */
	size_t open;				 /* numbers that could not be judged (gaps.h) */
};

/*
 * Reports a fault. ino 0: the fault has no inode. Text follows the path in the output. Returns 0 or
 * -ENOMEM.
 */
__attribute__((format(printf, 5, 6))) int
fsck_report(struct fsck *f, const char *kind, cfs_ino_t ino, bool repaired, const char *fmt, ...);
/* Reports a block whose object has the wrong size (blocks_look). */
int fsck_block(struct fsck *f, cfs_ino_t ino, const char *key, uint64_t size);
/* Judges one inode number, repairs and reports. Doubtful statistics are noted for fsck_usage. */
int fsck_inode(struct fsck *f, cfs_ino_t ino);
/* Checks the records of one chunk by themselves: positions and lengths. */
int fsck_records(struct fsck *f, cfs_ino_t ino, uint32_t indx, const struct cfs_slice *v, size_t n);

int fsck_tree(struct fsck *f);
/* Checks the statistics that were noted; all: the volume's counters and the quotas too. */
int fsck_usage(struct fsck *f, bool all);
int fsck_data(struct fsck *f);
int fsck_path(struct fsck *f, const char *path, bool recursive);

#endif
