/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/dump/rulelist.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/bytes.h"

int rulelist_add(struct rulelist *l, uint32_t id, const void *packed, size_t len)
{
	struct rule *rule;

	if (CFS_ARRAY_ROOM(l->v, l->n, l->cap) < 0)
		return -ENOMEM;
	rule = &l->v[l->n];
	*rule = (struct rule){.id = id, .packed = malloc(len + 1), .len = len};
	if (!rule->packed)
		return -ENOMEM;
	memcpy(rule->packed, packed, len);
	l->n++;
	return 0;
}

static int compare(const void *a, const void *b)
{
	const struct rule *x = a, *y = b;

	return CFS_COMPARE(x->id, y->id);
}

void rulelist_sort(struct rulelist *l)
{
	if (l->n)
		qsort(l->v, l->n, sizeof(*l->v), compare);
}

const struct rule *rulelist_find(const struct rulelist *l, uint32_t id)
{
	const struct rule key = {.id = id};

	return l->n ? bsearch(&key, l->v, l->n, sizeof(key), compare) : NULL;
}

void rulelist_free(struct rulelist *l)
{
	size_t i;

	for (i = 0; i < l->n; i++)
		free(l->v[i].packed);
	free(l->v);
	*l = (struct rulelist){0};
}
