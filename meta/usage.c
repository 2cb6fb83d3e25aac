/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Usage that engines without inline_usage leave to the core: summed up per directory and written by
 * the flusher. Bounded by the directories that change between two flushes.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "meta/core-internal.h"

struct cfs_usage_batch {
	pthread_mutex_t lock; /* protects all of it */
	struct cfs_usage_dir *slots;
	size_t cap, n; /* cap: 0 or a power of two; a free slot has dir 0 */
	int64_t space, inodes;
};

int cfs_usage_batch_create(struct cfs_usage_batch **ret)
{
	struct cfs_usage_batch *b = calloc(1, sizeof(*b));

	if (!b)
		return -ENOMEM;
	pthread_mutex_init(&b->lock, NULL);
	*ret = b;
	return 0;
}

void cfs_usage_batch_destroy(struct cfs_usage_batch *b)
{
	if (!b)
		return;
	pthread_mutex_destroy(&b->lock);
	free(b->slots);
	free(b);
}

static struct cfs_usage_dir *slot_of(struct cfs_usage_dir *slots, size_t cap, cfs_ino_t dir)
{
	size_t i = (dir * 0x9E3779B97F4A7C15ULL) >> 20;

	for (;; i++) {
		struct cfs_usage_dir *s = &slots[i & (cap - 1)];

		if (s->dir == dir || s->dir == 0)
			return s;
	}
}

static bool grow(struct cfs_usage_batch *b)
{
	size_t i, cap = b->cap ? b->cap * 2 : 64;
	struct cfs_usage_dir *slots;

	if (b->n * 2 < b->cap)
		return true;
	slots = calloc(cap, sizeof(*slots));
	if (!slots)
		return b->n + 1 < b->cap;
	for (i = 0; i < b->cap; i++)
		if (b->slots[i].dir)
			*slot_of(slots, cap, b->slots[i].dir) = b->slots[i];
	free(b->slots);
	b->slots = slots;
	b->cap = cap;
	return true;
}

static void add_dir(struct cfs_usage_batch *b, const struct cfs_usage_dir *d)
{
	struct cfs_usage_dir *s;

	if (!grow(b)) {
		cfs_warn("out of memory, a directory's statistics miss a change: inode=%llu",
			 (unsigned long long)d->dir);
		return;
	}
	s = slot_of(b->slots, b->cap, d->dir);
	if (!s->dir) {
		s->dir = d->dir;
		b->n++;
	}
	s->length += d->length;
	s->space += d->space;
	s->inodes += d->inodes;
}

void cfs_usage_batch_add(struct cfs_usage_batch *b, const struct cfs_usage *u)
{
	unsigned i;

	pthread_mutex_lock(&b->lock);
	b->space += u->space;
	b->inodes += u->inodes;
	for (i = 0; i < u->n_dirs; i++)
		add_dir(b, &u->dirs[i]);
	pthread_mutex_unlock(&b->lock);
}

static int by_dir(const void *a, const void *b)
{
	const struct cfs_usage_dir *x = a, *y = b;

	return (x->dir > y->dir) - (x->dir < y->dir);
}

/* Free slots out, the rest in the order that all mounts update rows in. */
static size_t pack(struct cfs_usage_dir *v, size_t cap)
{
	size_t i, n = 0;

	for (i = 0; i < cap; i++)
		if (v[i].dir)
			v[n++] = v[i];
	if (n)
		qsort(v, n, sizeof(*v), by_dir);
	return n;
}

int cfs_usage_batch_flush(struct cfs_usage_batch *b, struct cfs_meta *m, const struct cfs_ctx *ctx,
			  int64_t *ret_space, int64_t *ret_inodes)
{
	struct cfs_usage_dir *v;
	int64_t space, inodes;
	size_t i, n, cap;
	int rc = 0;

	pthread_mutex_lock(&b->lock);
	v = b->slots;
	cap = b->cap;
	space = b->space;
	inodes = b->inodes;
	b->slots = NULL;
	b->cap = b->n = 0;
	b->space = b->inodes = 0;
	pthread_mutex_unlock(&b->lock);

	n = pack(v, cap);
	if (n || space || inodes)
		rc = m->eng->ops->add_usage(m->eng, ctx, space, inodes, v, n);
	if (rc) {
		pthread_mutex_lock(&b->lock);
		b->space += space;
		b->inodes += inodes;
		for (i = 0; i < n; i++)
			add_dir(b, &v[i]);
		pthread_mutex_unlock(&b->lock);
	} else {
		*ret_space = space;
		*ret_inodes = inodes;
	}
	free(v);
	return rc;
}
