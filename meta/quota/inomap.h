/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hash map from inode numbers to slots of one size. The caller locks it. Collects changes of
 * inodes until they are written.
 */
#ifndef CFS_META_INOMAP_H
#define CFS_META_INOMAP_H

#include <cachefs/meta.h>

struct cfs_inomap {
	size_t size; /* of a slot; its first member is its cfs_ino_t, 0 in a free slot */
	size_t n, cap;
	unsigned char *slots;
};

void cfs_inomap_init(struct cfs_inomap *map, size_t size);
void cfs_inomap_destroy(struct cfs_inomap *map);
/* NULL: not in the map. The pointer is valid until the next cfs_inomap_add. */
void *cfs_inomap_find(const struct cfs_inomap *map, cfs_ino_t ino);
/* The slot of the inode. A new one is zero except for the number. NULL: no memory. */
void *cfs_inomap_add(struct cfs_inomap *map, cfs_ino_t ino);
/* The slot after `slot`, in no particular order; the first for NULL. NULL: no more. */
void *cfs_inomap_next(const struct cfs_inomap *map, void *slot);
/*
 * Empties the map. *ret is an array of its slots, which the caller frees; returns its length. The
 * array is sorted by inode number: all mounts lock rows in this order.
 */
size_t cfs_inomap_take(struct cfs_inomap *map, void *ret);

#endif
