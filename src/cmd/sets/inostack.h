/* SPDX-License-Identifier: Apache-2.0 */
/* Directories that are still to be visited: 8 bytes each. Zeroed memory is an empty one. */
#ifndef CFS_CMD_INOSTACK_H
#define CFS_CMD_INOSTACK_H

#include "cachefs/meta.h"

struct inostack {
	cfs_ino_t *v;
	size_t n, cap;
};

int inostack_push(struct inostack *s, cfs_ino_t ino); /* 0 or -ENOMEM */
/* Removes the one pushed last; there must be one. */
static inline cfs_ino_t inostack_pop(struct inostack *s)
{
	return s->v[--s->n];
}
void inostack_free(struct inostack *s);

#endif
