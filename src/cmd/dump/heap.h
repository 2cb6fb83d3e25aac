/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds records by a number, in bounded memory. Records are written to a temporary file in the
 * order in which they come, and an index sorted by the number to another file. Memory is a few
 * bytes per hundred records.
 */
#ifndef CFS_CMD_HEAP_H
#define CFS_CMD_HEAP_H

#include <stddef.h>
#include <stdint.h>

struct heap;

int heap_create(struct heap **ret);
/* sub orders records of one key. */
int heap_add(struct heap *h, uint64_t key, uint32_t sub, const void *data, size_t len);
/* Ends adding. Once. */
int heap_seal(struct heap *h);
/* Position of the first record of a key, or where it would be. Negative errno. */
int64_t heap_find(struct heap *h, uint64_t key);
/*
 * Returns 1 and the record at that position, whose bytes are valid until the next call on this heap;
 * 0: the record there is not one of the key, or there is none.
 */
int heap_get(struct heap *h, uint64_t at, uint64_t key, const uint8_t **ret, size_t *ret_len);
void heap_destroy(struct heap *h); /* NULL is fine */

#endif
