/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/sets/inostack.h"

#include <stdlib.h>

#include "base/array.h"

int inostack_push(struct inostack *s, cfs_ino_t ino)
{
	return CFS_ARRAY_ADD(s->v, s->n, s->cap, ino);
}

void inostack_free(struct inostack *s)
{
	free(s->v);
	*s = (struct inostack){0};
}
