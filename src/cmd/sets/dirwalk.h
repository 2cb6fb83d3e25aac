/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The entries of a directory, or of all directories below it, one after the other. Memory: a page
 * of entries, and per level of the tree the subdirectories of a page (8 KB).
 */
#ifndef CFS_CMD_DIRWALK_H
#define CFS_CMD_DIRWALK_H

#include "cmd/sets/inostack.h"

enum {
	DIRWALK_ATTRS = 1, /* entries come with their attributes */
	DIRWALK_BELOW = 2, /* of subdirectories, too: a directory comes before its entries */
};

struct dirwalk {
	struct cfs_meta *meta;
	struct cfs_ctx ctx;
	uint64_t page_ms;
	unsigned flags;
	cfs_ino_t top;
	struct dirwalk_page *page;
	size_t n, i; /* entries of the page, and of these returned */
	struct dirwalk_level *path;
	size_t depth, cap;
	struct inostack todo;
};

/* Each page has page_ms to be read. The caller may replace the ctx, which is cfs_ctx_internal(). */
struct dirwalk dirwalk_begin(struct cfs_meta *m, uint64_t page_ms, cfs_ino_t top, unsigned flags);
/*
 * 1: *ret is the next entry, without a position, until the next call; 0: there is none, also when
 * another client has removed the directory; or a negative errno. But for -ENOMEM, the next call goes
 * on with the next directory.
 */
int dirwalk_next(struct dirwalk *w, const struct cfs_dirent **ret);
void dirwalk_end(struct dirwalk *w);

#endif
