/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The disk cache: a tier of the block store that keeps whole blocks as files of one or more local
 * directories. Other clients of the format can share these directories.
 *
 *	<dir>/<uuid>/raw/<block key>	data, then one big-endian CRC-32C per 32 KiB of it
 *	<dir>/<uuid>/.lock		the directory's id, from which its share of the keys follows
 *
 * Every byte returned has been checked (see enum cfs_disk_verify). A block that fails is removed,
 * counted and reported as a miss. A directory that fails, or does not answer in time, is excluded
 * and tried again later. The caller sees every failure as a miss, never as an error.
 *
 * Memory: 32 bytes per cached block, at most `items` of them; open files up to a quarter of
 * RLIMIT_NOFILE; pages of blocks that wait to be written up to a quarter of the pool, given up when
 * the pool runs dry.
 *
 * Format: volume-format section 8.
 */
#ifndef CFS_DISK_H
#define CFS_DISK_H

#include <cachefs/store.h>

enum cfs_disk_eviction {
	CFS_EVICT_S3FIFO,  /* a small queue on probation, a main queue with second chances */
	CFS_EVICT_2RANDOM, /* the older of two picked at random */
	CFS_EVICT_LRU,
	CFS_EVICT_NONE, /* full is full */
};

enum cfs_disk_verify {
	CFS_VERIFY_NONE,   /* writes no checksums either */
	CFS_VERIFY_FULL,   /* reads of a whole block */
	CFS_VERIFY_SHRINK, /* the 32 KiB segments that lie wholly within what is read */
	CFS_VERIFY_EXTEND, /* every segment that is touched, reading all of it for that */
};

struct cfs_disk_conf {
	struct cfs_pool *pool; /* borrowed */
	const char *dirs;      /* separated by ':', each may be a glob(7) pattern */
	const char *uuid;      /* of the volume */
	bool hash_prefix;
	uint32_t block_size;
	uint64_t size;	   /* bytes, shared equally by the directories */
	double free_ratio; /* of each file system's space and inodes, kept free */
	uint64_t items;	   /* blocks in all directories; 0: CFS_DISK_ITEMS_MAX */
	uint64_t expire_s; /* blocks not read for so long are removed; 0: never */
	enum cfs_disk_eviction eviction;
	enum cfs_disk_verify verify;
	bool partial_only; /* keep only blocks shorter than block_size */
	unsigned mode;	   /* of files; directories get x where there is r. 0: 0600 */
	uint64_t tick_ms;  /* period of upkeep; 0: 5 s */
	uint64_t retry_ms; /* pause before a failed directory is tried again; 0: 30 s */
	uint64_t stall_ms; /* a longer write excludes its directory; 0: 10 s */
	uint64_t
		pending_max; /* bytes of blocks that wait to be written; 0: a quarter of the pool */
};

#define CFS_DISK_ITEMS_MAX 10000000

struct cfs_disk;

extern const struct cfs_tier_ops cfs_disk_tier; /* with a struct cfs_disk * */
extern const struct cfs_metric_table cfs_disk_metrics;
/* Bytes of cached blocks; whether there is a directory that takes more. */
uint64_t cfs_disk_bytes(struct cfs_disk *d);
bool cfs_disk_stores(struct cfs_disk *d);

/*
 * Directories that cannot be used yet are tried again later. Their contents are indexed in the
 * background. err: one line. -EINVAL: a setting makes no sense.
 */
int cfs_disk_create(const struct cfs_disk_conf *conf, struct cfs_disk **ret, char err[256]);
/* Call it after the store's end and before the pool's. Writes the blocks that wait. */
void cfs_disk_destroy(struct cfs_disk *d);

/*
 * A cached block as a file that stays readable, evicted or not, until it is unpinned: data at
 * offset 0, crcs[i] the CRC-32C of the 32 KiB segment i (the last one may be short). Nothing has
 * been verified: the receiver of the bytes does. At most a few per peer request at a time.
 * -ENOENT: not cached; nowait: -EAGAIN rather than wait.
 */
#define CFS_DISK_SEGMENT (32u << 10)

struct cfs_disk_file;
struct cfs_disk_pin {
	int fd;	      /* never move its offset */
	unsigned dir; /* the number of its cache directory */
	uint32_t len;
	unsigned n_crcs; /* 0: the file has none (CFS_VERIFY_NONE) */
	const uint32_t *crcs;
	struct cfs_disk_file *file;
};
int cfs_disk_pin(struct cfs_disk *d, const struct cfs_block *b, bool nowait,
		 struct cfs_disk_pin *ret);
void cfs_disk_unpin(struct cfs_disk_pin *pin);

#endif
