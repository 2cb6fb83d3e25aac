/* SPDX-License-Identifier: Apache-2.0 */
/* The kind of file system that a path is on. */
#ifndef CFS_FSTYPE_H
#define CFS_FSTYPE_H

#include <stdbool.h>
#include <stdint.h>

struct cfs_fstype_info {
	const char *name; /* "ext4"; "other" when this table has none */
	bool network;	  /* shared with other hosts, or behind a process */
	bool in_memory;
	double free; /* part of the space that is free to users, 0..1 */
	uint64_t free_bytes;
};
/* 0 or a negative errno of statfs(2). */
int cfs_fstype(const char *path, struct cfs_fstype_info *ret);

#endif
