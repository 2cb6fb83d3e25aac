/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/sets/inostack.h"

#include <errno.h>
#include <stdlib.h>

#include "base/array.h"

int inostack_push(struct inostack *s, cfs_ino_t ino)
{
	if (CFS_ARRAY_ROOM(s->v, s->n, s->cap) < 0)
		return -ENOMEM;
	s->v[s->n++] = ino;
	return 0;
}

void inostack_free(struct inostack *s)
{
	free(s->v);
	*s = (struct inostack){0};
}
