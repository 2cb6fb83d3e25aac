/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes of directories that this mount has removed and the kernel still refers to. */
#include <stdlib.h>

#include "vfs-internal.h"

#define REMOVED_DIRS_MAX 65536 /* beyond it, fstat(2) of a removed directory fails */

struct removed_dir {
	struct cfs_node node; /* key: inode */
	struct cfs_attr attr;
};

static void free_removed_dir(struct cfs_node *node)
{
	free(caa_container_of(node, struct removed_dir, node));
}

void removed_dir_add(struct cfs_vfs *v, const struct cfs_ctx *ctx, const struct cfs_removed *what)
{
	struct cfs_node *there;
	struct removed_dir *d;

	if (what->outcome == CFS_REMOVED_NONE || what->attr.type != CFS_TYPE_DIR ||
	    cfs_table_count(v->removed_dirs) >= REMOVED_DIRS_MAX)
		return;
	d = calloc(1, sizeof(*d));
	if (!d)
		return;
	d->node.key = what->ino;
	d->attr = what->attr;
	d->attr.nlink = 0;
	d->attr.ctime = ctx->now;
	cfs_table_read_lock();
	there = cfs_table_add(v->removed_dirs, &d->node);
	cfs_table_read_unlock();
	if (there != &d->node)
		free(d);
}

void removed_dir_forget(struct cfs_vfs *v, cfs_ino_t ino)
{
	struct cfs_node *node;

	if (!cfs_table_count(v->removed_dirs))
		return;
	cfs_table_read_lock();
	node = cfs_table_find(v->removed_dirs, ino);
	if (node && cfs_table_remove(v->removed_dirs, node))
		cfs_table_free_rcu(node, free_removed_dir);
	cfs_table_read_unlock();
}

static void forget(struct cfs_node *node, void *arg)
{
	struct cfs_vfs *v = arg;

	if (cfs_table_remove(v->removed_dirs, node))
		cfs_table_free_rcu(node, free_removed_dir);
}

void removed_dir_forget_all(struct cfs_vfs *v)
{
	cfs_table_each(v->removed_dirs, forget, v);
}

bool removed_dir_find(struct cfs_vfs *v, cfs_ino_t ino, struct cfs_attr *ret)
{
	struct cfs_node *node;

	if (!cfs_table_count(v->removed_dirs))
		return false;
	cfs_table_read_lock();
	node = cfs_table_find(v->removed_dirs, ino);
	if (node)
		*ret = caa_container_of(node, struct removed_dir, node)->attr;
	cfs_table_read_unlock();
	return node;
}
