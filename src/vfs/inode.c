/* SPDX-License-Identifier: Apache-2.0 */
/* The inodes that are open on this mount. */
#include <stdlib.h>
#include <sys/stat.h>

#include "base/log.h"
#include "vfs-internal.h"

static bool try_ref(struct vnode *n)
{
	uint32_t refs = atomic_load_explicit(&n->refs, memory_order_relaxed);

	while (refs) {
		if (atomic_compare_exchange_weak_explicit(
			    &n->refs, &refs, refs + 1, memory_order_acquire, memory_order_relaxed))
			return true;
	}
	return false;
}

static void free_vnode(struct cfs_node *node)
{
	free(caa_container_of(node, struct vnode, node));
}

struct vnode *vnode_find(struct cfs_vfs *v, cfs_ino_t ino)
{
	struct cfs_node *node;
	struct vnode *n = NULL;

	if (!cfs_table_count(v->vnodes))
		return NULL;
	cfs_table_read_lock();
	node = cfs_table_find(v->vnodes, ino);
	if (node) {
		n = caa_container_of(node, struct vnode, node);
		if (!try_ref(n))
			n = NULL;
	}
	cfs_table_read_unlock();
	return n;
}

struct vnode *vnode_get(struct cfs_vfs *v, cfs_ino_t ino)
{
	struct vnode *n, *fresh = NULL;
	struct cfs_node *node;

	for (;;) {
		n = vnode_find(v, ino);
		if (n)
			break;
		if (!fresh) {
			fresh = calloc(1, sizeof(*fresh));
			if (!fresh)
				return NULL;
			fresh->node.key = ino;
			fresh->vfs = v;
			atomic_init(&fresh->refs, 1);
		}
		cfs_table_read_lock();
		node = cfs_table_add(v->vnodes, &fresh->node);
		if (node == &fresh->node) {
			cfs_table_read_unlock();
			return fresh;
		}
		/*
		 * The entry has no references left, and another thread is about to remove it.
		 * Remove it for that thread, and try again.
		 */
		n = caa_container_of(node, struct vnode, node);
		if (try_ref(n)) {
			cfs_table_read_unlock();
			break;
		}
		cfs_table_remove(v->vnodes, node);
		cfs_table_read_unlock();
	}
	free(fresh);
	return n;
}

struct vnode *vnode_of_handle(struct cfs_vfs *v, uint64_t fh)
{
	struct vnode *n = NULL;
	struct handle *h;

	cfs_table_read_lock();
	h = handle_find(&v->handles, fh, HANDLE_FILE);
	if (h)
		n = h->vnode;
	if (n && !try_ref(n))
		n = NULL;
	cfs_table_read_unlock();
	return n;
}

struct vnode *vnode_ref(struct vnode *n)
{
	atomic_fetch_add_explicit(&n->refs, 1, memory_order_relaxed);
	return n;
}

static void forget_cached(struct vnode *n)
{
	if (atomic_load(&n->written))
		cache_changed(&n->vfs->cache, 0, 0, n->node.key, NULL);
}

/* True for the last reference. Attributes cached before are outdated: they are dropped first. */
static bool drop_ref(struct vnode *n)
{
	uint32_t refs = atomic_load_explicit(&n->refs, memory_order_relaxed);

	do {
		if (refs == 1)
			forget_cached(n);
	} while (!atomic_compare_exchange_weak_explicit(
		&n->refs, &refs, refs - 1, memory_order_acq_rel, memory_order_relaxed));
	return refs == 1;
}

/* The kernel's mark of an open for execution. The handle is closed when the program ends. */
#define OPEN_EXEC 0x20

void vnode_count(struct vnode *n, int flags, int by)
{
	if (flags & OPEN_EXEC)
		atomic_fetch_add(&n->executed, (uint32_t)by);
}

void vnode_put(struct vnode *n)
{
	struct cfs_handoff_inode *mark;
	struct cfs_file *file;
	struct cfs_ctx ctx;
	struct cfs_vfs *v;
	bool sustained;
	cfs_ino_t ino;
	int r;

	if (!n || !drop_ref(n))
		return;
	v = n->vfs;
	ino = n->node.key;
	/* No thread can take a reference after this, so the flags are final. */
	sustained = atomic_load(&n->sustained);
	forget_cached(
		n); /* again: readers that asked the engine before ask once more, accept_attr() */
	cfs_table_remove(v->vnodes, &n->node);
	file = vnode_file(n);
	mark = atomic_load(&n->mark);
	if (file && mark)
		cfs_file_drop_mark(file, &mark->dirty);
	cfs_handoff_remove_inode(v->conf.handoff, mark);
	if (file)
		cfs_file_put(file);
	cfs_table_free_rcu(&n->node, free_vnode);
	if (!sustained)
		return;
	ctx = internal_ctx(v);
	r = cfs_meta_close_ino(v->conf.meta, &ctx, ino);
	if (r < 0)
		cfs_warn("removed file could not be released, its space comes back later: "
			 "inode=%llu error=%s",
			 (unsigned long long)ino, cfs_errname(r));
}

void note_set_id(struct vnode *n, uint16_t mode)
{
	atomic_store_explicit(&n->set_id, mode & (S_ISUID | S_ISGID), memory_order_relaxed);
}

int vnode_attach(struct vnode *n, const struct cfs_attr *attr, uint64_t asked_ns)
{
	struct cfs_file *file = vnode_file(n), *none = NULL;
	struct cfs_handoff_inode *mark;
	int r;

	note_set_id(n, attr->mode);
	if (file) {
		cfs_file_reopen(file, attr, asked_ns);
		return 0;
	}
	r = cfs_data_open(n->vfs->conf.data, n->node.key, attr, asked_ns, &file);
	if (r < 0)
		return r;
	if (!atomic_compare_exchange_strong(&n->file, &none, file)) {
		cfs_file_put(file);
		return 0;
	}
	mark = cfs_handoff_add_inode(n->vfs->conf.handoff, n->node.key);
	if (mark)
		cfs_file_set_mark(file, &mark->dirty);
	atomic_store(&n->mark, mark);
	return 0;
}

void vnode_overlay(struct vnode *n, struct cfs_attr *attr, uint64_t asked_ns)
{
	struct cfs_file *file = vnode_file(n);

	if (file) {
		cfs_file_refresh(file, attr, asked_ns);
		cfs_file_overlay_attr(file, attr);
	}
	note_set_id(n, attr->mode); /* the mode as shown, which may not be stored yet */
	/*
	 * For programs that have the file open, its name in the trash is no link: by 0 links they
	 * recognise that a lock file was removed while they waited for it.
	 */
	if (cfs_ino_is_trash(attr->parent))
		attr->nlink = 0;
}
