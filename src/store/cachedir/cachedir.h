/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directories on local disks that hold blocks as files with checksums. The disk cache and writeback
 * are built on them; both share one set.
 *
 *	dir.c	 one directory: opening, identity, faults, repair
 *	ring.c	 the set: which directories there are, and which of them a block belongs to
 *	block.c	 a block's file: name, bytes, checksums
 *	walk.c	 finding the files of a directory
 *
 * Every call here may wait for the disk, unless it says otherwise. Locks: ring_lock and the lock of
 * a directory are leaves; no I/O is done under them.
 *
 * Format: volume-format section 8.
 */
#ifndef CFS_CACHEDIR_H
#define CFS_CACHEDIR_H

#include <cachefs/store.h>
#include <isa-l/crc.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/bytes.h"
#include "base/workers.h"

/* Trees of a directory: blocks of the cache; blocks that are not uploaded yet. */
#define CFS_CACHEDIR_CACHED "raw"
#define CFS_CACHEDIR_STAGED "rawstaging"
/* Suffix of a file that is being written. */
#define CFS_CACHEDIR_TMP ".tmp"
/* A file with this suffix that is older has no writer. */
#define CFS_CACHEDIR_TMP_AGE_S 600

#define CFS_CACHEDIR_SEGMENT   (32u << 10) /* bytes that a checksum covers */
#define CFS_CACHEDIR_LEN_MAX   (16u << 20)
#define CFS_CACHEDIR_SLICE_MAX (1ULL << 48)
#define CFS_CACHEDIR_PATH_MAX  128

struct cache_dirs;

enum dir_state {
	DIR_OK,
	DIR_READ_ONLY, /* full, or not writable: its files are read */
	DIR_FAILED,
};

struct cache_dir {
	struct cache_dirs *set;
	unsigned number;   /* in the set */
	char *base, *path; /* as given; with the volume's UUID below it */
	char id[64]; /* from .lock; empty until it was opened once. Set before it is in the ring */
	_Atomic int fd; /* of path; -1 until it was opened once, then the same number for ever */
	_Atomic int state;
	_Atomic bool full;	/* DIR_READ_ONLY for lack of space, and for nothing else */
	_Atomic bool in_memory; /* tmpfs: a read never waits, whatever RWF_NOWAIT says */
	bool off_root;		/* was on a file system other than "/"; for cfs_cachedir_open() */
	struct cfs_ticker *keeper; /* kicked when the state gets worse; NULL: none */

	pthread_mutex_t lock; /* protects the fields below */
	unsigned faults;
	uint64_t fault_ms; /* the first of them */
	cfs_deadline_t retry_at;
};

struct cache_dirs_conf {
	const char *dirs; /* separated by ':', each may be a glob(7) pattern */
	const char *uuid; /* of the volume */
	bool hash_prefix;
	bool checksums; /* written behind the data */
	uint32_t block_size;
	unsigned mode;	   /* of files; directories get x where there is r */
	uint64_t retry_ms; /* pause before a failed directory is tried again */
	uint64_t stall_ms; /* a call that takes longer is a fault */
};

struct cache_dirs {
	struct cache_dirs_conf conf; /* without the strings */
	char *uuid;
	unsigned dir_mode;
	struct cache_dir *v;
	unsigned n;
	_Atomic(struct ring *) ring;
	pthread_mutex_t ring_lock; /* one thread adds at a time */
	_Atomic bool stopping;	   /* ends walks */

	struct {
		_Atomic uint64_t errors, failures;
	} stat;
};

/* ---- ring.c ---- */

/* -EINVAL, -ENOENT: conf->dirs. Opens none of them. After any error the set is to be ended, too. */
int cfs_cachedirs_init(struct cache_dirs *set, const struct cache_dirs_conf *conf);
void cfs_cachedirs_fini(struct cache_dirs *set);
/* Adds a directory that has its id. */
int cfs_cachedirs_add(struct cache_dirs *set, const struct cache_dir *dir);
/* The directory of a block among those that have not failed, or NULL. Does not wait. */
struct cache_dir *cfs_cachedirs_find(struct cache_dirs *set, const struct cfs_block *b);
uint32_t cfs_cachedir_murmur3(const void *data, size_t len);

/* ---- dir.c ---- */

/* Takes over the path. */
int cfs_cachedir_init(struct cache_dir *dir, struct cache_dirs *set, char *base);
void cfs_cachedir_fini(struct cache_dir *dir);
/* Opens it and gives it its id, also for the second time. A failure is a fault. */
int cfs_cachedir_start(struct cache_dir *dir);
/* Judges an error of the directory's file system and may change its state. Does not wait. */
void cfs_cachedir_fault(struct cache_dir *dir, const char *what, int err, bool writing);
/*
 * Whether blocks may be staged there. A full disk takes no cached blocks until a probe succeeds; a
 * staged block, whose writer may wait for it, finds out for itself whether there is space.
 */
bool cfs_cachedir_may_stage(const struct cache_dir *dir);
/* A directory that is not DIR_OK, and whose pause has passed. */
bool cfs_cachedir_retry_is_due(struct cache_dir *dir);
/* Opens it if it has failed, and writes to it. */
int cfs_cachedir_probe(struct cache_dir *dir);
/* Ends a retry. err 0: the directory is DIR_OK; else the next pause begins. */
void cfs_cachedir_retried(struct cache_dir *dir, int err);
/* Finds a tree that was removed, moved away or cleared while its root is open. */
void cfs_cachedir_check_root(struct cache_dir *dir);
/* Creates the directories above the last '/' of a path below dir->fd. */
int cfs_cachedir_make_parents(struct cache_dir *dir, char *path);

/* ---- block.c ---- */

/* False: its file would have no name. */
bool cfs_cachedir_is_nameable(const struct cfs_block *b);
/* "<root>/chunks/...", as snprintf(3). Object keys are named alike. */
int cfs_cachedir_name(const char *root, const struct cfs_block *b, bool hash_prefix, char *ret,
		      size_t size);
/* "<tree>/chunks/..." below the directory. */
void cfs_cachedir_path(const struct cache_dirs *set, const char *tree, const struct cfs_block *b,
		       char path[CFS_CACHEDIR_PATH_MAX]);
void cfs_cachedir_unlink(struct cache_dir *dir, const char *tree, const struct cfs_block *b);
/*
 * Writes a block's file, which gets its name when it is whole, and makes the directories above it.
 * durable: its bytes are, before it gets its name.
 */
int cfs_cachedir_write(struct cache_dir *dir, const char *tree, const struct cfs_block *b,
		       const struct cfs_segs *data, bool durable);
/* Writes all of it. */
int cfs_cachedir_write_all(int fd, const void *src, size_t len, uint64_t off);
/* Reads all of it; -EBADMSG when the file is shorter, or (flags: RWF_NOWAIT) -EAGAIN. */
int cfs_cachedir_read(int fd, void *dst, size_t len, uint64_t off, int flags);
/* True when a file of this size may be the block's. */
bool cfs_cachedir_size_fits(const struct cfs_block *b, uint64_t size);
/* The footer of a block file. */
struct cfs_cachedir_tail {
	bool checksums;
	uint8_t tier; /* from the footer that JuiceFS writes for a tier; 0: there is none */
};
/* -EBADMSG: a file of this size is not the block's, or (flags: RWF_NOWAIT) -EAGAIN. */
int cfs_cachedir_read_tail(int fd, const struct cfs_block *b, uint64_t size, int flags,
			   struct cfs_cachedir_tail *ret);
/* Shows that the calling thread waits for the disk; for base/activity.h. dir may be NULL. */
void cfs_cachedir_await(const struct cache_dir *dir, const struct cfs_block *b);

static inline uint32_t cfs_cachedir_n_segments(uint32_t len)
{
	return CFS_DIV_UP(len, CFS_CACHEDIR_SEGMENT);
}

/* Running CRC-32C: starts and is kept as all ones, the complement is the value. */
#define CFS_CRC_INIT 0xFFFFFFFFu
static inline uint32_t cfs_cachedir_crc_add(uint32_t crc, const void *data, size_t len)
{
	return crc32_iscsi((unsigned char *)data, (int)len, crc);
}

static inline uint32_t cfs_cachedir_crc(const void *data, size_t len)
{
	return ~cfs_cachedir_crc_add(CFS_CRC_INIT, data, len);
}

/* ---- walk.c ---- */

/*
 * Calls visit for every file of a tree that is named like a block of its place, or like one with
 * CFS_CACHEDIR_TMP behind; fd is the directory's. Ends with what visit returns, unless 0.
 */
typedef int (*cfs_cachedir_visit_fn)(void *arg, int fd, const char *name, const struct cfs_block *b,
				     bool tmp);
int cfs_cachedir_walk(struct cache_dir *dir, const char *tree, cfs_cachedir_visit_fn visit,
		      void *arg);

#endif
