/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block store: immutable blocks by slice id, from the nearest tier that has them.
 *
 *	memory -> (disk cache -> peers) -> object store
 *
 * It knows keys and bytes, not files. A range that several callers want is fetched once (single
 * flight). A hit in memory is answered on the calling thread without a system call.
 *
 * Format: volume-format section 7 (object names). Memory: pages of the mount's pool.
 */
#ifndef CFS_STORE_H
#define CFS_STORE_H

#include <cachefs/async.h>
#include <cachefs/object.h>
#include <cachefs/transport.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/hedge.h"
#include "base/metric.h"
#include "base/workers.h"

struct cfs_store;

/*
 * Slices as sorted ranges of their ids. A process uses its ids in order, so there are few ranges.
 * When the table is full, the two nearest ranges are merged, with the ids between them. At every
 * instruction the set holds too many slices rather than too few.
 */
#define CFS_STORE_RUNS 62
struct cfs_slice_runs {
	_Atomic uint32_t n;
	uint32_t spare;
	struct {
		_Atomic uint64_t first, last;
	} run[CFS_STORE_RUNS];
};

/*
 * The blocks that the object store has accepted and not yet made durable. The record belongs to the
 * mount and outlives its processes (cachefs/handoff.h). All zeros at first.
 */
struct cfs_unsynced {
	/*
	 * Slices with blocks put since the running sync began; those put between the previous sync
	 * and that one; and those that may be lost.
	 */
	struct cfs_slice_runs fresh, covered, suspect;
	_Atomic uint32_t handed_over; /* cfs_store_hand_over() */
	uint32_t spare;
};

struct cfs_store_conf {
	struct cfs_object_store *object; /* borrowed */
	struct cfs_pool *pool;		 /* borrowed */
	const char *volume;		 /* key prefix */
	uint32_t block_size;		 /* bytes */
	bool hash_prefix;
	unsigned max_downloads, max_uploads; /* worker threads; 0: 20 */
	uint64_t get_timeout_ms, put_timeout_ms;
	uint64_t tier_timeout_ms; /* how long a reader waits for a tier before the next one; 0: 10 s
				   */
	uint64_t local_timeout_ms; /* the same for a local tier; 0: 1 s, or less */
	unsigned prefetch;	/* whole blocks fetched at a time after reads of parts; 0: none */
	bool cache_large_write; /* offers uploaded blocks of full size to the tiers too, not only
				   smaller ones */
	struct cfs_unsynced *unsynced; /* borrowed; NULL: the store has its own */
	/* True: the first sync reports failures of these blocks. False: they are suspect. */
	bool reports_unsynced;
};

int cfs_store_create(const struct cfs_store_conf *conf, struct cfs_store **ret);
/*
 * Running and later reads of objects end with -EIO at once. Called when the mount's own reads have
 * ended: the others serve peers or are prefetches. Any thread.
 */
void cfs_store_stop_reads(struct cfs_store *s);
/*
 * The mount ends: a read of an object ends with -EIO when no byte has come from the object store
 * for some seconds, as in a pause that it has asked for. Any thread.
 */
void cfs_store_hurry_reads(struct cfs_store *s);
/*
 * At most as many as at the start, 0: one. Running transfers above a lower limit are not cancelled.
 */
void cfs_store_set_parallel(struct cfs_store *s, unsigned max_downloads, unsigned max_uploads);
/* Waits for calls under way (each has its deadline). */
void cfs_store_destroy(struct cfs_store *s);

/*
 * One block of a slice. len is its whole (uncompressed) length and part of its name. tier is not
 * part of the name: it selects the storage class of a put.
 */
struct cfs_block {
	uint64_t slice;
	uint32_t index;
	uint32_t len;
	uint8_t tier;
};

static inline bool cfs_block_equal(const struct cfs_block *a, const struct cfs_block *b)
{
	return a->slice == b->slice && a->index == b->index && a->len == b->len;
}

/* Block `index` of a slice of `size` bytes. */
static inline struct cfs_block cfs_block_of(uint64_t slice, uint32_t size, uint32_t index,
					    uint32_t block_size)
{
	uint32_t left = size - index * block_size;

	return (struct cfs_block){
		.slice = slice, .index = index, .len = left < block_size ? left : block_size};
}
#define CFS_BLOCK_KEY_MAX 160
/* "<volume>/chunks/..."; returns the length. */
int cfs_store_block_key(const struct cfs_store *s, const struct cfs_block *b,
			char key[CFS_BLOCK_KEY_MAX]);

/*
 * Appends the bytes [off, off + len) of a block to *ret (pinned pages, to be released by the
 * caller). -ENOENT: the object is missing; -EACCES: it may be missing, too, since a bucket without
 * the right to list answers the same; -EIO: it is shorter or longer than its name says, or the
 * deadline has passed; -EBUSY: the thread may not wait for it (base/wouldblock.h), and a fetch that
 * has begun continues. On error *ret is unchanged.
 */
int cfs_store_read(struct cfs_store *s, const struct cfs_block *b, uint32_t off, uint32_t len,
		   cfs_deadline_t deadline, struct cfs_segs *ret);
/* The access pattern that a read belongs to, as far as it is known. All 0: it is not. */
struct cfs_pattern {
	/*
	 * So many bytes from off on will probably be read; a quarter of the block or more is
	 * fetched in one request. 0: not known, and reads of a quarter or more fetch the whole
	 * block.
	 */
	uint32_t likely;
	/* The bytes around it will probably not be read: a peer is asked for just the range. */
	bool random;
};

/* Where the bytes of a read came from. */
enum cfs_source {
	CFS_SOURCE_LOCAL,  /* the caches of this machine */
	CFS_SOURCE_REMOTE, /* beyond them, with the pages around the range; memory keeps these */
	CFS_SOURCE_RANGE,  /* a peer gave just the range; nothing keeps it */
};

/*
 * As cfs_store_read(). async (may be NULL): -EINPROGRESS when the read was started and ends by it
 * (cachefs/async.h), as CFS_SOURCE_RANGE.
 */
int cfs_store_fetch(struct cfs_store *s, const struct cfs_block *b, uint32_t off, uint32_t len,
		    struct cfs_pattern pattern, cfs_deadline_t deadline, struct cfs_async *async,
		    struct cfs_segs *ret, enum cfs_source *ret_source);
/*
 * Starts the fetch that cfs_store_fetch() of the range would wait for, if it is one from beyond
 * this machine. Never waits. True: it is under way. owner: as below.
 */
bool cfs_store_start_fetch(struct cfs_store *s, const struct cfs_block *b, uint32_t off,
			   uint32_t len, struct cfs_pattern pattern, uint64_t owner);
/*
 * Starts fetching [off, off + len) into memory unless it is there or memory is short. Never waits.
 * False: too much is under way already, or there is no memory. owner: any number for
 * cfs_store_cancel(); 0: no owner.
 */
bool cfs_store_prefetch(struct cfs_store *s, const struct cfs_block *b, uint32_t off, uint32_t len,
			uint64_t owner);
/*
 * Queues the whole of a block of which a part was read: at most conf.prefetch are fetched at a
 * time. False: the queue is full, or there is no prefetching.
 */
bool cfs_store_prefetch_block(struct cfs_store *s, const struct cfs_block *b, uint64_t owner);
/*
 * Whether blocks that are not in memory have lately taken long (1 ms or more): then even small ones
 * are worth fetching before they are wanted.
 */
bool cfs_store_is_slow(const struct cfs_store *s);
/* Drops the prefetches of `owner` that have not begun. */
void cfs_store_cancel(struct cfs_store *s, uint64_t owner);
/* True when all of the range could be read without leaving memory. */
bool cfs_store_in_memory(struct cfs_store *s, const struct cfs_block *b, uint32_t off,
			 uint32_t len);

/*
 * Stores a block. The pages in `data` are handed over (references are taken; the bytes must not
 * change any more) and stay readable through cfs_store_read at once. done runs on a worker thread,
 * exactly once, with 0 or a negative errno. Waits while too many uploads are queued; when it
 * returns an error done will not run.
 */
struct cfs_put;
typedef void (*cfs_put_done_fn)(void *arg, int err);
int cfs_store_put(struct cfs_store *s, const struct cfs_block *b, const struct cfs_segs *data,
		  cfs_put_done_fn done, void *arg, cfs_deadline_t deadline);
/* The same in the calling thread: returns when the block is stored (0) or has failed. */
int cfs_store_put_sync(struct cfs_store *s, const struct cfs_block *b, const struct cfs_segs *data,
		       cfs_deadline_t deadline);
/*
 * Makes stored blocks survive a power failure. When it fails, every slice with a block that
 * was put since the last success is suspect as long as the mount lives: its object may be gone, and
 * no later success brings it back. Puts under way fail and are repeated.
 */
int cfs_store_sync(struct cfs_store *s, cfs_deadline_t deadline);
/* The same for blocks stored before a moment: does nothing when a sync has begun since. */
uint64_t cfs_store_moment(struct cfs_store *s);
int cfs_store_sync_since(struct cfs_store *s, uint64_t moment, cfs_deadline_t deadline);
/*
 * Hands conf.unsynced over to a successor process that has opened the object store already:
 * collects the failures up to this moment. -EIO: not before the deadline.
 */
int cfs_store_hand_over(struct cfs_store *s, cfs_deadline_t deadline);
/* There is no successor: this process goes on with it. */
void cfs_store_take_back(struct cfs_store *s);
/* A successful sync does not cover the suspects: it came after the failure. */
bool cfs_store_has_suspects(struct cfs_store *s);
bool cfs_store_is_suspect(struct cfs_store *s, uint64_t slice);

/*
 * Whether all blocks of a slice of `size` bytes that this mount has stored are still there, in the
 * bucket or waiting to be uploaded to it: 1, 0 or a negative errno. Asks the bucket for each block.
 */
int cfs_store_has_slice(struct cfs_store *s, uint64_t slice, uint32_t size,
			cfs_deadline_t deadline);
/*
 * Whether the bucket has blocks of slices in [first, first + n): 1, 0 or a negative errno. Ids are
 * used in order, so with hash_prefix 8 classes of ids are listed instead of 256. n is at most 4096.
 * The caller logs.
 */
int cfs_store_slices_used(struct cfs_store *s, uint64_t first, uint64_t n, cfs_deadline_t deadline);
/* Removes every block of a slice of `size` bytes, and forgets it in all tiers. */
int cfs_store_remove_slice(struct cfs_store *s, uint64_t slice, uint32_t size,
			   cfs_deadline_t deadline);
/* Drops a block from the caches only. */
void cfs_store_forget(struct cfs_store *s, const struct cfs_block *b);

/*
 * Brings a whole block into the disk cache, or into memory when there is none, and waits for that.
 * 1: fetched; 0: it was there; -EOPNOTSUPP: the disk cache does not keep such blocks; else as
 * cfs_store_read, or -EAGAIN: the disk cache did not take it by the deadline.
 */
int cfs_store_warm(struct cfs_store *s, const struct cfs_block *b, cfs_deadline_t deadline);
/* How many bytes of [off, off + len) the caches have. Waits for the disk. */
struct cfs_store_held {
	uint32_t memory, disk;
};
void cfs_store_held(struct cfs_store *s, const struct cfs_block *b, uint32_t off, uint32_t len,
		    struct cfs_store_held *ret);
/* Whether there is a disk cache. */
bool cfs_store_has_disk(const struct cfs_store *s);
/* Whether there is one that would keep this block without dropping another. */
bool cfs_store_has_room(const struct cfs_store *s, const struct cfs_block *b);

extern const struct cfs_metric_table cfs_store_metrics; /* of a struct cfs_store */

/* The cache that keeps a block beyond memory. */
enum cfs_place {
	CFS_PLACE_ANY,	     /* any mount that has read it */
	CFS_PLACE_HERE,	     /* this mount, for other members, which will read all of it */
	CFS_PLACE_ELSEWHERE, /* another member. Reading one byte makes it fetch the whole block */
};

/*
 * A cache tier between memory and the object store. Tiers are asked in order; blocks from a farther
 * tier are offered to the nearer ones.
 *
 * Worker threads make the calls that may block, and their callers wait for them with a timeout: get
 * of a local tier without nowait, ahead, put and check may hang with the disk.
 */
struct cfs_tier_ops {
	const char *name;
	bool local; /* local: its blocks are cheap to read again and not kept in memory */
	/*
	 * As cfs_object_get_fn for a range of a block; -ENOENT: a miss. nowait: -EAGAIN rather than
	 * wait. -EREMCHG: a miss, and the block's place is CFS_PLACE_HERE for this read.
	 */
	ssize_t (*get)(void *tier, const struct cfs_block *b, uint32_t off, const struct iovec *dst,
		       int n_dst, bool nowait, cfs_deadline_t deadline);
	/*
	 * The same for callers that can fetch the range from the object store at the same time
	 * (hedge). -EALREADY: hedge has it. Optional; the fallback is get.
	 */
	ssize_t (*get_hedged)(void *tier, const struct cfs_block *b, uint32_t off,
			      const struct iovec *dst, int n_dst, struct cfs_hedge *hedge,
			      cfs_deadline_t deadline);
	/*
	 * Starts a get of a->len bytes that no thread waits for (cachefs/async.h). 0: started;
	 * -EAGAIN: the caller uses get. Never waits. Optional.
	 */
	int (*start)(void *tier, const struct cfs_block *b, uint32_t off, struct cfs_async *a);
	/* Starts to bring a range nearer without using memory of the pool (readahead). Optional. */
	void (*ahead)(void *tier, const struct cfs_block *b, uint32_t off, uint32_t len);
	/* A get of this block timed out; its worker thread is abandoned. Optional. */
	void (*late)(void *tier, const struct cfs_block *b);
	/*
	 * True when only this tier has the block: its readers wait until their own deadline.
	 * Optional.
	 */
	bool (*only)(void *tier, const struct cfs_block *b);
	/* Offers a whole block; the tier may decline. Never waits. */
	void (*offer)(void *tier, const struct cfs_block *b, const struct cfs_segs *data);
	/*
	 * The same, and waits. 0: the tier has it; -EAGAIN: it has no room at the moment;
	 * -EOPNOTSUPP: it never keeps such blocks. Optional.
	 */
	int (*put)(void *tier, const struct cfs_block *b, const struct cfs_segs *data,
		   cfs_deadline_t deadline);
	/* Whether it would keep the block without dropping another; no disk access. Optional. */
	bool (*has_room)(void *tier, const struct cfs_block *b);
	/* Whether the index of the tier has the block, without disk access. Optional. */
	bool (*holds)(void *tier, const struct cfs_block *b);
	/* The same, verified on disk: 1, 0; -EOPNOTSUPP: it never keeps such blocks. Optional. */
	int (*check)(void *tier, const struct cfs_block *b);
	void (*forget)(void *tier, const struct cfs_block *b);
	/* Optional; of one tier at most. */
	enum cfs_place (*place)(void *tier, const struct cfs_block *b);
	/*
	 * Takes a whole block whose place is CFS_PLACE_HERE: this tier has it kept, and the block
	 * is not offered to the other tiers. It may wait a few seconds for room, unless nowait.
	 * Required with place.
	 */
	void (*keep)(void *tier, const struct cfs_block *b, const struct cfs_segs *data,
		     bool nowait);
	/* Bytes of blocks that it has taken and not stored yet. Optional. */
	uint64_t (*pending)(void *tier);
};
/* Before the first read. At most 4. */
int cfs_store_add_tier(struct cfs_store *s, const struct cfs_tier_ops *ops, void *tier);

#endif
