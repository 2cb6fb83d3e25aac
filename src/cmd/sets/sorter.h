/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sorts any number of small records of one size in bounded memory. Records that exceed it go to a
 * temporary file (tempfile.h) as sorted runs, which are merged when they are read.
 *
 * Memory: at most SORTER_MEMORY (twice that while a run is sorted), plus 64 KiB per run when it is
 * read. File: the size of the records. A million records of 32 bytes are 32 MB.
 */
#ifndef CFS_CMD_SORTER_H
#define CFS_CMD_SORTER_H

#include <stddef.h>

#define SORTER_MEMORY (32u << 20)

struct sorter;

/* Compares records that are uint64_t, such as inode numbers. */
int sorter_compare_u64(const void *a, const void *b);
/* memory: 0 for SORTER_MEMORY. */
int sorter_create(size_t record_size, int (*compare)(const void *a, const void *b), size_t memory,
		  struct sorter **ret);
int sorter_add(struct sorter *s, const void *record);
/* Ends adding, once; the first record comes next. */
int sorter_sort(struct sorter *s);
/* Returns 1 and the next record, 0 at the end. */
int sorter_next(struct sorter *s, void *ret);
/* NULL is fine. */
void sorter_destroy(struct sorter *s);

#endif
