/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays that are sorted by id. */
#ifndef CFS_SORTED_H
#define CFS_SORTED_H

#include <stddef.h>
#include <stdint.h>

/* The place of the element with that id among n of `size` bytes each, or its insertion point. */
static inline size_t cfs_sorted_place(const void *v, size_t n, size_t size,
				      uint64_t (*id_of)(const void *element), uint64_t id)
{
	size_t from = 0, to = n;

	while (from < to) {
		size_t mid = from + (to - from) / 2;

		if (id_of((const char *)v + mid * size) < id)
			from = mid + 1;
		else
			to = mid;
	}
	return from;
}

#endif
