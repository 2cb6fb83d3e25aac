/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/check/recheck.h"

#include <errno.h>
#include <stdlib.h>

#include "base/bytes.h"

/* The slices that a chunk names, sorted. */
struct named {
	cfs_ino_t ino;
	uint32_t indx;
	uint64_t *ids;
	size_t n;
};

static int compare_rechecks(const void *a, const void *b)
{
	const struct recheck *x = a, *y = b;

	return CFS_COMPARE(x->ino, y->ino)
		?: CFS_COMPARE(x->indx, y->indx)
		?: CFS_COMPARE(x->slice, y->slice)
		?: CFS_COMPARE(x->block, y->block);
}

int rechecks_create(struct sorter **ret)
{
	return sorter_create(sizeof(struct recheck), compare_rechecks, 0, ret);
}

/* A chunk that cannot be read names no slice. */
static int read_named(struct admin *a, const struct recheck *d, struct named *ret)
{
	struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);
	struct cfs_slice *v = NULL;
	ssize_t i, n = cfs_meta_read_chunk(a->meta, &ctx, d->ino, d->indx, &v);

	free(ret->ids);
	*ret = (struct named){.ino = d->ino, .indx = d->indx};
	ret->ids = n > 0 ? calloc((size_t)n, sizeof(*ret->ids)) : NULL;
	for (i = 0; i < n && ret->ids; i++)
		ret->ids[ret->n++] = v[i].id;
	free(v);
	if (n > 0 && !ret->ids)
		return -ENOMEM;
	if (ret->n)
		qsort(ret->ids, ret->n, sizeof(*ret->ids), sorter_compare_u64);
	return 0;
}

int rechecks_settle(struct admin *a, struct sorter *rechecks,
		    int (*fn)(void *arg, const struct recheck *d), void *arg)
{
	struct named named = {0};
	struct recheck d;
	int r = sorter_sort(rechecks);

	while (r >= 0 && (r = sorter_next(rechecks, &d)) > 0) {
		if (d.ino != named.ino || d.indx != named.indx)
			r = read_named(a, &d, &named);
		if (r >= 0 && named.n &&
		    bsearch(&d.slice, named.ids, named.n, sizeof(*named.ids), sorter_compare_u64))
			r = fn(arg, &d);
	}
	free(named.ids);
	return r;
}
