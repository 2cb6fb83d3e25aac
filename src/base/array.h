/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays that grow by doubling. */
#ifndef CFS_BASE_ARRAY_H
#define CFS_BASE_ARRAY_H

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Room for n elements of v in all, which has room for cap. 0 or -ENOMEM. */
#define CFS_ARRAY_RESERVE(v, n, cap) cfs_array_reserve(&(v), (n), &(cap), sizeof(*(v)))

/* Room for one element more behind the n of v. 0 or -ENOMEM. */
#define CFS_ARRAY_ROOM(v, n, cap)                                                                  \
	((n) < (cap) ? 0 : CFS_ARRAY_RESERVE(v, (cap) ? 2 * (cap) : 4, cap))

/* Puts an element there. 0 or -ENOMEM. */
#define CFS_ARRAY_ADD(v, n, cap, ...)                                                              \
	(CFS_ARRAY_ROOM(v, n, cap) < 0 ? -ENOMEM : ((v)[(n)++] = (__VA_ARGS__), 0))

static inline int cfs_array_reserve(void *v_ptr, size_t n, size_t *cap, size_t size)
{
	void *v;

	if (n <= *cap)
		return 0;
	memcpy(&v, v_ptr, sizeof(v));
	v = reallocarray(v, n, size);
	if (!v)
		return -ENOMEM;
	memcpy(v_ptr, &v, sizeof(v));
	*cap = n;
	return 0;
}

#endif
