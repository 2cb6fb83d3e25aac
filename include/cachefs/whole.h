/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole files in the disk cache: all bytes of a file of the volume, and nothing else, in one plain
 * file. The kernel can serve such a file without the mount (passthrough). It is composed of cached
 * blocks, each of which is verified for that, and never changes.
 *
 *	<dir>/<uuid>/whole/<inode>_<hash>	the bytes; holes are holes
 *	<dir>/<uuid>/whole/<inode>_<hash>.sums	the content as a list of slices, and checksums
 *
 * The content is the inode, its length, and which bytes of which slices are at which place; slices
 * never change. The hash is that of this list, and the list itself is compared before a file that
 * another process has made is used. Such a file is also verified by its checksums, once.
 *
 * A whole file is found by the inode and the times and length that its content had. It is charged to
 * the cache like blocks are, and all of them may take half of a directory. The one that was opened
 * longest ago leaves first. One in use is not evicted.
 *
 * Any thread. Calls that may wait for the disk say so.
 */
#ifndef CFS_WHOLE_H
#define CFS_WHOLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct cfs_disk;
struct cfs_whole_file;

/* A content as the metadata tells it. Every change of the content changes ctime. */
struct cfs_whole_stamp {
	uint64_t ino, length;
	struct timespec mtime, ctime;
};

/* Bytes of a slice at `pos` of the file; in order, without overlaps. */
struct cfs_whole_piece {
	uint64_t pos, slice;
	uint32_t slice_size, slice_off, len;
	uint32_t spare; /* 0 */
};

struct cfs_whole_map {
	struct cfs_whole_stamp stamp;
	struct cfs_whole_piece *v;
	size_t n;
};

/*
 * The whole file with this content, with a reference. Counts as a use of it. NULL: there is none
 * that this process has made or verified. Never waits.
 */
struct cfs_whole_file *cfs_whole_find(struct cfs_disk *d, const struct cfs_whole_stamp *stamp);
void cfs_whole_put(struct cfs_whole_file *w);
/*
 * Of the file, opened for reading; valid until cfs_whole_put_fd(), for one thread at a time.
 * Afterwards it may be closed while the reference is held: descriptors are few. -1: it is closed.
 */
int cfs_whole_get_fd(struct cfs_whole_file *w);
void cfs_whole_put_fd(struct cfs_whole_file *w);
bool cfs_whole_is(const struct cfs_whole_file *w, const struct cfs_whole_stamp *stamp);
/* Whether a whole file of so many bytes would be kept. Never waits. */
bool cfs_whole_fits(struct cfs_disk *d, uint64_t ino, uint64_t bytes);
/*
 * Makes the whole file of a content, or verifies the one that is there; other contents of the inode
 * leave the cache. Waits for the disk. *stop ends it. -ENOENT: a block is not in the cache; -EFBIG:
 * more than the cache keeps; -EOPNOTSUPP: blocks without checksums; -ECANCELED; or an error of the
 * disk, which is noted.
 */
int cfs_whole_make(struct cfs_disk *d, const struct cfs_whole_map *map, const _Atomic bool *stop);
/* All whole files of an inode leave the cache. Waits for the disk. */
void cfs_whole_forget(struct cfs_disk *d, uint64_t ino);

#endif
