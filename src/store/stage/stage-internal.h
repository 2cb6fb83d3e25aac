/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of writeback.
 *
 *	stage.c		the table of staged blocks, admission, blocks of earlier processes, life
 *	upload.c	uploading it
 *	file.c		a staged block's file
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
	int64_t since_ms; /* as cfs_now_ms(); negative: from before the machine was booted */
	cfs_deadline_t retry_at;
	uint16_t tries; /* that failed */
	uint8_t state;
	bool dropped; /* removed while it was being uploaded */
};

LIST_HEAD(staged_bucket, staged);
TAILQ_HEAD(staged_list, staged);

#define CFS_STAGE_BUCKETS 16384

/* Of a cache directory: entries that are to become durable. Concurrent callers share the work. */
struct dir_sync {
	pthread_mutex_t lock; /* protects it, but for `durable` */
	pthread_cond_t changed;
	TAILQ_HEAD(, dir_sync_wait) queue;
	bool running;
	/* Directories with a durable path. Only the running thread uses it. */
	uint64_t durable[16]; /* ids of them */
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
	bool due, running; /* under stage.lock */
};

struct stage_uploader {
	struct cfs_job job; /* first */
	struct cfs_stage *stage;
	bool busy; /* under stage.lock */
};

struct cfs_stage {
	struct cfs_stage_conf conf;
	struct cfs_store *store;
	struct cfs_disk *disk;
	struct cache_dirs *dirs;      /* its directories */
	bool attached;		      /* to the store and the disk cache */
	struct stage_scan *scans;     /* one for each directory */
	struct dir_sync *syncs;	      /* one for each directory, so that a hanging one delays no
				       * other */
	struct cfs_workers *workers;  /* upload */
	struct cfs_workers **writers; /* one for each directory, which scans it, too */
	struct cfs_ticker *ticker;
	_Atomic bool stopping;

	pthread_mutex_t lock; /* protects what follows */
	pthread_cond_t changed;
	struct staged_bucket buckets[CFS_STAGE_BUCKETS];
	struct staged_list list;	   /* oldest first */
	uint64_t n, bytes;		   /* in the list */
	uint64_t pending_n, pending_bytes; /* being written */
	LIST_HEAD(, stage_write) writes;   /* these, and those whose waiters have given up */
	uint64_t n_damaged;
	uint64_t uploading_bytes, uploading_max;
	unsigned n_busy;    /* uploaders */
	bool failing;	    /* the last upload failed: one uploader tries at a time */
	bool taking_memory; /* one uploader at a time waits for it */
	bool rescan;	    /* some blocks that the scan found did not fit */
	enum cfs_stage_mode mode;
	struct stage_uploader *uploaders;

	struct {
		_Atomic uint64_t uploads, upload_errors, bypassed;
	} stat;
};

/* ---- stage.c ---- */

/* Called with the lock: hides it from readers. */
void cfs_stage_free_entry(struct cfs_stage *st, struct staged *e);
/* Called with the lock: hides it from uploaders; readers find it. */
void cfs_stage_list_damaged(struct cfs_stage *st, struct staged *e);

/* ---- upload.c ---- */

/* Called with the lock: starts one more uploader if there is work for it. */
void cfs_stage_wake(struct cfs_stage *st);
/* The job of a struct stage_uploader. */
void cfs_stage_run_uploader(struct cfs_job *job);

/* ---- file.c ---- */

/* n of them. */
int cfs_stage_syncs_new(unsigned n, struct dir_sync **ret);
void cfs_stage_syncs_free(struct dir_sync *y, unsigned n);
/* Writes a block's file, durably. */
int cfs_stage_file_write(struct cfs_stage *st, struct cache_dir *dir, const struct cfs_block *b,
			 const struct cfs_segs *data);
/* Pages for all of a block. -ETIMEDOUT. */
int cfs_stage_file_room(struct cfs_stage *st, const struct cfs_block *b, cfs_deadline_t deadline,
			struct cfs_segs *ret);
/* Reads all of it into them and verifies. -ENOENT, -EBADMSG: damaged. */
int cfs_stage_file_read(const struct cache_dir *dir, const struct cfs_block *b,
			const struct cfs_segs *data);
/* The tier that a file of this size was staged for by JuiceFS. */
uint8_t cfs_stage_file_tier(int at, const char *name, const struct cfs_block *b, uint64_t size);
/* True when more space is free than staging must leave. */
bool cfs_stage_disk_has_room(const struct cache_dir *dir, double free_ratio, uint64_t need);

#endif
