/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "vfs-internal.h"

/* The kernel's owner is per descriptor table; one file opened twice needs two owners. */
static uint64_t flock_owner(uint64_t owner, uint64_t fh)
{
	return owner ^ fh;
}

int cfs_vfs_flock(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh, uint64_t owner,
		  enum cfs_lock_type type, bool wait)
{
	struct handle *h = handle_find(&v->handles, fh, HANDLE_FILE);

	if (!h)
		return -EBADF;
	owner = flock_owner(owner, fh);
	/* Before it is taken: the release must find it whatever happens in between. */
	if (type != CFS_LOCK_NONE) {
		atomic_store(&h->flock_owner, owner);
		atomic_store(&h->flocked, true);
	}
	return cfs_meta_flock(v->conf.meta, ctx, h->vnode->node.key, owner, type, wait);
}

int cfs_vfs_setlk(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh, uint64_t owner,
		  const struct cfs_plock *lock, bool wait)
{
	struct handle *h = handle_find(&v->handles, fh, HANDLE_FILE);

	if (!h)
		return -EBADF;
	if (lock->type != CFS_LOCK_NONE)
		atomic_store(&h->vnode->plocked, true);
	return cfs_meta_setlk(v->conf.meta, ctx, h->vnode->node.key, owner, lock, wait);
}

int cfs_vfs_getlk(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh, uint64_t owner,
		  struct cfs_plock *lock)
{
	struct handle *h = handle_find(&v->handles, fh, HANDLE_FILE);

	if (!h)
		return -EBADF;
	return cfs_meta_getlk(v->conf.meta, ctx, h->vnode->node.key, owner, lock);
}
