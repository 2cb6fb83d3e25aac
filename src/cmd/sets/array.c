/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/sets/array.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_ROOM 16

int array_room(void *v_ptr, size_t n, size_t *cap, size_t size)
{
	size_t bigger = *cap ? 2 * *cap : FIRST_ROOM;
	void *v;

	if (n < *cap)
		return 0;
	memcpy(&v, v_ptr, sizeof(v));
	v = reallocarray(v, bigger, size);
	if (!v)
		return -ENOMEM;
	memcpy(v_ptr, &v, sizeof(v));
	*cap = bigger;
	return 0;
}
