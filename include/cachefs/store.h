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

#include <cachefs/object.h>
#include <cachefs/transport.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/hedge.h"
#include "base/workers.h"

struct cfs_store;

/*
 * Slices as sorted ranges of their ids. A process uses its ids in order, so that these are few;
 * when there is no room for another one, the two that are nearest become one, with what is between
 * them. At every instruction there is rather too much in it than too little.
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
 * What the object store has taken and has not made durable: of a mount, whose processes may die
 * (cachefs/keep.h). All zeros at first.
 */
struct cfs_unsynced {
	/* Slices with blocks that were put: since the running sync has begun; between the one
	 * before and that; and those that may be gone. */
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
	uint64_t tier_timeout_ms;  /* how long a reader waits for a tier, then goes on; 0: 10 s */
	uint64_t local_timeout_ms; /* the same for a tier of this machine; 0: 1 s, or less */
	unsigned prefetch;	/* whole blocks fetched at a time after reads of parts; 0: none */
	bool cache_large_write; /* offers uploaded blocks of full size to the tiers, not only others
				 */
	struct cfs_unsynced *unsynced; /* borrowed; NULL: the store has its own */
	/* The first sync reports whatever of these has failed; else they are suspect. */
	bool hears_of_unsynced;
};

int cfs_store_create(const struct cfs_store_conf *conf, struct cfs_store **ret);
/* Waits for what is under way (each part has its deadline). */
void cfs_store_destroy(struct cfs_store *s);

/*
 * One block of a slice. len is its whole (uncompressed) length and part of its name; tier is no
 * part of it, and says in which class of storage a put stores it.
 */
struct cfs_block {
	uint64_t slice;
	uint32_t index;
	uint32_t len;
	uint8_t tier;
};

#define CFS_BLOCK_KEY_MAX 160
/* "<volume>/chunks/..."; returns the length. */
int cfs_store_block_key(const struct cfs_store *s, const struct cfs_block *b,
			char key[CFS_BLOCK_KEY_MAX]);

/*
 * Appends the bytes [off, off + len) of a block to *ret (pinned pages, to be released by the
 * caller). -ENOENT: the object is missing; -EACCES: it may be, too, as a bucket that may not be
 * listed does not say; -EIO: it is shorter or longer than its name says, or the deadline has
 * passed; -EBUSY: the thread may not wait for it (base/longwait.h), what has begun goes on. On
 * error *ret is as before.
 */
int cfs_store_read(struct cfs_store *s, const struct cfs_block *b, uint32_t off, uint32_t len,
		   cfs_deadline_t deadline, struct cfs_segs *ret);
/* The same; *ret_far says whether it had to come from farther than this machine's caches. */
int cfs_store_fetch(struct cfs_store *s, const struct cfs_block *b, uint32_t off, uint32_t len,
		    cfs_deadline_t deadline, struct cfs_segs *ret, bool *ret_far);
/*
 * Starts fetching [off, off + len) into memory unless it is there or memory is short. Never waits.
 * False: too much is under way already, or there is no memory. owner: any number for
 * cfs_store_cancel(); 0 is nobody.
 */
bool cfs_store_prefetch(struct cfs_store *s, const struct cfs_block *b, uint32_t off, uint32_t len,
			uint64_t owner);
/*
 * Queues all of a block, of which a part was read: at most conf.prefetch are fetched at a time.
 * False: the queue is full, or there is no prefetching.
 */
bool cfs_store_prefetch_block(struct cfs_store *s, const struct cfs_block *b, uint64_t owner);
/* What was prefetched for `owner` and has not begun is dropped. */
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
 * Stored blocks survive a power failure afterwards. When it fails, every slice with a block that
 * was put since the last success is suspect as long as the mount lives: its object may be gone, and
 * no later success brings it back. Puts that were under way fail, and are made again.
 */
int cfs_store_sync(struct cfs_store *s, cfs_deadline_t deadline);
/*
 * Another process, which has opened the object store by now, is to go on with conf.unsynced: what
 * has failed until then is found out here. -EIO: not before the deadline.
 */
int cfs_store_hand_over(struct cfs_store *s, cfs_deadline_t deadline);
/* The same for what was stored before a moment: nothing is done when a sync has begun since. */
uint64_t cfs_store_moment(struct cfs_store *s);
int cfs_store_sync_since(struct cfs_store *s, uint64_t moment, cfs_deadline_t deadline);
/* 0 of a sync says nothing of these, as it came after the failure. */
bool cfs_store_has_suspects(struct cfs_store *s);
bool cfs_store_is_suspect(struct cfs_store *s, uint64_t slice);

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
/* How much of [off, off + len) the caches have. Waits for the disk. */
struct cfs_store_held {
	uint32_t memory, disk;
};
void cfs_store_held(struct cfs_store *s, const struct cfs_block *b, uint32_t off, uint32_t len,
		    struct cfs_store_held *ret);
/* Whether there is a disk cache. */
bool cfs_store_has_disk(const struct cfs_store *s);

struct cfs_store_stats {
	uint64_t memory_hits, memory_hit_bytes, memory_bytes;
	uint64_t gets, get_bytes, get_errors, get_ns;
	uint64_t puts, put_bytes, put_errors, put_ns;
	uint64_t deletes, delete_errors;
	uint64_t prefetches, prefetch_drops;
	uint64_t prefetch_cancels;			 /* of those that were queued */
	uint64_t block_prefetches, block_prefetch_drops; /* cfs_store_prefetch_block() */
	unsigned uploads_queued, downloads_queued;
	/* The disk cache; all 0 without one. */
	uint64_t disk_hits, disk_hit_bytes, disk_misses;
	uint64_t disk_writes, disk_write_bytes,
		disk_drops; /* drops: offers that were not written */
	uint64_t disk_evictions, disk_evicted_bytes, disk_expired;
	uint64_t disk_corrupt, disk_errors, disk_dir_failures;
	uint64_t disk_scans; /* of directories, that have ended */
	uint64_t disk_bytes, disk_blocks, disk_pending_bytes;
	unsigned disk_dirs, disk_dirs_bad;
	/* Writeback (cachefs/stage.h). */
	uint64_t staged_blocks, staged_bytes, staged_oldest_s, staged_damaged;
	uint64_t stage_uploads, stage_upload_errors;
	uint64_t object_retries, object_damaged; /* of the process */
	uint64_t stage_bypassed; /* blocks that writeback was for, but that went straight */
	/* The cache group; all 0 without one. Hits, misses: ranges asked of peers. */
	unsigned peer_members, peer_members_apart, peer_members_slow;
	uint64_t peer_hits, peer_hit_bytes, peer_misses;
	uint64_t peer_fallbacks;  /* of misses: because of an error or a deadline */
	uint64_t peer_hedges;	  /* ranges asked of the object store, too, as a peer was late */
	uint64_t peer_hedge_wins; /* of them: the object store was faster */
	struct cfs_peer_stats peer_asked, peer_served;
};
void cfs_store_stats(struct cfs_store *s, struct cfs_store_stats *ret);

/* Who keeps a block beyond memory. */
enum cfs_place {
	CFS_PLACE_ANY,	     /* whoever has read it */
	CFS_PLACE_HERE,	     /* this mount, for others, who will want all of it */
	CFS_PLACE_ELSEWHERE, /* another one. A get of any byte makes it fetch the block */
};

/*
 * A cache tier between memory and the object store. Tiers are asked in order; what a farther tier
 * delivered is offered to the nearer ones.
 *
 * Calls that may wait are made by workers for whom others wait only so long: get of a local tier
 * without nowait, ahead, put and check may hang with the disk behind them.
 */
struct cfs_tier_ops {
	const char *name;
	bool local; /* of this machine: what it has is cheap to get again, and not kept in memory */
	/* As cfs_object_get_fn for a range of a block; -ENOENT: a miss. nowait: -EAGAIN rather than
	 * wait. */
	ssize_t (*get)(void *tier, const struct cfs_block *b, uint32_t off, const struct iovec *dst,
		       int n_dst, bool nowait, cfs_deadline_t deadline);
	/*
	 * The same for callers that wait and can have the range from the object store meanwhile:
	 * -EALREADY: hedge has it. Optional: get is called.
	 */
	ssize_t (*get_hedged)(void *tier, const struct cfs_block *b, uint32_t off,
			      const struct iovec *dst, int n_dst, struct cfs_hedge *hedge,
			      cfs_deadline_t deadline);
	/* Starts to bring a range nearer, as far as it can without memory of ours. Optional. */
	void (*ahead)(void *tier, const struct cfs_block *b, uint32_t off, uint32_t len);
	/* A get of this block has not returned in time and is left behind. Optional. */
	void (*late)(void *tier, const struct cfs_block *b);
	/* The block is nowhere else: its readers wait as long as they can. Optional. */
	bool (*only)(void *tier, const struct cfs_block *b);
	/* Offers a whole block; the tier may decline. Never waits. */
	void (*offer)(void *tier, const struct cfs_block *b, const struct cfs_segs *data);
	/*
	 * The same, and waits: 0: the tier has it; -EAGAIN: it has no room at the moment;
	 * -EOPNOTSUPP: it never keeps such blocks. Optional.
	 */
	int (*put)(void *tier, const struct cfs_block *b, const struct cfs_segs *data,
		   cfs_deadline_t deadline);
	/* Whether the tier believes to have the block, without asking any disk. Optional. */
	bool (*holds)(void *tier, const struct cfs_block *b);
	/* The same after a look: 1, 0; -EOPNOTSUPP: it never keeps such blocks. Optional. */
	int (*check)(void *tier, const struct cfs_block *b);
	void (*forget)(void *tier, const struct cfs_block *b);
	/* Optional; of one tier at most. */
	enum cfs_place (*place)(void *tier, const struct cfs_block *b);
	/*
	 * A whole block whose place is here: the tier sees to it that it is kept, instead of offers
	 * to the others. With place.
	 */
	void (*keep)(void *tier, const struct cfs_block *b, const struct cfs_segs *data);
	/* Fills in what it knows. Optional. */
	void (*stats)(void *tier, struct cfs_store_stats *ret);
};
/* Before the first read. At most 4. */
int cfs_store_add_tier(struct cfs_store *s, const struct cfs_tier_ops *ops, void *tier);

#endif
