/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of writeback.
 *
 *	stage.c		the table of staged blocks, admission, blocks of earlier processes, life
 *	upload.c	uploads
 *	file.c		files of staged blocks
 *
 * Locks: stage.lock and those of stage.syncs are leaves; no I/O is done under them.
 */
#ifndef CFS_STAGE_INTERNAL_H
#define CFS_STAGE_INTERNAL_H

#include <cachefs/stage.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "base/task.h"
#include "base/workers.h"
#include "store/cachedir/cachedir.h"
#include "store/disk/disk-staged.h"

enum staged_state {
	STAGED_WAITING,
	STAGED_UPLOADING,
	STAGED_DAMAGED, /* kept for inspection */
};

struct staged {
	LIST_ENTRY(staged) link; /* in its bucket */
	TAILQ_ENTRY(staged) by_age;
	struct cfs_block id;
	struct cache_dir *dir;
	int64_t since_ms; /* when it was staged, as cfs_now_ms(); negative: before the boot */
	cfs_deadline_t retry_at;
	uint16_t tries; /* failed uploads */
	uint8_t state;
	bool dropped; /* removed while it was being uploaded */
};

LIST_HEAD(staged_bucket, staged);
TAILQ_HEAD(staged_list, staged);

#define CFS_STAGE_BUCKETS 16384

/* Makes names in a cache directory durable. Concurrent callers share one fsync (group commit). */
struct dir_sync {
	pthread_mutex_t lock; /* protects the next three */
	pthread_cond_t changed;
	TAILQ_HEAD(, dir_sync_wait) queue;
	bool running; /* a caller syncs for all that were queued */
	/* Ids of subdirectories whose path is durable. Used by the running caller only. */
	uint64_t durable[16];
	unsigned n_durable;
};

/* A block on its way to the disk. */
struct stage_write {
	struct cfs_task task; /* first */
	struct cfs_stage *stage;
	struct cache_dir *dir;
	struct cfs_block id;
	struct cfs_segs data;
	bool written;
	bool listed; /* in stage.writes */
	LIST_ENTRY(stage_write) link;
};

/* Searches a directory for blocks that an earlier process left. */
struct stage_scan {
	struct cfs_job job; /* first */
	struct cfs_stage *stage;
	struct cache_dir *dir;
	bool due, running; /* protected by stage.lock */
};

struct stage_uploader {
	struct cfs_job job; /* first */
	struct cfs_stage *stage;
	bool busy; /* protected by stage.lock */
};

struct cfs_stage {
	struct cfs_stage_conf conf;
	struct cfs_store *store;
	struct cfs_disk *disk;
	struct cache_dirs *dirs;     /* of the disk cache */
	bool attached;		     /* to the store and the disk cache */
	struct cfs_workers *workers; /* upload */
	/* One for each directory, so that a hung disk delays no other. */
	struct stage_scan *scans;
	struct dir_sync *syncs;
	struct cfs_workers **writers; /* write, read, remove and scan its files */
	struct cfs_ticker *ticker;
	_Atomic bool stopping;

	pthread_mutex_t lock; /* protects the fields below */
	pthread_cond_t changed;
	struct staged_bucket buckets[CFS_STAGE_BUCKETS];
	struct staged_list list;	   /* oldest first */
	uint64_t n, bytes;		   /* in the list */
	uint64_t pending_n, pending_bytes; /* being written */
	LIST_HEAD(, stage_write) writes;   /* these, and abandoned ones */
	uint64_t n_damaged;
	uint64_t uploading_bytes, uploading_max;
	unsigned n_busy;	   /* uploaders */
	bool failing;		   /* the last upload failed: only one uploader tries */
	bool told;		   /* the log says that uploads fail */
	cfs_deadline_t full_quiet; /* until then no line about the lack of room */
	bool taking_memory;	   /* an uploader is waiting for pages; only one at a time does */
	bool rescan;		   /* a scan found more blocks than the table has room for */
	enum cfs_stage_mode mode;
	struct stage_uploader *uploaders;

	struct {
		_Atomic uint64_t uploads, upload_errors, bypassed;
	} stat;
};

/* ---- stage.c ---- */

/* Called with the lock held: removes the block from the table and from the list. */
void cfs_stage_free_entry(struct cfs_stage *st, struct staged *e);
/* Called with the lock held: removes it from the list. It stays in the table for readers. */
void cfs_stage_list_damaged(struct cfs_stage *st, struct staged *e);

/* ---- upload.c ---- */

/* Called with the lock held: starts one more uploader if there is work for it. */
void cfs_stage_wake(struct cfs_stage *st);
/* The job of a struct stage_uploader. */
void cfs_stage_run_uploader(struct cfs_job *job);

/* ---- file.c ---- */

/* An array of n. */
int cfs_stage_syncs_new(unsigned n, struct dir_sync **ret);
void cfs_stage_syncs_free(struct dir_sync *y, unsigned n);
/* Writes a block's file and makes it durable, with its name. */
int cfs_stage_file_write(struct cfs_stage *st, struct cache_dir *dir, const struct cfs_block *b,
			 const struct cfs_segs *data);
/* Gets pages for a whole block. -ETIMEDOUT. */
int cfs_stage_file_room(struct cfs_stage *st, const struct cfs_block *b, cfs_deadline_t deadline,
			struct cfs_segs *ret);
/* Reads the whole block into `data` and verifies it. -ENOENT; -EBADMSG: damaged. */
int cfs_stage_file_read(const struct cache_dir *dir, const struct cfs_block *b,
			const struct cfs_segs *data);
/* The tier (storage class) in the file of a block that JuiceFS has staged; 0 in our own files. */
uint8_t cfs_stage_file_tier(int at, const char *name, const struct cfs_block *b, uint64_t size);
/* True when `need` bytes more leave free_ratio of the space, and of the inodes, free. */
bool cfs_stage_disk_has_room(const struct cache_dir *dir, double free_ratio, uint64_t need);

#endif
