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
struct heap_item {
	uint64_t key;
	uint64_t off;
	uint32_t sub; /* orders records of one key */
	uint32_t len;
};

int heap_create(struct heap **ret);
int heap_add(struct heap *h, uint64_t key, uint32_t sub, const void *data, size_t len);
/* Ends adding. Once. */
int heap_seal(struct heap *h);
/* Position of the first record of a key, or where it would be. Negative errno. */
int64_t heap_find(struct heap *h, uint64_t key);
/* Returns 1 and the item at that position, 0 after the last one. */
int heap_item(struct heap *h, uint64_t at, struct heap_item *ret);
/* Its bytes, valid until the next call on this heap. */
int heap_data(struct heap *h, const struct heap_item *item, const uint8_t **ret);
void heap_destroy(struct heap *h); /* NULL is fine */

#endif
