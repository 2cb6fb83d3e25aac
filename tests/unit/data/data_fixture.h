/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of the data layer: a volume of the real store with objects in memory, which fails or
 * stands still on demand, and metadata that lives here.
 */
#ifndef CFS_DATA_FIXTURE_H
#define CFS_DATA_FIXTURE_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <cachefs/data.h>
#include <cachefs/disk.h>
#include <cachefs/object.h>

#include "base/bytes.h"
#include "base/log.h"
#include "unit/metric.h"
#include "unit/wait.h"

#define BLOCK  (64u << 10) /* unless the options say otherwise */
#define CHUNKS 4
#define INODES 134

struct list {
	struct cfs_slice *v;
	size_t n;
};

struct cfs_meta {
	pthread_mutex_t lock;
	struct cfs_store *store;
	struct cfs_attr attr[INODES]; /* by inode */
	struct list chunk[INODES][CHUNKS];
	uint64_t next_slice;
	int64_t clock_ns;
	bool purge; /* slices without a reference are removed at once */

	_Atomic int fail_commits; /* so many fail with fail_error */
	cfs_ino_t fail_ino;	  /* of this inode; 0: of any */
	_Atomic int fail_error;
	_Atomic bool fail_applied; /* ... after they were applied */
	_Atomic int space_error;
	_Atomic uint64_t claimed[INODES]; /* and not given back */
	_Atomic uint64_t reads, head_reads, commits;
	_Atomic bool in_group[INODES];
	void (*begins)(void *arg, const struct cfs_commit *c); /* before a commit is applied */
	void *begins_arg;
	void (*applied)(void *arg); /* between a commit and its answer */
	void *applied_arg;
	void (*compacting)(void *arg); /* once, when a merged slice is stored and not yet named */
	void *compacting_arg;
};

/* An object store. */
struct faulty {
	struct cfs_object_store base; /* first */
	struct cfs_object_store *inner;
	_Atomic int fail_puts;
	_Atomic bool
		unlisted; /* what is missing is "denied", as in a bucket that we may not list */
	uint64_t pace_ms, last_ms; /* one put in this time comes through, the others time out */
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool closed;	     /* puts wait */
	size_t closed_bytes; /* ... those of objects of this length; 0: none */
	_Atomic uint64_t gets;
	_Atomic unsigned get_ms, put_ms;
	unsigned waiting;
	bool syncs_closed; /* syncs wait */
	unsigned fail_syncs;
};

struct volume {
	struct faulty object;
	struct cfs_meta meta;
	struct cfs_pool *pool;
	struct cfs_store *store;
	struct cfs_data *data;
	struct cfs_disk *disk; /* of tests that make one */
};

/* 0: a default that does not get in the way. */
struct options {
	uint64_t pool;
	uint32_t block;
	uint64_t io_timeout_ms, flush_idle_ms, flush_age_ms, put_timeout_ms;
	unsigned prefetch, downloads, max_closing;
	bool no_readahead;
	unsigned get_ms; /* how long the object store takes */
	bool syncs;	 /* what was put is durable after a sync */
};

struct volume *volume_new(struct options o);
/* The result of cfs_data_destroy(); asserts that no space is set aside any more. */
int volume_free(struct volume *v);
/* So many objects are stored. */
size_t objects(struct volume *v);

/* The clock of the metadata moves on. */
struct timespec tick(struct cfs_meta *m);
void list_add(struct list *l, const struct cfs_slice *s);
/* While closed, puts wait. */
void set_closed(struct faulty *f, bool closed);
void set_closed_bytes(struct faulty *f, size_t bytes);
void wait_for_put(struct faulty *f);
/*
 * A sync begins, and ends with an error in end_failing_sync(). wait_for_sync(): somebody wants the
 * next one. At most one at a time.
 */
void begin_failing_sync(struct volume *v);
void wait_for_sync(void);
void end_failing_sync(struct volume *v);

/* The number of the data layer with this name. */
uint64_t data_metric(struct volume *v, const char *name);

struct cfs_ctx ctx(void);
struct cfs_file *open_file(struct volume *v, cfs_ino_t ino);
/* These return what the data layer does. */
int write_at(struct cfs_file *f, uint64_t off, const void *data, size_t len);
ssize_t read_at(struct cfs_file *f, uint64_t off, void *dst, uint32_t len);
int flush(struct cfs_file *f);

/* Below `below`, the same for the same seed. */
uint32_t rnd(uint64_t *seed, uint32_t below);

#endif
