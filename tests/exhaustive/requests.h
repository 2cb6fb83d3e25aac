/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The requests of a sequence, made of the VFS as the kernel would make them: names are looked up
 * first, and a request that is sent again has the inode numbers that were found before.
 * close-together flushes three files. With close=committing the commit of the first one begins when all
 * are stored, so that those of the others are one group.
 *
 *	create PATH FD MODE	open PATH FD	mkdir PATH MODE		symlink TARGET PATH
 *	link PATH PATH		rename PATH PATH	exchange PATH PATH
 *	unlink PATH		rmdir PATH	chmod PATH MODE		setxattr PATH NAME VALUE
 *	write FD OFF LEN BYTE	append FD LEN BYTE	truncate FD LEN
 *	fallocate FD OFF LEN	punch FD OFF LEN	copy FD OFF FD OFF LEN
 *	fsync FD		flush FD	release FD	close-together FD FD FD
 */
#ifndef EXHAUSTIVE_REQUESTS_H
#define EXHAUSTIVE_REQUESTS_H

#include "mount.h"

#define REQUESTS_MAX 64
#define FDS_MAX	     8

/* State of kernel and program: shared memory, which outlives the file system's process. */
struct progress {
	_Atomic uint32_t begun; /* requests sent: the last of them is under way or answered */
	_Atomic uint32_t done;	/* requests answered */
	int32_t answer[REQUESTS_MAX];
	uint64_t fh[FDS_MAX];	/* 0: not open */
	cfs_ino_t ino[FDS_MAX]; /* of the open file */
	/* Of the request under way: directories, inodes (0: none), end of the file as found. */
	cfs_ino_t dir[2], found, other;
	uint64_t end;
};

/* The kernel's number of request `i`. */
static inline uint64_t request_unique(uint32_t i)
{
	return 2 * ((uint64_t)i + 1);
}

/*
 * Makes request `i` of a sequence and notes its answer: 0 or a negative errno. again: it was sent
 * to a process that died. EXHAUSTIVE_BREAK=replay in the environment, for tests of the test: it is
 * carried out as if it had not been. settle: waits until background work has ended.
 */
void request_run(struct mount *m, struct cfs_handoff *handoff, struct progress *p, uint32_t i,
		 const char *text, bool again, void (*settle)(void));

#endif
