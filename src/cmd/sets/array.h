/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays that grow by doubling. */
#ifndef CFS_CMD_ARRAY_H
#define CFS_CMD_ARRAY_H

#include <stddef.h>

/* Room for one element more behind the n of v, which has room for cap. 0 or -ENOMEM. */
#define ARRAY_ROOM(v, n, cap) array_room(&(v), (n), &(cap), sizeof(*(v)))

int array_room(void *v_ptr, size_t n, size_t *cap, size_t size);

#endif
