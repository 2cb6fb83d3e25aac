/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of the disk cache.
 *
 *	disk.c	 life, the tier's operations, statistics
 *	keep.c	 the upkeep of a directory
 *	index.c	 what is in a directory, in 32 bytes per block
 *	queue.c	 in which order it leaves
 *	evict.c	 keeping size, free space and age
 *	remove.c removing blocks
 *	file.c	 a block's file: open, read, verify
 *	fds.c	 open files of hot blocks
 *	write.c	 blocks on their way into files
 *	scan.c	 finding what is there at start
 *	whole.c	 files composed of blocks, with assemble.c: whole.h
 *
 * The directories are those of store/cachedir; a struct disk_dir is what the cache knows of one.
 *
 * Locks: index.lock, a lock per set of open files, write_lock. They are leaves (but for write_lock,
 * under which jobs are cancelled) and no I/O is done under them.
 */
#ifndef CFS_DISK_INTERNAL_H
#define CFS_DISK_INTERNAL_H

#include <cachefs/disk.h>
#include <cachefs/whole.h>
#include <sys/queue.h>

#include "disk-staged.h"
#include "store/cachedir/cachedir.h"

#define CFS_DISK_OVERHEAD 4096 /* charged per block beside its bytes, as other clients do */

_Static_assert(CFS_DISK_SEGMENT == CFS_CACHEDIR_SEGMENT, "checksums of pinned files");

struct disk_dir;

/* ---- index.c ---- */

/* Handles are numbers of entries. */
#define CFS_NIL UINT32_MAX

enum queue_name { CFS_QUEUE_NONE, CFS_QUEUE_SMALL, CFS_QUEUE_MAIN, CFS_QUEUES };

#define CFS_FREQ_MAX 3

struct index_entry {
	uint32_t slice_low;
	uint16_t slice_high;
	uint16_t index;
	uint32_t last : 24; /* length - 1 */
	uint32_t freq : 2;  /* reads in different seconds, at most CFS_FREQ_MAX */
	uint32_t queue : 2; /* enum queue_name; none: the entry is free */
	uint32_t found : 1; /* by the scan, and neither read nor put in order since */
	uint32_t atime;	    /* CLOCK_REALTIME, seconds */
	uint32_t chain;	    /* next of its bucket, or next free entry */
	uint32_t newer, older;
};
_Static_assert(sizeof(struct index_entry) == 28, "32 bytes per block with its bucket");

struct index_queue {
	uint32_t newest, oldest, n;
	uint64_t bytes;
};

struct index {
	pthread_mutex_t lock; /* protects all of it */
	enum cfs_disk_eviction eviction;
	uint64_t limit; /* bytes */
	uint32_t max;	/* entries */

	struct index_entry *entries;
	size_t cap;
	uint32_t top, free; /* ever used, first free one */
	uint32_t n;
	uint64_t bytes;
	uint64_t reserved; /* of the limit, for other things than blocks */
	uint32_t *buckets; /* linear hashing: one bucket is split per entry that is added */
	size_t bucket_cap;
	uint32_t n_buckets, low;

	struct index_queue queues[CFS_QUEUES];
	uint32_t *ghosts; /* hashes of blocks evicted from the small queue; a new one overwrites */
	uint32_t ghost_mask;
};

int cfs_disk_index_init(struct index *ix, enum cfs_disk_eviction eviction, uint64_t limit,
			uint32_t max, uint32_t block_size);
void cfs_disk_index_fini(struct index *ix);
bool cfs_disk_index_has(struct index *ix, const struct cfs_block *b);
/* Notes a read; false when it is not there. */
bool cfs_disk_index_hit(struct index *ix, const struct cfs_block *b, uint32_t now_s);
/* -EEXIST; -ENOSPC: `max` entries, or over the limit, unless found by the scan; -ENOMEM. */
int cfs_disk_index_add(struct index *ix, const struct cfs_block *b, uint32_t atime_s, bool found);
bool cfs_disk_index_remove(struct index *ix, const struct cfs_block *b);
void cfs_disk_index_clear(struct index *ix);
/* Takes out the block that should leave first. False: empty, or the policy is not to. */
bool cfs_disk_index_take_victim(struct index *ix, struct cfs_block *ret);
/* Takes out up to n blocks that were last read before `before_s`, *cursor being where to go on. */
unsigned cfs_disk_index_take_expired(struct index *ix, uint32_t before_s, uint32_t *cursor,
				     struct cfs_block *ret, unsigned n);
/* Puts the entries that the scan found behind all others, oldest last. */
void cfs_disk_index_sort_found(struct index *ix);

struct index_state {
	uint64_t bytes, reserved, n;
};
struct index_state cfs_disk_index_state(struct index *ix);
/* Changes the part of the limit that is not for blocks. */
void cfs_disk_index_reserve(struct index *ix, int64_t bytes);
/* When the block that should leave first was read last; UINT32_MAX: there is none. */
uint32_t cfs_disk_index_victim_s(struct index *ix);

static inline uint64_t cfs_disk_charge(const struct cfs_block *b)
{
	return (uint64_t)b->len + CFS_DISK_OVERHEAD;
}

uint32_t cfs_disk_hash(const struct cfs_block *b);

/* ---- queue.c: with index.lock held ---- */

uint32_t cfs_disk_queue_hash(const struct index_entry *e);
void cfs_disk_queue_enter(struct index *ix, uint32_t h, bool found);
void cfs_disk_queue_hit(struct index *ix, uint32_t h, uint32_t now_s);
void cfs_disk_queue_leave(struct index *ix, uint32_t h);
/* The entry that should leave first, still in its queue; CFS_NIL. */
uint32_t cfs_disk_queue_victim(struct index *ix);

static inline struct cfs_block cfs_disk_entry_block(const struct index_entry *e)
{
	return (struct cfs_block){
		.slice = (uint64_t)e->slice_high << 32 | e->slice_low,
		.index = e->index,
		.len = e->last + 1,
	};
}

/* ---- fds.c ---- */

/* Checksums of the pieces of segments that were verified: a part of one then is enough to read. */
#define CFS_DISK_PIECE	    4096u
#define CFS_DISK_PIECES	    (CFS_CACHEDIR_SEGMENT / CFS_DISK_PIECE) /* of a segment */
#define CFS_DISK_PIECES_MAX (8u << 20)				    /* bytes, of all files */

struct segment_pieces {
	_Atomic bool known; /* after that they do not change */
	_Atomic uint32_t crcs[CFS_DISK_PIECES];
};

struct cfs_disk_file {
	struct cfs_job closing; /* first */
	_Atomic unsigned refs;
	_Atomic(struct segment_pieces *) pieces; /* of n_crcs segments; NULL: no part was read */
	_Atomic uint32_t used_s;		 /* last use, coarse */
	struct disk_dir *dir;
	struct cfs_block id;
	int fd;
	unsigned n_crcs;
	uint32_t crcs[];
};

#define CFS_FD_WAYS 4

struct file_set {
	pthread_mutex_t lock;
	struct cfs_disk_file *way[CFS_FD_WAYS]; /* most recently used first */
};

struct fd_cache {
	struct file_set *sets;
	unsigned n_sets; /* power of two */
};

int cfs_disk_fds_init(struct fd_cache *c);
void cfs_disk_fds_fini(struct fd_cache *c);
/* With a reference, or NULL. */
struct cfs_disk_file *cfs_disk_fds_get(struct fd_cache *c, const struct cfs_block *b);
/* Keeps a reference of its own. */
void cfs_disk_fds_add(struct fd_cache *c, struct cfs_disk_file *f);
void cfs_disk_fds_drop(struct fd_cache *c, const struct cfs_block *b);
/* Closes files of dir that are unlinked or were not used after `since_s`; with `all`, every one. */
void cfs_disk_fds_sweep(struct fd_cache *c, const struct disk_dir *dir, bool all, uint32_t since_s);
/* Does not wait: the last user of a removed file leaves its close to another thread. */
void cfs_disk_file_unref(struct cfs_disk_file *f);

/* ---- keep.c ---- */

TAILQ_HEAD(write_list, disk_write);

/* A directory as a part of the cache. */
struct disk_dir {
	struct cfs_disk *disk;
	struct cache_dir *cd;
	struct index index;
	uint32_t expire_cursor;
	_Atomic bool short_of_space; /* its file system has less free space than is to be kept */
	bool told_space;	     /* a line about it was logged; the writer's */
	cfs_deadline_t scan_at;	     /* due when passed; the keeper's */
	struct cfs_workers *writer; /* one thread: what it makes room for is not taken by another */
	struct cfs_workers *remover;
	struct cfs_workers *closer;	    /* of files whose end may wait for the disk */
	_Atomic uint64_t writing_since_ms;  /* operation of the writer; 0: none */
	_Atomic uint64_t removing_since_ms; /* operation of the remover */
};

int cfs_disk_dir_init(struct disk_dir *dir, struct cfs_disk *d, struct cache_dir *cd,
		      uint64_t limit, uint32_t max_items);
/* Opens the directory, if it can be, and starts the upkeep. */
int cfs_disk_dir_start(struct disk_dir *dir);
void cfs_disk_dir_stop(struct disk_dir *dir);

/* ---- remove.c ---- */

void cfs_disk_forget(struct disk_dir *dir, const struct cfs_block *b);
/*
 * The same for callers that must not hang with the disk: on a slow disk the file is removed later,
 * and beyond a limit files stay until a scan finds them. staged: removes the staged file, too.
 */
void cfs_disk_forget_soon(struct disk_dir *dir, const struct cfs_block *b, bool staged);

/* ---- write.c ---- */

struct disk_write {
	struct cfs_job job; /* first */
	struct disk_dir *dir;
	struct cfs_block id;
	struct cfs_segs data;
	TAILQ_ENTRY(disk_write) link; /* under write_lock, while it is queued */
	bool waited, done;	      /* waited for; ended, with err: under write_lock */
	int err;
};

void cfs_disk_offer(void *tier, const struct cfs_block *b, const struct cfs_segs *data);
/* As the operations of struct cfs_tier_ops. */
int cfs_disk_put(void *tier, const struct cfs_block *b, const struct cfs_segs *data,
		 cfs_deadline_t deadline);
bool cfs_disk_keeps(const struct cfs_disk *d, const struct cfs_block *b);
/* Drops queued writes until `want` bytes are free: a reclaim function. */
void cfs_disk_reclaim(void *arg, uint64_t want);

/* ---- evict.c ---- */

/* Whether a file of so many bytes is more than the directory may hold. */
bool cfs_disk_exceeds(struct disk_dir *dir, uint64_t need);
/* Makes room for a file of so many bytes; -EDQUOT when it cannot; as the next one. */
int cfs_disk_make_room(struct disk_dir *dir, uint64_t need);
/* When nothing is left to evict, -ENOSPC: the file system is full; -EDQUOT: less is free than is kept. */
int cfs_disk_keep_free(struct disk_dir *dir, uint64_t need);
void cfs_disk_expire(struct disk_dir *dir);

/* ---- scan.c ---- */

/* 0, or the error that ended it. */
int cfs_disk_scan(struct disk_dir *dir);

/* ---- file.c ---- */

/* Whether there is a file for the block, without asking the disk. */
bool cfs_disk_file_is_known(const struct disk_dir *dir, const struct cfs_block *b);
/* With a reference. -ENOENT: there is none; -EAGAIN: nowait; -EBADMSG: damaged; or I/O errors. */
int cfs_disk_file_open(struct disk_dir *dir, const struct cfs_block *b, bool nowait,
		       struct cfs_disk_file **ret);
/* Reads [off, off + sum of dst) and verifies. As cfs_disk_file_open. */
int cfs_disk_file_read(struct cfs_disk_file *f, uint32_t off, const struct iovec *dst, int n_dst,
		       bool nowait);
/* Makes the kernel read the range into its cache. */
void cfs_disk_file_ahead(const struct cfs_disk_file *f, uint32_t off, uint32_t len);

/* ---- whole.c ---- */

#define CFS_WHOLE_BUCKETS 1024u

struct cfs_whole_file {
	struct cfs_job closing;		  /* first */
	TAILQ_ENTRY(cfs_whole_file) link; /* used last first; not when gone */
	struct cfs_whole_file *chain;
	struct disk_dir *dir;
	uint64_t ino, hash;
	uint64_t charge; /* bytes */
	uint32_t used_s;
	unsigned refs;	/* users */
	bool known;	/* this process has made or verified it; stamp is set */
	bool gone;	/* it has left the table, and is freed by its last user */
	bool fd_in_use; /* between cfs_whole_get_fd() and cfs_whole_put_fd() */
	int fd;		/* -1: closed */
	struct cfs_whole_stamp stamp;
};

/* Of a struct cfs_disk. */
struct whole_files {
	pthread_mutex_t lock; /* protects all but the counters; a leaf but for index.lock */
	TAILQ_HEAD(whole_list, cfs_whole_file) used;
	struct cfs_whole_file *buckets[CFS_WHOLE_BUCKETS];
	unsigned n, n_open, open_max;
	struct {
		_Atomic uint64_t uses, made, made_bytes, evictions, corrupt;
	} stat;
};

/* ---- disk.c ---- */

struct cfs_disk {
	struct cfs_disk_conf conf; /* without the strings */
	struct cache_dirs set;
	struct disk_dir *dirs; /* as many as in the set, in its order */
	struct fd_cache fds;
	_Atomic uint64_t pieces_bytes; /* at most CFS_DISK_PIECES_MAX */
	struct whole_files wholes;
	/* Where a block is staged, or NULL; set before the first read. NULL: no writeback. */
	cfs_disk_staged_fn staged_dir;
	void *stage;

	pthread_mutex_t write_lock; /* protects the fields below */
	pthread_cond_t write_ended; /* of writes that are waited for */
	struct write_list writes;
	uint64_t pending_bytes; /* queued and being written */

	struct {
		_Atomic uint64_t hits, hit_bytes, misses;
		_Atomic uint64_t writes, write_bytes, drops;
		_Atomic uint64_t evictions, evicted_bytes, expired;
		_Atomic uint64_t corrupt, scanned;
	} stat;
};

#define CFS_DISK_COUNT(d, field, n)                                                                \
	atomic_fetch_add_explicit(&(d)->stat.field, (n), memory_order_relaxed)

uint32_t cfs_disk_now_s(void);
/* The directory of a block's key among those that have not failed, or NULL. */
struct disk_dir *cfs_disk_dir_of_key(struct cfs_disk *d, const struct cfs_block *b);
/* Removes and logs a file whose bytes are not those of the block it is named after. */
void cfs_disk_drop_damaged(struct disk_dir *dir, const struct cfs_block *b);
/* The directory that a block is staged in, or NULL. */
struct disk_dir *cfs_disk_staged_dir(struct cfs_disk *d, const struct cfs_block *b);

#endif
