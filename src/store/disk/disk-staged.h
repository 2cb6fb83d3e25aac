/* SPDX-License-Identifier: Apache-2.0 */
/* The disk cache's service to writeback, which keeps its blocks in the same directories. */
#ifndef CFS_DISK_STAGED_H
#define CFS_DISK_STAGED_H

#include <cachefs/disk.h>

struct cache_dir;
struct cache_dirs;

struct cache_dirs *cfs_disk_dirs(struct cfs_disk *d);
/* Evicts cached blocks for `need` bytes that will be staged, as far as there are any. */
void cfs_disk_evict_for_staged(struct cfs_disk *d, struct cache_dir *dir, uint64_t need);
/*
 * The cache asks where a block is staged, so that it is read from there; NULL: it is not. Set it
 * before the first read. staged_dir NULL: no more.
 */
typedef struct cache_dir *(*cfs_disk_staged_fn)(void *stage, const struct cfs_block *b);
void cfs_disk_set_staged(struct cfs_disk *d, cfs_disk_staged_fn staged_dir, void *stage);
/* A staged block was uploaded: its file becomes an ordinary cached block, if there is room. */
void cfs_disk_adopt(struct cfs_disk *d, struct cache_dir *dir, const struct cfs_block *b);
/* A staged block is removed, from the cache, too. Does not hang with the disk. */
void cfs_disk_forget_staged(struct cfs_disk *d, struct cache_dir *dir, const struct cfs_block *b);

#endif
