/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of the block store.
 *
 *	memory.c  the memory tier: blocks, their pages, eviction
 *	route.c	  the tiers that may have a block
 *	local.c	  reads of a range from a local tier
 *	range.c	  reads of a small range from a peer
 *	flight.c  fetches that several readers share (flight-internal.h)
 *	prefetch.c whole blocks after reads of parts; cancelling prefetches at close
 *	warm.c	  filling the caches on request
 *	put.c     uploads
 *	sync.c    durability
 *	slices.c  slice ids that objects have
 *	keys.c	  names of objects
 *	metrics.c statistics
 *	store.c   life, read, prefetch, removal
 *	cachedir/ directories of block files; on top of it:
 *	disk/	  the disk cache, a tier
 *	peers/	  other members of the cache group, a tier
 *	stage/	  writeback
 *
 * Locks: a shard's lock protects its blocks with all their slots, and the flights of those blocks.
 * put_lock protects the list of uploads, alloc_lock a flag, sync.lock the syncs. These are leaves,
 * but a job is queued under sync.lock. Under them no I/O is done, and nothing is called that takes
 * pages or another lock of the store.
 */
#ifndef CFS_STORE_INTERNAL_H
#define CFS_STORE_INTERNAL_H

#include <cachefs/store.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/queue.h>

#include "base/bytes.h"

#define CFS_STORE_SHARDS    32 /* power of two */
#define CFS_STORE_TIERS	    4
#define CFS_STORE_BLOCK_MAX (16u << 20)
#define CFS_STORE_PAGES_MAX (CFS_STORE_BLOCK_MAX / CFS_PAGE_LARGE) /* of one block */

struct readahead;
struct flight;
struct block_prefetch;
struct cfs_stage;
struct cfs_put;
struct cfs_task;

/* CFS_PAGE_LARGE bytes of a block, or what is left at its end. */
struct slot {
	struct cfs_page *page;	/* in memory: the tier's reference */
	struct flight *flight;	/* being fetched, even if memory drops the page meanwhile */
	TAILQ_ENTRY(slot) link; /* in shard.clock while page is set */
	uint16_t index;
	uint8_t hot;   /* hits since the clock hand passed, at most HOT_MAX */
	bool fresh;    /* not read since it was inserted */
	bool stream;   /* prefetched for a stream that has not read it to its end */
	bool passed;   /* the stream has read it to its end: first in shard.clock */
	uint32_t born; /* store->inserted when it was prefetched; else a value long ago */
};

struct block {
	LIST_ENTRY(block) link; /* in its bucket */
	struct shard *shard;
	struct cfs_block id;
	unsigned users; /* flights, uploads, pages: in the table while not 0 */
	unsigned n_slots;
	bool indivisible;    /* its object cannot be verified in part */
	struct cfs_put *put; /* pending upload, whose data answers every read */
	struct slot slots[];
};

LIST_HEAD(block_list, block);
TAILQ_HEAD(flight_list, flight);
TAILQ_HEAD(block_prefetch_list, block_prefetch);
TAILQ_HEAD(readahead_list, readahead);
TAILQ_HEAD(slot_list, slot);

struct shard {
	_Alignas(64) pthread_mutex_t lock;
	struct cfs_store *store;
	struct block_list *buckets;
	size_t n_buckets, n_blocks;
	struct slot_list clock; /* oldest first */
	size_t n_clock;
	uint64_t hits, hit_bytes;
};

struct cfs_tier_slot {
	const struct cfs_tier_ops *ops;
	void *tier;
};

struct cfs_sync {
	struct cfs_workers *worker;
	struct cfs_job job; /* queued or running while `running` */

	pthread_mutex_t lock; /* protects what follows */
	pthread_cond_t changed;
	/* Syncs are numbered from 1: the last one that is wanted, has begun, has ended, has failed.
	 */
	uint64_t wanted, started, ended, failed;
	int err; /* of `failed` */
	bool running;
	struct cfs_unsynced *slices;
	struct cfs_unsynced own;
};

/* Writeback (stage/), as the store sees it. */
struct stage_ops {
	/* 0: the block is durable on disk; else it must be uploaded at once. */
	int (*put)(struct cfs_stage *st, const struct cfs_block *b, const struct cfs_segs *data,
		   cfs_deadline_t deadline);
	/* Whether the block waits to be uploaded. */
	bool (*has)(struct cfs_stage *st, const struct cfs_block *b);
	/* The block was removed: it will not be uploaded. */
	void (*drop)(struct cfs_stage *st, const struct cfs_block *b);
	/* As cfs_store_set_parallel(). */
	void (*set_max_uploads)(struct cfs_stage *st, unsigned max);
	/* Ends, and leaves staged files where they are. */
	void (*stop)(struct cfs_stage *st);
};

struct cfs_store {
	struct cfs_object_store *object;
	struct cfs_pool *pool;
	char *volume;
	uint32_t block_size;
	bool hash_prefix;
	uint64_t get_timeout_ms, put_timeout_ms, tier_timeout_ms, local_timeout_ms;
	bool cache_large_write;
	struct cfs_workers *downloads, *uploads;
	struct cfs_workers *local_workers; /* the only threads that wait for local tiers */
	struct cfs_tier_slot tiers[CFS_STORE_TIERS];
	unsigned n_tiers;

	struct shard shards[CFS_STORE_SHARDS];
	_Atomic uint64_t memory_bytes;
	uint64_t memory_limit;
	_Atomic uint64_t passed_bytes; /* of them, pages that streams have already read */
	uint64_t passed_limit;
	_Atomic uint32_t inserted; /* pages so far */
	uint32_t grace;		   /* of a page fetched ahead, in pages that come after it */
	_Atomic unsigned hand;	   /* shard from which the next page is evicted */

	/* Serializes readers that found no free memory. */
	pthread_mutex_t alloc_lock;
	pthread_cond_t alloc_free;
	bool alloc_busy;
	_Atomic unsigned max_prefetches;
	_Atomic unsigned prefetching;

	struct cfs_workers *prefetchers; /* NULL: whole blocks are not prefetched */
	/* Protects the lists of prefetches. Held while their jobs are queued and dequeued. */
	pthread_mutex_t prefetch_lock;
	struct flight_list prefetches; /* prefetches, queued or running */
	struct block_prefetch_list block_prefetches;
	struct readahead_list readaheads; /* cfs_local_ahead(): queued or running, oldest first */
	unsigned n_readaheads;

	pthread_mutex_t put_lock;
	pthread_cond_t put_room;
	LIST_HEAD(, cfs_put) puts;
	uint64_t put_pending_bytes, put_limit_bytes;
	/* Uploads at a time: the maximum, the limit in force, and when it grows (adapt_uploads()). */
	unsigned uploads_max, uploads_now, uploads_good, uploads_patience;
	bool uploads_probe;
	struct cfs_ticker *put_watch;
	_Atomic bool puts_fail;	  /* the last upload failed */
	_Atomic uint64_t miss_ns; /* moving average of the time that a miss in memory takes */
	atomic_bool reads_stopped;
	_Atomic uint64_t hurried_ms; /* cfs_store_hurry_reads(), by cfs_now_ms(); 0: not called */
	/* NULL: none. Set before the first put. */
	const struct stage_ops *stage_ops;
	struct cfs_stage *stage;

	struct cfs_sync sync;

	struct {
		_Atomic uint64_t gets, get_bytes, get_errors, get_ns;
		_Atomic uint64_t puts, put_bytes, put_errors, put_ns;
		_Atomic uint64_t deletes, delete_errors;
		_Atomic uint64_t prefetches, prefetch_drops, prefetch_cancels;
		_Atomic uint64_t block_prefetches, block_prefetch_drops;
	} stat;
};

#define CFS_STAT_ADD(s, field, n)                                                                  \
	atomic_fetch_add_explicit(&(s)->stat.field, (n), memory_order_relaxed)

/* ---- memory.c ---- */

int cfs_memory_init(struct cfs_store *s);
void cfs_memory_fini(struct cfs_store *s);
struct shard *cfs_memory_shard(struct cfs_store *s, const struct cfs_block *b);
/* The next four are called with the shard locked. */
struct block *cfs_memory_find(struct shard *sh, const struct cfs_block *b);
/* Finds or adds it, with one more user; NULL without memory. */
struct block *cfs_memory_use(struct shard *sh, const struct cfs_block *b);
/* Drops a user. */
void cfs_memory_unuse(struct shard *sh, struct block *block);
/*
 * Takes over one reference of the page when the slot is empty; false: the caller keeps it. ahead:
 * it was not requested yet.
 */
bool cfs_memory_insert(struct cfs_store *s, struct shard *sh, struct block *block, unsigned index,
		       struct cfs_page *page, bool ahead);
/* The page is unlikely to be read again: it is evicted before others. */
void cfs_memory_set_passed(struct block *block, unsigned index);
/*
 * Appends the range when all of it is in memory: 1; 0 when it is not; negative errno. With the
 * shard locked.
 */
int cfs_memory_collect(struct block *block, uint32_t off, uint32_t len, struct cfs_segs *ret);
/* Whether a flight brings a part of the range. With the shard locked. */
bool cfs_memory_expects(const struct block *block, uint32_t off, uint32_t len);
/* How many bytes of a range within the block are in memory. Takes the shard's lock. */
uint32_t cfs_memory_held(struct cfs_store *s, const struct cfs_block *b, uint32_t off,
			 uint32_t len);
/* As cfs_memory_collect() for all of a block, not counted as a hit. */
int cfs_memory_collect_block(struct block *block, struct cfs_segs *ret);
/* Drops the pages of a block and detaches its flights. */
void cfs_memory_forget(struct cfs_store *s, const struct cfs_block *b);
/* Evicts until the tier is within its share with `room` more bytes. */
void cfs_memory_shrink(struct cfs_store *s, uint32_t room);

static inline uint32_t cfs_slot_len(const struct cfs_block *b, unsigned index)
{
	return CFS_MIN(CFS_PAGE_LARGE, b->len - index * CFS_PAGE_LARGE);
}

/* ---- route.c ---- */

/*
 * Where a read looks for its bytes; docs/architecture.md has the diagram. A reader begins
 * in MEMORY. In LOCAL (local.c) and PEER (range.c) it reads just its range, or a flight reads for
 * it, as in all other states (flight.c). A flight that has its bytes ends in MEMORY.
 */
enum read_state {
	READ_MEMORY, /* pages of the memory tier, or of an upload */
	READ_LOCAL,  /* a tier of this machine; workers: cfs-local */
	READ_PEER,   /* a tier beyond it; workers of this and the rest: cfs-download */
	READ_HEDGED, /* the same, and the object store beside it: the first answer counts */
	READ_OBJECT, /* the object store */
};

/* The tiers' knowledge of a block; each is asked at most once per request. */
struct cfs_route {
	enum cfs_place place; /* cfs_route_place() */
	unsigned placer;      /* the tier that knows it; n_tiers: none */
	bool local;	      /* the index of a local tier has it */
	bool only;	      /* no other copy exists */
	unsigned from;	      /* tiers before this one have missed, or were abandoned */
};

/* Fills in all but the place, which costs time and which a hit in a local tier does not need. */
struct cfs_route cfs_route_find(const struct cfs_store *s, const struct cfs_block *b);
void cfs_route_place(const struct cfs_store *s, const struct cfs_block *b, struct cfs_route *route);
/* A tier's get has ended with this error. */
void cfs_route_missed(struct cfs_route *route, unsigned tier, ssize_t err);
/* A read of a range that memory does not have, on its way through the states. */
struct cfs_miss {
	const struct cfs_block *block;
	uint32_t off, len;
	struct cfs_pattern pattern;
	cfs_deadline_t deadline;
	struct cfs_route route;
	enum cfs_source source;	 /* where its bytes come from; set on the way */
	struct cfs_async *async; /* NULL: its thread waits */
	/*
	 * NULL, or it is a hedge: it never waits for memory (-EAGAIN), and ends with -ECANCELED
	 * soon after this has become true.
	 */
	bool (*settled)(void *arg);
	void *settled_arg;
};

/* The first tier that is not of this machine, or n_tiers. */
unsigned cfs_route_first_remote(const struct cfs_store *s);
/*
 * The transition after a miss: the state of a read when all tiers before number `tier` have missed
 * or were abandoned.
 */
enum read_state cfs_route_state(const struct cfs_store *s, unsigned tier);
/* The workers that make the blocking calls of a state. */
struct cfs_workers *cfs_route_workers(const struct cfs_store *s, enum read_state state);
/*
 * A whole block that came from tier number `source`, or was written (n_tiers), is offered to the
 * nearer ones, as its place demands. Without nowait the thread may wait for room to keep it.
 */
void cfs_route_offer(struct cfs_store *s, const struct cfs_route *route, const struct cfs_block *b,
		     const struct cfs_segs *data, unsigned source, bool nowait);
/* Abandons the worker of a get that hangs in this tier, and replaces it. */
void cfs_route_abandon(struct cfs_store *s, unsigned tier, const struct cfs_block *b);
/*
 * Runs a task on a block in a local tier on a worker. As cfs_task_wait(), but a worker that hangs
 * is abandoned and replaced, as above.
 */
int cfs_route_wait(struct cfs_store *s, unsigned tier, const struct cfs_block *b,
		   struct cfs_task *task, cfs_deadline_t deadline, ssize_t *ret);

/* ---- warm.c ---- */

/* Writes a whole block to the disk cache, unless it is there, waiting for room in its queue. */
void cfs_store_keep(struct cfs_store *s, const struct cfs_block *b, const struct cfs_segs *data,
		    cfs_deadline_t deadline);

/* ---- local.c ---- */

/*
 * 1: done; 0: no local tier has it, or it is large; negative errno as cfs_store_read.
 * m->route.from is set to the next tier to ask.
 */
int cfs_local_read(struct cfs_store *s, struct cfs_miss *m, struct cfs_segs *ret);

/*
 * 0: a local tier reads the range of a block into the kernel's cache; -EAGAIN: too many do already;
 * -ENOMEM; -EOPNOTSUPP: it cannot.
 */
int cfs_local_ahead(struct cfs_store *s, const struct cfs_block *b, uint32_t off, uint32_t len);

/* ---- range.c ---- */

/*
 * The same from the owner of a block that another member keeps. 0: the read needs a flight, or the
 * owner did not serve it; -EINPROGRESS: it ends by m->async. m->route is complete, and no flight
 * brings the range.
 */
int cfs_range_read(struct cfs_store *s, struct cfs_miss *m, struct cfs_segs *ret);
/* Whether it would ask a tier at all. */
bool cfs_range_serves(const struct cfs_store *s, const struct cfs_miss *m);

/* ---- flight.c, flight-ahead.c ---- */

/* The time until running fetches of the block from the object store are done; 0: unknown. */
uint64_t cfs_flight_left_ms(struct cfs_store *s, const struct cfs_block *b);
/* 0, or errors as of cfs_store_read(), and those of a hedge. m->route is complete. */
int cfs_flight_read(struct cfs_store *s, struct cfs_miss *m, struct cfs_segs *ret);
/* Starts the flights that cfs_flight_read() would wait for, as prefetches. True: all are under way. */
bool cfs_flight_start(struct cfs_store *s, const struct cfs_miss *m, uint64_t owner);
bool cfs_flight_prefetch(struct cfs_store *s, const struct cfs_block *b, uint32_t off, uint32_t len,
			 uint64_t owner, const struct cfs_route *route);
/*
 * Fetches the missing parts of a block from remote tiers in the calling thread, if memory is free.
 */
void cfs_flight_fill(struct cfs_store *s, const struct cfs_block *b, uint64_t owner);
/* Drops prefetches of an owner: queued ones, and running ones without a waiting reader. */
void cfs_flight_cancel(struct cfs_store *s, uint64_t owner);

/* ---- prefetch.c ---- */

int cfs_prefetch_init(struct cfs_store *s, unsigned max);
/* Ends prefetching for good. */
void cfs_prefetch_fini(struct cfs_store *s);

/* ---- put.c ---- */

int cfs_put_init(struct cfs_store *s);
void cfs_put_fini(struct cfs_store *s);
/* The most uploads at a time. A link that is too slow for them has fewer. */
void cfs_put_set_max(struct cfs_store *s, unsigned max);
const struct cfs_segs *cfs_put_data(const struct cfs_put *p);
/* Stores one object in the calling thread, once. */
int cfs_put_object(struct cfs_store *s, const struct cfs_block *b, const struct cfs_segs *data,
		   cfs_deadline_t deadline);

/* ---- sync.c ---- */

int cfs_sync_init(struct cfs_store *s, const struct cfs_store_conf *conf);
/*
 * Around a put to the object store. cfs_sync_begin() returns the first sync that may report its
 * failure; -EIO when one of these has failed, so that the block must be put again.
 */
uint64_t cfs_sync_begin(struct cfs_store *s);
int cfs_sync_check(struct cfs_store *s, uint64_t begun);
/* The same at the end of a put that is not repeated once it has succeeded: notes its slice. */
int cfs_sync_note(struct cfs_store *s, uint64_t begun, uint64_t slice);
void cfs_sync_fini(struct cfs_store *s);

/* keys.c: shows that the calling thread waits for a block, or fetches it; for base/activity.h. */
void cfs_store_await_block(const struct cfs_store *s, const struct cfs_block *b);

#endif
