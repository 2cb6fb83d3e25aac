/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes of usage for engines without inline_usage: summed per directory until the next flush.
 * Memory grows with the number of directories that change between two flushes.
 */
#include "base/cleanup.h"
#include "base/log.h"
#include "meta/quota/quota-internal.h"

void cfs_usage_batch_init(struct cfs_usage_batch *b)
{
	pthread_mutex_init(&b->lock, NULL);
	cfs_inomap_init(&b->dirs, sizeof(struct cfs_usage_dir));
}

void cfs_usage_batch_destroy(struct cfs_usage_batch *b)
{
	pthread_mutex_destroy(&b->lock);
	cfs_inomap_destroy(&b->dirs);
}

static void add_dir(struct cfs_usage_batch *b, const struct cfs_usage_dir *d)
{
	struct cfs_usage_dir *s = cfs_inomap_add(&b->dirs, d->dir);

	if (!s) {
		cfs_warn("out of memory, a directory's statistics miss a change, "
			 "'cachefs fsck --repair' counts it: inode=%llu",
			 (unsigned long long)d->dir);
		return;
	}
	/* Wraps, as in cfs_usage_add_dir(). */
	s->length = (int64_t)((uint64_t)s->length + (uint64_t)d->length);
	s->space = (int64_t)((uint64_t)s->space + (uint64_t)d->space);
	s->inodes += d->inodes;
}

void cfs_usage_batch_add(struct cfs_usage_batch *b, const struct cfs_usage *u)
{
	unsigned i;
	CFS_LOCK_GUARD(&b->lock);

	b->space += u->space;
	b->inodes += u->inodes;
	for (i = 0; i < u->n_dirs; i++)
		add_dir(b, &u->dirs[i]);
}

size_t cfs_usage_batch_take(struct cfs_usage_batch *b, int64_t *ret_space, int64_t *ret_inodes,
			    struct cfs_usage_dir **ret)
{
	size_t n;
	CFS_LOCK_GUARD(&b->lock);

	n = cfs_inomap_take(&b->dirs, ret);
	*ret_space = b->space;
	*ret_inodes = b->inodes;
	b->space = b->inodes = 0;
	return n;
}
