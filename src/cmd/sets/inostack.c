/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/sets/inostack.h"

#include <errno.h>
#include <stdlib.h>

int inostack_push(struct inostack *s, cfs_ino_t ino)
{
	if (s->n == s->cap) {
		size_t cap = s->cap ? 2 * s->cap : 64;
		cfs_ino_t *v = reallocarray(s->v, cap, sizeof(*v));

		if (!v)
			return -ENOMEM;
		s->v = v;
		s->cap = cap;
	}
	s->v[s->n++] = ino;
	return 0;
}

void inostack_free(struct inostack *s)
{
	free(s->v);
	*s = (struct inostack){0};
}
