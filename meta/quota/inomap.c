/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/quota/inomap.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_CAP = 64 };

void cfs_inomap_init(struct cfs_inomap *map, size_t size)
{
	*map = (struct cfs_inomap){.size = size};
}

void cfs_inomap_destroy(struct cfs_inomap *map)
{
	free(map->slots);
	cfs_inomap_init(map, map->size);
}

static void *at(const struct cfs_inomap *map, size_t i)
{
	return map->slots + i * map->size;
}

static cfs_ino_t ino_of(const void *slot)
{
	return *(const cfs_ino_t *)slot;
}

/*
 * Linear probing: the slot of the inode, or the free slot where it belongs. Requires that cap is a
 * power of two and that at least one slot is free.
 */
static void *place(const struct cfs_inomap *map, cfs_ino_t ino)
{
	size_t i = (ino * 0x9E3779B97F4A7C15ULL) >> 20;

	for (;; i++) {
		void *slot = at(map, i & (map->cap - 1));

		if (ino_of(slot) == ino || ino_of(slot) == 0)
			return slot;
	}
}

void *cfs_inomap_find(const struct cfs_inomap *map, cfs_ino_t ino)
{
	void *slot = map->n ? place(map, ino) : NULL;

	return slot && ino_of(slot) == ino ? slot : NULL;
}

/* Keeps half of the slots free, or at least one when memory is short. False: the map is full. */
static bool grow(struct cfs_inomap *map)
{
	struct cfs_inomap big = *map;
	void *slot = NULL;

	if (map->n * 2 < map->cap)
		return true;
	big.cap = map->cap ? map->cap * 2 : FIRST_CAP;
	big.slots = calloc(big.cap, map->size);
	if (!big.slots)
		return map->n + 1 < map->cap;
	while ((slot = cfs_inomap_next(map, slot)))
		memcpy(place(&big, ino_of(slot)), slot, map->size);
	free(map->slots);
	*map = big;
	return true;
}

void *cfs_inomap_add(struct cfs_inomap *map, cfs_ino_t ino)
{
	void *slot = cfs_inomap_find(map, ino);

	if (slot || !grow(map))
		return slot;
	slot = place(map, ino);
	*(cfs_ino_t *)slot = ino;
	map->n++;
	return slot;
}

void *cfs_inomap_next(const struct cfs_inomap *map, void *slot)
{
	size_t i = slot ? (size_t)((unsigned char *)slot - map->slots) / map->size + 1 : 0;

	for (; i < map->cap; i++)
		if (ino_of(at(map, i)))
			return at(map, i);
	return NULL;
}

static int by_ino(const void *a, const void *b)
{
	return (ino_of(a) > ino_of(b)) - (ino_of(a) < ino_of(b));
}

size_t cfs_inomap_take(struct cfs_inomap *map, void *ret)
{
	size_t n = 0;
	void *slot = NULL;

	while ((slot = cfs_inomap_next(map, slot)))
		memmove(at(map, n++), slot, map->size);
	if (n)
		qsort(map->slots, n, map->size, by_ino);
	*(void **)ret = map->slots;
	cfs_inomap_init(map, map->size);
	return n;
}
