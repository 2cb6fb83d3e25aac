/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hash map from inode numbers to slots of one size, for data collected about inodes between two
 * flushes. The caller locks it.
 */
#ifndef CFS_META_INOMAP_H
#define CFS_META_INOMAP_H

#include <cachefs/meta.h>

struct cfs_inomap {
	size_t size; /* of a slot, which begins with its cfs_ino_t; 0: free */
	size_t n, cap;
	unsigned char *slots;
};

void cfs_inomap_init(struct cfs_inomap *map, size_t size);
void cfs_inomap_destroy(struct cfs_inomap *map);
/* NULL: there is none. A slot may move with the next cfs_inomap_add. */
void *cfs_inomap_find(const struct cfs_inomap *map, cfs_ino_t ino);
/* The slot of the inode, all zero but its number when it is new. NULL: no memory. */
void *cfs_inomap_add(struct cfs_inomap *map, cfs_ino_t ino);
/* All slots in no order: NULL starts, NULL ends. */
void *cfs_inomap_next(const struct cfs_inomap *map, void *slot);
/*
 * Empties the map and gives its slots to the caller, who frees them. *ret is an array, ordered by
 * inode number, the order in which all mounts change rows. Returns its length.
 */
size_t cfs_inomap_take(struct cfs_inomap *map, void *ret);

#endif
