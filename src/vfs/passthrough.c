/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passthrough: opens for reading that the kernel serves from a whole file (cachefs/whole.h).
 *
 * While a handle of a kernel inode passes through, the kernel refuses each open of that inode that
 * does not name the same file (EIO), and mappings go to that file. So other content, or a writer,
 * needs another kernel inode. Each file has two node ids for that: its number, and the same with
 * CFS_VFS_OTHER_NODE. Look-ups answer with one of them. An open at a node where it must not be gets
 * -ESTALE: the kernel then looks the path up again and opens the node that it finds.
 *
 * 	- All handles of a node pass through, or none of them.
 * 	- Only one node has handles that pass through, and only one has ordinary ones: these share the
 * 	  kernel's pages.
 * 	- A handle that passes through keeps the content of its open. The next open gets the present
 * 	  one: it passes through if the whole file is of that content and no handle writes; otherwise
 * 	  the file moves to its other node.
 *
 * The kernel looks the path up again only once. So a file that has moved stays at that node, and
 * ordinary, for MOVED_MS: it must not move again between the look-up and the open that follows.
 *
 * At an open the kernel counts later than this file does, and at a close earlier: it never sees a
 * mixture of handles that is not allowed here.
 *
 * A backing id belongs to the connection. It is recorded in the handoff state before the kernel is
 * told of it, and closed after the last handle. After a death, the next process closes recorded ids
 * that no handle needs.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "vfs-internal.h"

#define MOVED_MS    2000
#define OTHER(node) ((uint8_t)((node) ^ 1))

static pthread_mutex_t *lock_of(struct cfs_vfs *v, cfs_ino_t ino)
{
	return &v->passthrough.locks[ino % PASSTHROUGH_LOCKS];
}

static struct moved_file *moved_of(struct cfs_vfs *v, cfs_ino_t ino)
{
	return &v->passthrough.moved[ino % PASSTHROUGH_MOVED];
}

/* Called with the inode's lock held. True: the file has moved to *ret_node within MOVED_MS. */
static bool has_moved(struct cfs_vfs *v, cfs_ino_t ino, uint8_t *ret_node)
{
	const struct moved_file *m = moved_of(v, ino);

	if (m->ino != ino || cfs_deadline_passed(m->until))
		return false;
	*ret_node = m->node;
	return true;
}

cfs_ino_t cfs_vfs_node(struct cfs_vfs *v, cfs_ino_t ino)
{
	struct vnode *n;
	uint8_t node = 0;

	if (!cfs_vfs_has_other_nodes(v))
		return ino;
	n = vnode_find(v, ino_in(v, ino));
	if (n) {
		node = atomic_load(&n->passthrough.node);
		vnode_put(n);
	} else {
		pthread_mutex_lock(lock_of(v, ino));
		has_moved(v, ino, &node);
		pthread_mutex_unlock(lock_of(v, ino));
	}
	return node ? ino | CFS_VFS_OTHER_NODE : ino;
}

bool cfs_vfs_has_other_nodes(struct cfs_vfs *v)
{
	return atomic_load_explicit(&v->passthrough.used_other, memory_order_acquire);
}

/* ---- called with the inode's lock held ---- */

static void set_node(struct vnode *n, uint8_t node)
{
	if (atomic_exchange(&n->passthrough.node, node) != node && node)
		atomic_store_explicit(&n->vfs->passthrough.used_other, true, memory_order_release);
}

static void move(struct vnode *n, uint8_t node)
{
	set_node(n, node);
	*moved_of(n->vfs, n->node.key) = (struct moved_file){
		.ino = n->node.key, .node = node, .until = cfs_deadline_in(MOVED_MS)};
	atomic_fetch_add_explicit(&n->vfs->passthrough.moves, 1, memory_order_relaxed);
}

static bool has_passed(const struct vnode_passthrough *p)
{
	return p->passed[0] || p->passed[1];
}

static void note_backing(struct vnode *n, int32_t id)
{
	struct cfs_handoff_inode *mark = atomic_load(&n->mark);

	n->passthrough.backing = id;
	if (mark)
		atomic_store(&mark->backing, (uint32_t)id);
}

/* Called after the last handle that passes through. Returns the file, for cfs_whole_put(). */
static struct cfs_whole_file *end_backing(struct vnode *n)
{
	const struct cfs_vfs_backing *b = n->vfs->passthrough.backing;
	struct cfs_whole_file *w = n->passthrough.whole;

	if (n->passthrough.backing && b)
		b->close(b->arg, n->passthrough.backing);
	note_backing(n, 0);
	n->passthrough.whole = NULL;
	return w;
}

/* Whether handles of this node may begin to pass through. */
static bool may_begin(const struct vnode *n, uint8_t node)
{
	const struct vnode_passthrough *p = &n->passthrough;
	uint8_t moved_to;

	return !p->writers && !p->ordinary[node] && !has_passed(p) &&
	       !has_moved(n->vfs, n->node.key, &moved_to) &&
	       (!n->vfs->conf.handoff || atomic_load(&n->mark));
}

static bool begin(struct vnode *n, const struct cfs_attr *attr, uint64_t asked_ns)
{
	const struct cfs_vfs_backing *b = n->vfs->passthrough.backing;
	struct cfs_whole_file *w = cfs_file_take_whole(vnode_file(n), attr, asked_ns);
	int fd, id;

	if (!w)
		return false;
	fd = cfs_whole_get_fd(w);
	id = fd < 0 ? -EBADF : b->open(b->arg, fd);
	cfs_whole_put_fd(w);
	if (id == -EOPNOTSUPP)
		cfs_data_refuse_whole(n->vfs->conf.data);
	if (id <= 0) {
		cfs_whole_put(w);
		return false;
	}
	n->passthrough.whole = w;
	note_backing(n, id);
	return true;
}

/* Whether the file that passes through on this node has the content that the open must get. */
static bool goes_on(struct vnode *n, uint8_t node, const struct cfs_attr *attr, uint64_t asked_ns)
{
	const struct vnode_passthrough *p = &n->passthrough;

	return p->passed[node] && p->whole && !p->writers &&
	       cfs_file_is_whole(vnode_file(n), attr, asked_ns, p->whole);
}

/* The node that an open has to use. asked: the one in the kernel's request. */
static uint8_t place(const struct vnode *n, uint8_t asked)
{
	const struct vnode_passthrough *p = &n->passthrough;
	uint8_t node = asked;

	if (p->ordinary[0] || p->ordinary[1] || has_passed(p))
		return atomic_load(&p->node);
	has_moved(n->vfs, n->node.key, &node);
	return node;
}

static int admit(struct vnode *n, bool any_node, bool writes, const struct cfs_attr *attr,
		 uint64_t asked_ns, struct handle_passthrough *h)
{
	struct vnode_passthrough *p = &n->passthrough;
	bool enabled = n->vfs->passthrough.backing;
	uint8_t node = place(n, h->node);

	set_node(n, node);
	if (node == h->node || any_node) {
		h->passed = enabled && !writes &&
			    (may_begin(n, node) ? begin(n, attr, asked_ns)
						: goes_on(n, node, attr, asked_ns));
		if (!h->passed && p->passed[node]) {
			node = OTHER(node);
			move(n, node);
		}
	}
	if (node != h->node && !any_node)
		return -ESTALE;
	h->node = node;
	h->writes = writes;
	(h->passed ? p->passed : p->ordinary)[node]++;
	p->writers += writes;
	return 0;
}

/* ---- handles ---- */

/*
 * Before the first handle: no page of the file is locked by a request, nor changed by a mapping. The
 * open that follows drops the pages.
 */
static void lengthen(struct vnode *n, uint8_t node, const struct cfs_attr *attr)
{
	const struct passthrough *p = &n->vfs->passthrough;
	uint64_t length =
		cfs_file_length(vnode_file(n)); /* attr may be older than a truncate here */
	cfs_ino_t ino = n->node.key;

	if (p->lengthen && length && cache_kernel_may_differ(&n->vfs->cache, ino, attr))
		p->lengthen(p->lengthen_arg, node ? ino | CFS_VFS_OTHER_NODE : ino, length);
}

int passthrough_open(struct vnode *n, int flags, const struct cfs_attr *attr, uint64_t asked_ns,
		     bool any_node, struct handle_passthrough *h, int32_t *ret_backing)
{
	struct passthrough *p = &n->vfs->passthrough;
	const struct vnode_passthrough *used = &n->passthrough;
	bool writes = (flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC);
	int r;

	pthread_mutex_lock(lock_of(n->vfs, n->node.key));
	if (!any_node && !(flags & O_TRUNC) && !has_passed(used) && !used->ordinary[0] &&
	    !used->ordinary[1])
		lengthen(n, h->node, attr);
	r = admit(n, any_node, writes, attr, asked_ns, h);
	*ret_backing = r == 0 && h->passed ? n->passthrough.backing : 0;
	pthread_mutex_unlock(lock_of(n->vfs, n->node.key));
	if (r == 0 && h->passed) {
		atomic_fetch_add_explicit(&p->opens, 1, memory_order_relaxed);
		atomic_fetch_add_explicit(&p->open, 1, memory_order_relaxed);
	}
	return r;
}

void passthrough_close(struct vnode *n, const struct handle_passthrough *h)
{
	struct passthrough *p = &n->vfs->passthrough;
	struct cfs_whole_file *w = NULL;

	pthread_mutex_lock(lock_of(n->vfs, n->node.key));
	(h->passed ? n->passthrough.passed : n->passthrough.ordinary)[h->node]--;
	n->passthrough.writers -= h->writes;
	if (h->passed && !has_passed(&n->passthrough))
		w = end_backing(n);
	pthread_mutex_unlock(lock_of(n->vfs, n->node.key));
	if (h->passed)
		atomic_fetch_sub_explicit(&p->open, 1, memory_order_relaxed);
	cfs_whole_put(w);
}

/* The whole file of a restored handle is not open in this process, so no open can join it. */
void passthrough_restore(struct vnode *n, const struct handle_passthrough *h)
{
	pthread_mutex_lock(lock_of(n->vfs, n->node.key));
	if (h->passed)
		move(n, OTHER(h->node));
	else
		set_node(n, h->node);
	(h->passed ? n->passthrough.passed : n->passthrough.ordinary)[h->node]++;
	n->passthrough.writers += h->writes;
	pthread_mutex_unlock(lock_of(n->vfs, n->node.key));
	if (h->passed)
		atomic_fetch_add_explicit(&n->vfs->passthrough.open, 1, memory_order_relaxed);
}

/* ---- the connection ---- */

/* Gives a backing id to a vnode whose restored handles need one. False: none does. */
static bool adopt(struct cfs_vfs *v, cfs_ino_t ino, int32_t id)
{
	struct vnode *n = vnode_find(v, ino);
	bool adopted = false;

	if (!n)
		return false;
	pthread_mutex_lock(lock_of(v, ino));
	if (has_passed(&n->passthrough) && !n->passthrough.backing) {
		note_backing(n, id);
		adopted = true;
	}
	pthread_mutex_unlock(lock_of(v, ino));
	vnode_put(n);
	return adopted;
}

void cfs_vfs_pass_through(struct cfs_vfs *v, const struct cfs_vfs_backing *backing)
{
	struct cfs_handoff_inode *old;
	uint32_t i;

	v->passthrough.backing = backing;
	if (!backing)
		cfs_data_refuse_whole(v->conf.data);
	for (i = 0; backing && i < v->passthrough.n_old; i++) {
		old = cfs_handoff_inode(v->conf.handoff, i);
		if (atomic_load(&old->dirty) == CFS_HANDOFF_LOSS)
			continue;
		if (!adopt(v, atomic_load(&old->ino), (int32_t)atomic_load(&old->backing)))
			backing->close(backing->arg, (int)atomic_load(&old->backing));
		cfs_handoff_remove_inode(v->conf.handoff, old);
	}
	if (backing)
		v->passthrough.n_old = 0;
}

void cfs_vfs_on_longer(struct cfs_vfs *v, cfs_vfs_lengthen_fn *fn, void *arg)
{
	v->passthrough.lengthen = fn;
	v->passthrough.lengthen_arg = arg;
}

void passthrough_init(struct passthrough *p)
{
	size_t i;

	for (i = 0; i < PASSTHROUGH_LOCKS; i++)
		pthread_mutex_init(&p->locks[i], NULL);
}

void passthrough_fini(struct passthrough *p)
{
	size_t i;

	for (i = 0; i < PASSTHROUGH_LOCKS; i++)
		pthread_mutex_destroy(&p->locks[i]);
}
