/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole files (cachefs/whole.h), for their source files.
 *
 *	whole.c     the table, its order of eviction, the files of a directory
 *	assemble.c  making one out of blocks, and verifying one
 */
#ifndef CFS_DISK_WHOLE_H
#define CFS_DISK_WHOLE_H

#include <cachefs/whole.h>

#include "disk-internal.h"

#define CFS_WHOLE_DIR	   "whole"
#define CFS_WHOLE_SUMS	   ".sums"
#define CFS_WHOLE_PATH_MAX 96

void cfs_whole_path(uint64_t ino, uint64_t hash, const char *suffix, char ret[CFS_WHOLE_PATH_MAX]);
uint64_t cfs_whole_hash(const struct cfs_whole_map *map);
uint64_t cfs_whole_charge(const struct cfs_whole_map *map);
/* Composes the file, under its name with CFS_CACHEDIR_TMP behind, and its list of checksums. */
int cfs_whole_assemble(struct disk_dir *dir, const struct cfs_whole_map *map, uint64_t hash,
		       const _Atomic bool *stop, int *ret_fd);
/* 0: it is what the map says; -EBADMSG: not so, or its bytes are damaged. */
int cfs_whole_verify(struct disk_dir *dir, const struct cfs_whole_map *map, uint64_t hash, int fd,
		     const _Atomic bool *stop);

void cfs_whole_init(struct cfs_disk *d);
void cfs_whole_fini(struct cfs_disk *d);
/* Notes the files of a directory that are not known yet. */
void cfs_whole_scan(struct disk_dir *dir);
/* Removes what is too much, too old, or removed by others. */
void cfs_whole_keep(struct disk_dir *dir);
/* The directory has failed: its files are not there. */
void cfs_whole_clear(struct disk_dir *dir);
/* When the one that should leave first was used last; false: there is none. */
bool cfs_whole_oldest(struct disk_dir *dir, uint32_t *ret_used_s);
/* Bytes that were charged for it; 0: there is none. */
uint64_t cfs_whole_evict(struct disk_dir *dir);
uint64_t cfs_whole_count(void *disk);

#endif
