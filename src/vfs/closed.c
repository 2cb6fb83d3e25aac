/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files whose close did not wait for their commit (close=committing). Each keeps its inode open
 * until it is committed: attributes, reads and the handoff state include its bytes. Losses that no
 * handle can report are kept here for an fsync.
 */
#include <errno.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "vfs-internal.h"

void closed_init(struct closed *c)
{
	pthread_mutex_init(&c->lock, NULL);
	c->reported = true;
}

void closed_fini(struct closed *c)
{
	pthread_mutex_destroy(&c->lock);
}

/* Called with the lock held. NULL: no loss of the file is known. */
static struct closed_loss *find(struct closed *c, cfs_ino_t ino)
{
	unsigned i;

	for (i = 0; i < c->n; i++) {
		if (c->loss[i].ino == ino)
			return &c->loss[i];
	}
	return NULL;
}

/* Called with the lock held. mark: of an earlier process, or NULL. */
static void add(struct cfs_vfs *v, cfs_ino_t ino, struct cfs_handoff_inode *mark)
{
	struct closed *c = &v->closed;

	atomic_fetch_add(&c->n_lost, 1);
	if (find(c, ino) || c->n == CLOSED_LOSSES) {
		cfs_handoff_remove_inode(v->conf.handoff, mark);
		return;
	}
	if (!mark)
		mark = cfs_handoff_add_inode(v->conf.handoff, ino);
	if (mark)
		atomic_store(&mark->dirty, CFS_HANDOFF_LOSS);
	c->loss[c->n++] = (struct closed_loss){.ino = ino, .mark = mark};
}

void closed_lost(struct cfs_vfs *v, cfs_ino_t ino, int err)
{
	struct closed *c = &v->closed;

	pthread_mutex_lock(&c->lock);
	c->seq++;
	c->err = err;
	c->reported = false;
	if (ino)
		add(v, ino, NULL);
	pthread_mutex_unlock(&c->lock);
	if (v->conf.handoff)
		atomic_store(&cfs_handoff_header(v->conf.handoff)->closed_lost, 1);
}

void closed_restore(struct cfs_vfs *v)
{
	uint32_t i, n = atomic_load(&cfs_handoff_header(v->conf.handoff)->n_marked);
	struct cfs_handoff_inode *m;
	CFS_LOCK_GUARD(&v->closed.lock);

	for (i = 0; i < n; i++) {
		m = cfs_handoff_inode(v->conf.handoff, i);
		if (atomic_load(&m->ino) && atomic_load(&m->dirty) == CFS_HANDOFF_LOSS)
			add(v, atomic_load(&m->ino), m);
	}
}

/* The file is committed, or has failed. */
static void ended(void *arg, int err)
{
	struct vnode *n = arg;
	struct cfs_vfs *v = n->vfs;
	struct cfs_ctx ctx = internal_ctx(v);
	struct cfs_attr attr = {.nlink = 1};
	int r = err < 0 ? cfs_meta_getattr(v->conf.meta, &ctx, n->node.key, &attr) : 0;

	/* Data of a file without a name is not counted as lost. */
	if (err < 0 && r != -ENOENT && attr.nlink) {
		cfs_err("data of a closed file was not stored, the next fsync of it or of a "
			"directory says so: inode=%llu error=%s",
			(unsigned long long)n->node.key, cfs_errname(err));
		closed_lost(v, n->node.key, err);
	}
	vnode_put(n);
}

int closed_add(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct handle *h)
{
	uint32_t err_seq = atomic_load(&h->err_seq);
	struct vnode *n = h->vnode;
	bool room;
	int r;

	pthread_mutex_lock(&v->closed.lock);
	room = v->closed.n < CLOSED_LOSSES / 2;
	pthread_mutex_unlock(&v->closed.lock);
	if (!room)
		return cfs_file_flush(vnode_file(n), ctx, err_seq);
	r = cfs_file_flush_later(vnode_file(vnode_ref(n)), ctx, err_seq, ended, n);
	if (r <= 0)
		vnode_put(n);
	return r < 0 ? r : 0;
}

uint32_t closed_err_seq(struct cfs_vfs *v)
{
	struct closed *c = &v->closed;
	CFS_LOCK_GUARD(&c->lock);

	return c->reported ? c->seq : c->seq - 1;
}

int closed_take_error(struct cfs_vfs *v, uint32_t *err_seq)
{
	struct closed *c = &v->closed;
	CFS_LOCK_GUARD(&c->lock);

	if (*err_seq == c->seq)
		return 0;
	*err_seq = c->seq;
	c->reported = true;
	if (v->conf.handoff)
		atomic_store(&cfs_handoff_header(v->conf.handoff)->closed_lost, 0);
	return c->err;
}

bool closed_take_loss(struct cfs_vfs *v, cfs_ino_t ino)
{
	struct closed *c = &v->closed;
	struct closed_loss *loss;

	if (!atomic_load(&c->n_lost))
		return false;
	pthread_mutex_lock(&c->lock);
	loss = find(c, ino);
	if (loss) {
		cfs_handoff_remove_inode(v->conf.handoff, loss->mark);
		*loss = c->loss[--c->n];
	}
	pthread_mutex_unlock(&c->lock);
	return loss;
}

void closed_await(struct cfs_vfs *v, const struct cfs_ctx *ctx)
{
	if (cfs_data_has_closed(v->conf.data))
		cfs_data_await_closed(v->conf.data, ctx->deadline);
}

/* The inode of a name. 0: an error, which the rename will report. */
static cfs_ino_t ino_of(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t parent,
			const char *name, size_t len)
{
	struct cfs_ctx own = permitted(ctx);
	struct cfs_entry e;

	return cfs_meta_lookup(v->conf.meta, &own, parent, name, len, &e) == 0 ? e.ino : 0;
}

int closed_before_rename(struct cfs_vfs *v, const struct cfs_ctx *ctx, const struct cfs_rename *req)
{
	bool exchange = req->flags & CFS_RENAME_EXCHANGE;
	cfs_ino_t ino, other;
	auto_vnode struct vnode *n = NULL;
	struct cfs_file *file;
	int r = 0;

	if ((req->flags & CFS_RENAME_NOREPLACE) ||
	    (!cfs_data_has_closed(v->conf.data) && !atomic_load(&v->closed.n_lost)))
		return 0;
	if (exchange)
		r = cfs_data_await_closed(v->conf.data, ctx->deadline);
	other = r == 0 ? ino_of(v, ctx, req->dst_parent, req->dst_name, req->dst_len) : 0;
	if (!other)
		return r;
	ino = ino_of(v, ctx, req->src_parent, req->src_name, req->src_len);
	if ((ino && closed_take_loss(v, ino)) || (exchange && closed_take_loss(v, other)))
		return -EIO;
	if (exchange)
		return 0;
	n = ino ? vnode_find(v, ino) : NULL;
	file = n ? vnode_file(n) : NULL;
	return file ? cfs_file_flush(file, ctx, cfs_file_err_seq(file)) : 0;
}
