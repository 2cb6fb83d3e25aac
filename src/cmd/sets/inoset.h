/* SPDX-License-Identifier: Apache-2.0 */
/* A set of inodes as a sorted array: 16 bytes per inode. */
#ifndef CFS_CMD_INOSET_H
#define CFS_CMD_INOSET_H

#include <stdbool.h>

#include "cmd/access/admin.h"

struct inoset {
	struct inoset_item {
		cfs_ino_t ino;
		uint32_t names; /* how many have to be added before it counts */
		uint32_t added;
	} *v;
	size_t n, cap;
};

/* An inode that has to be added `names` times. */
int inoset_add(struct inoset *s, cfs_ino_t ino, uint32_t names);
/* Every inode in the trash that has all its names there. */
int inoset_add_trash(struct inoset *s, struct admin *a);
/* After the last add, before the first has. */
void inoset_sort(struct inoset *s);
bool inoset_has(const struct inoset *s, cfs_ino_t ino);
void inoset_free(struct inoset *s);

#endif
