/* SPDX-License-Identifier: Apache-2.0 */
/* The usage of each user and each group, summed up inode by inode: 40 bytes per owner. */
#ifndef CFS_CMD_OWNERS_H
#define CFS_CMD_OWNERS_H

#include <cachefs/meta.h>

struct owner {
	enum cfs_quota_kind kind;
	uint32_t id;
	int64_t space, inodes;
	uint64_t mark; /* sum of cfs_mark_of() */
};

/* Zeroed before use. */
struct owners {
	struct owner *v; /* open addressing; inodes 0: free */
	size_t n, cap;
};

/* A cfs_row_fn for rows of the node table; arg is the owners. */
int owners_add_node(void *arg, const struct cfs_row *row);
/* All zero: this one has nothing. */
struct owner owners_get(const struct owners *o, enum cfs_quota_kind kind, uint32_t id);
void owners_free(struct owners *o);

#endif
