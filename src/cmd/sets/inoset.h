/* SPDX-License-Identifier: Apache-2.0 */
/* A set of inodes as a sorted array: 16 bytes per inode. */
#ifndef CFS_CMD_INOSET_H
#define CFS_CMD_INOSET_H

#include <stdbool.h>

#include "cmd/access/admin.h"

struct inoset {
	struct inoset_item {
		cfs_ino_t ino;
		uint32_t names; /* an inode counts after it was added that often */
		uint32_t added;
	} *v;
	size_t n, cap;
};

/* Adds an inode that must be added `names` times to count. */
int inoset_add(struct inoset *s, cfs_ino_t ino, uint32_t names);
/* Adds every inode in the trash whose names are all in the trash. */
int inoset_add_trash(struct inoset *s, struct admin *a);
/* Called after the last add and before the first has. */
void inoset_sort(struct inoset *s);
bool inoset_has(const struct inoset *s, cfs_ino_t ino);
void inoset_free(struct inoset *s);

#endif
