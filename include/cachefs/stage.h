/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writeback: a block is stored on a local disk first, and in the object store later.
 *
 *	<dir>/<uuid>/rawstaging/<block key>	a block, laid out as in the disk cache
 *	<dir>/<uuid>/raw/<block key>		a hard link to it: it is also in the cache
 *
 * A put is answered when the block's file and its name are durable. Uploads follow in the
 * background, oldest first, each until it succeeds. Staged blocks are read from their files. Blocks
 * that are found at start, left by a crash or by another client, are uploaded too, writeback or
 * not. A file is verified before it is uploaded. A damaged one is neither uploaded nor removed.
 *
 * A block that cannot be staged (the limit, the disk) goes directly to the object store. So does a
 * block whose write takes longer than stall_ms of the disk cache: if its file appears later, it is
 * removed.
 *
 * The files hold plain data, whatever the volume's compression and encryption: these are filters of
 * the object store.
 *
 * Memory: 120 bytes per staged block, at most CFS_STAGE_BLOCKS_MAX of them; one block per upload.
 * Format: volume-format section 8.
 */
#ifndef CFS_STAGE_H
#define CFS_STAGE_H

#include <cachefs/disk.h>
#include <cachefs/store.h>

#define CFS_STAGE_BLOCKS_MAX 100000

struct cfs_stage_conf {
	bool writeback;	    /* takes blocks; else it only uploads blocks that it finds */
	bool read_only;	    /* uploads nothing (read-only mounts): staged blocks can be read */
	uint64_t size;	    /* limit of the staged bytes; 0: the disk's only */
	double free_ratio;  /* of the disk; staging leaves half of that free */
	uint32_t threshold; /* only blocks shorter than that; 0: all */
	uint64_t delay_ms;  /* age at which blocks are uploaded */
	int hour_from, hour_until; /* local time in which blocks are uploaded. Equal: always */
	unsigned max_uploads;	   /* 0: 20 */
	uint64_t tick_ms;	   /* 0: 1 s */
};

/*
 * Called after the disk cache is a tier of the store and before the first put. The store stops
 * writeback before the disk cache is destroyed.
 */
int cfs_stage_start(struct cfs_store *s, struct cfs_disk *d, const struct cfs_stage_conf *conf);

extern const struct cfs_metric_table cfs_stage_metrics; /* of a struct cfs_store */

/* "22,6" and "22-6": from 22:00 until 6:00. -EINVAL. */
int cfs_stage_parse_hours(const char *text, int *ret_from, int *ret_until);

enum cfs_stage_mode {
	CFS_STAGE_NORMAL,
	CFS_STAGE_FLUSH, /* ignores delay and hours */
	CFS_STAGE_LEAVE, /* uploads nothing more; cfs_stage_drain() does not wait */
};
void cfs_stage_set_mode(struct cfs_store *s, enum cfs_stage_mode mode);
/*
 * Uploads all that is staged, delayed or not. Gives up when no upload succeeds for
 * `idle_timeout_ms`. Returns the number of blocks left for the next mount, and logs it.
 */
uint64_t cfs_stage_drain(struct cfs_store *s, uint64_t idle_timeout_ms);

#endif
