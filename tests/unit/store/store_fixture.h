/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of the block store and what lies below it: a store over objects in memory, which count,
 * fail and hang on demand, and blocks whose bytes are known.
 */
#ifndef CFS_STORE_FIXTURE_H
#define CFS_STORE_FIXTURE_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <cachefs/store.h>

#include "base/bytes.h"
#include "unit/wait.h"

#define MIB   ((uint64_t)1 << 20)
#define BLOCK ((uint32_t)(4 * MIB))
#define PAGE  CFS_PAGE_LARGE

/* ---- the object store ---- */

extern struct faulty {
	struct cfs_object_store base;
	struct cfs_object_store *inner; /* in memory, without faults */
	_Atomic int gets, puts, syncs;
	_Atomic int get_error, put_error, sync_error; /* returned by every call while not 0 */
	_Atomic int head_error, missing_error; /* the same, the second one for what is missing */
	_Atomic int n_keys;
	char keys[256][CFS_BLOCK_KEY_MAX]; /* of the puts that came through, in order */
	unsigned tiers[256];		   /* of the same */

	pthread_mutex_t lock; /* protects what follows */
	pthread_cond_t changed;
	int hold_gets, hold_puts, hold_syncs; /* so many next calls hang until let go */
	int held;
	unsigned generation; /* grows when the held calls are let go */
} faulty;

/* It outlives the stores that are opened over it. */
void open_objects(void);
void close_objects(void);

/* which: a member of faulty, or what else is passed to pass_gate(). */
void hold(int *which, int n);
void pass_gate(int *which);
/* Until so many calls hang. */
void wait_held(int n);
void let_go(void);

/* ---- the store ---- */

extern struct cfs_pool *pool;
extern struct cfs_store *store;

/* 0: a default that does not get in the way. */
struct setting {
	uint64_t budget, get_timeout_ms, put_timeout_ms, tier_timeout_ms;
	unsigned uploads, downloads, prefetch;
	bool whole; /* objects come whole */
	bool plain; /* over the store in memory itself, which never waits */
	bool hash_prefix;
	struct cfs_unsynced *unsynced;
	bool reports_unsynced;
};

/* A pool and a store in it, over the objects. */
void open_store(struct setting setting);
void close_store(void);
/* After all that use it; asserts that they have given everything back. */
void close_pool(void);

/* All of the above. */
void start_store(struct setting setting);
void stop_store(void);

/* Of the store, its staging and its disk cache; they must exist. */
extern struct cfs_metrics metrics;
uint64_t metric(const char *name);
uint64_t metric_for(const char *name, const char *method); /* with this label */

/* ---- blocks ---- */

/* The byte at a position of a block; differs between blocks and between pages. */
uint8_t byte_at(const struct cfs_block *b, uint32_t pos);
/* malloc'ed. */
uint8_t *content(const struct cfs_block *b);
/* The block as an object, put there behind the store's back. */
void put_object(const struct cfs_block *b);
/* The same, cut or with a byte more. */
void put_object_of(const struct cfs_block *b, uint32_t len);
bool object_exists(const struct cfs_block *b);
/* The pages of a block as a writer would have filled them, `piece` bytes each. */
void fill(const struct cfs_block *b, uint32_t piece, struct cfs_segs *ret);
/* Puts the block through the store and waits for it. */
int put_sync(const struct cfs_block *b);
/* Checks every byte of a range; usable from any thread. */
bool range_is_right(const struct cfs_segs *s, const struct cfs_block *b, uint32_t off,
		    uint32_t len);
/* As cfs_store_read(), and -EILSEQ when the bytes are wrong. */
int read_range(const struct cfs_block *b, uint32_t off, uint32_t len, cfs_deadline_t deadline);

/* ---- threads that read a range each ---- */

enum { READERS = 16 };

struct reader {
	struct cfs_block b;
	uint32_t off, len;
	cfs_deadline_t deadline;
	int r; /* of read_range() */
};

void start_readers(struct reader *rd, pthread_t *t, int n);
void join_readers(pthread_t *t, int n);

#endif
