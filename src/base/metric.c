/* SPDX-License-Identifier: Apache-2.0 */
#include "metric.h"

#include <assert.h>
#include <stdalign.h>
#include <string.h>

static uint64_t load(const struct cfs_metric *m, const char *base)
{
	const void *at = base + m->offset;

	return m->size == sizeof(uint32_t)
		       ? __atomic_load_n((const uint32_t *)at, __ATOMIC_RELAXED)
		       : __atomic_load_n((const uint64_t *)at, __ATOMIC_RELAXED);
}

static uint64_t read_one(const struct cfs_metric *m, void *part, const char *base)
{
	if (!part)
		return 0;
	return m->read ? m->read(part) : load(m, base);
}

static const char *base_of(const struct cfs_metric_table *t, void *part, char *snapshot)
{
	if (!part || !t->snapshot)
		return part;
	t->snapshot(part, snapshot);
	return snapshot;
}

static void each(const struct cfs_metric_table *t, void *part, cfs_metric_fn fn, void *arg)
{
	alignas(max_align_t) char snapshot[CFS_METRIC_SNAPSHOT_MAX];
	const char *base = base_of(t, part, snapshot);
	unsigned i;

	for (i = 0; i < t->n; i++)
		fn(arg, &t->v[i], read_one(&t->v[i], part, base));
}

uint64_t cfs_metric_get(const struct cfs_metric_table *t, void *part, const char *name,
			const char *labels)
{
	alignas(max_align_t) char snapshot[CFS_METRIC_SNAPSHOT_MAX];
	unsigned i;

	for (i = 0; i < t->n; i++) {
		const struct cfs_metric *m = &t->v[i];

		if (!strcmp(m->name, name) &&
		    !strcmp(m->labels ? m->labels : "", labels ? labels : ""))
			return read_one(m, part, base_of(t, part, snapshot));
	}
	return UINT64_MAX;
}

void cfs_metrics_add(struct cfs_metrics *all, const struct cfs_metric_table *t, void *part)
{
	assert(all->n < CFS_METRIC_PARTS);
	all->v[all->n].table = t;
	all->v[all->n++].part = part;
}

void cfs_metrics_each(const struct cfs_metrics *all, cfs_metric_fn fn, void *arg)
{
	unsigned i;

	for (i = 0; i < all->n; i++)
		each(all->v[i].table, all->v[i].part, fn, arg);
}

uint64_t cfs_metrics_get(const struct cfs_metrics *all, const char *name, const char *labels)
{
	uint64_t v = UINT64_MAX;
	unsigned i;

	for (i = 0; i < all->n && v == UINT64_MAX; i++)
		v = cfs_metric_get(all->v[i].table, all->v[i].part, name, labels);
	return v;
}
