/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares the objects of a volume with the slices that metadata names, for gc and fsck. Both lists
 * are sorted by slice and merged in bounded memory (sorter.h; 32 bytes per object and per record of
 * a slice).
 */
#ifndef CFS_CMD_BLOCKS_H
#define CFS_CMD_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

#include "cmd/access/admin.h"
#include "cmd/access/progress.h"
#include "cmd/sets/sorter.h"

/* An object whose key has the form of a block's. */
struct block_object {
	uint64_t id;
	uint64_t size; /* of the object */
	int64_t mtime_s;
	uint32_t indx, len; /* as its name says */
};

struct blocks_listed {
	uint64_t objects, bytes; /* blocks */
	uint64_t foreign;	 /* objects below chunks/ whose key is not that of a block */
};
/*
 * Lists every object of the volume's chunks into *ret_sorted. 0 means that the listing is complete.
 */
int blocks_list(struct admin *a, struct progress *p, struct sorter **ret_sorted,
		struct blocks_listed *ret);

/* A use of a slice. Sorted by id. */
struct slice_use {
	uint64_t id;
	cfs_ino_t ino;
	uint32_t size;
	uint32_t indx; /* chunk of the inode */
	int32_t refs;  /* SLICE_REF */
	uint32_t kind; /* one bit */
};
int slice_use_compare(const void *a, const void *b);
/* Adds the uses of a row that is a list of slices. */
int slice_use_add_list(struct sorter *uses, struct progress *p, const struct cfs_row *row,
		       cfs_ino_t ino, uint32_t kind);

/* Whether the object is block b->indx of a slice of that size. */
bool blocks_belongs(const struct admin *a, const struct block_object *b, uint32_t slice_size);
/* Number of blocks of a slice, and the length of one block. */
uint32_t blocks_count(const struct admin *a, uint32_t slice_size);
uint32_t blocks_length(const struct admin *a, uint32_t slice_size, uint32_t indx);
void blocks_key(const struct admin *a, uint64_t slice, uint32_t indx, uint32_t len,
		char key[CFS_BLOCK_KEY_MAX]);
/* Whether an object of that size can be a block of `len` bytes. */
bool blocks_fit(const struct admin *a, uint32_t len, uint64_t size);
/*
 * Asks for the object of a block. 0: it fits; 1: it does not, or is missing; or an error. Without
 * an error *ret_size is its size.
 */
#define BLOCK_MISSING UINT64_MAX
int blocks_look(struct admin *a, uint64_t slice, uint32_t slice_size, uint32_t indx,
		char key[CFS_BLOCK_KEY_MAX], uint64_t *ret_size);

#endif
