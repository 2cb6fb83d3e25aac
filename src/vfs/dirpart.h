/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of a directory's listing: the entries that one metadata call returned. While the kernel
 * takes the entries of a part, a thread of the read-ahead (v->ahead) reads the next one.
 */
#ifndef CFS_VFS_DIRPART_H
#define CFS_VFS_DIRPART_H

#include "dirpages.h"

struct cfs_vfs;

struct dirpart {
	uint64_t first; /* index of the first entry */
	struct dirpage page;
	bool loaded, last, attrs; /* loaded: was read, even if the page was dropped since */
	uint64_t seq, read_ms;	  /* cache_seq() and clock from before it was read */
	struct cfs_cursor end;	  /* the position behind it */
};

/*
 * Reads at most `size` entries behind `cursor`, of which the first has number `first`, in place of
 * what the part has. The page stays in use.
 */
int dirpart_read(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t dir, struct dirpart *p,
		 uint64_t first, const struct cfs_cursor *cursor, size_t size, bool attrs);

struct dirpart_ahead;

/* Begins to read the part behind p, which is in use. NULL: it is not read ahead. */
struct dirpart_ahead *dirpart_begin(struct cfs_vfs *v, cfs_ino_t dir, const struct dirpart *p,
				    size_t size);
/*
 * Waits for the part, and frees a. *ret has it, in use. False: it was not read, or its page was
 * dropped, or the deadline has come; the caller reads it itself.
 */
bool dirpart_finish(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct dirpart_ahead *a,
		    struct dirpart *ret);
/* The part is not wanted. Does not wait. a may be NULL. */
void dirpart_abandon(struct dirpart_ahead *a);

#endif
