/* SPDX-License-Identifier: Apache-2.0 */
/* The open handles of a previous process, under the numbers that the kernel knows. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/thread.h"
#include "vfs-internal.h"

/* Each open file is a round trip to the metadata, so many are restored by several threads. */
#define THREADS_MAX 32u
#define PER_THREAD  32u /* handles */

static int restore_file(struct cfs_vfs *v, struct handle *h, cfs_ino_t ino)
{
	struct vnode *n = vnode_get(v, ino);
	struct cfs_ctx ctx = internal_ctx(v);
	uint64_t asked_ns = cfs_now_ns();
	struct cfs_attr attr;
	int r = 0;

	if (!n)
		return -ENOMEM;
	if (!vnode_file(n)) {
		r = cfs_meta_getattr(v->conf.meta, &ctx, ino, &attr);
		if (r == 0 && attr.type != CFS_TYPE_FILE)
			r = -ENOENT;
		if (r == 0)
			r = vnode_attach(n, &attr, asked_ns);
		if (r == 0 && attr.nlink == 0)
			atomic_store(&n->sustained, true);
	}
	h->vnode = n;
	if (atomic_load(&n->sustained) && (h->flags & __O_TMPFILE))
		atomic_store(&n->unnamed, true);
	if (r == 0)
		r = locks_restore(v, h);
	if (r < 0) {
		vnode_put(n);
		return r;
	}
	vnode_count(n, h->flags, 1);
	passthrough_restore(n, &h->passthrough);
	atomic_store(&h->err_seq, cfs_file_err_seq(vnode_file(n)));
	atomic_store(&h->opened_noted, true); /* its ctime is not known */
	return 0;
}

static int restore_kind(struct cfs_vfs *v, struct handle *h, cfs_ino_t ino, enum handle_kind kind)
{
	switch (kind) {
	case HANDLE_FILE:
		return restore_file(v, h, ino);
	case HANDLE_DIR:
		atomic_store(&h->err_seq, closed_err_seq(v));
		return dir_restore(v, h, ino);
	case HANDLE_SPECIAL:
		return ino_is_special(ino) ? special_restore(v, h, ino) : -ENOENT;
	default:
		return -ENOENT;
	}
}

/* The share of one thread: no two threads restore handles of the same inode. */
struct part {
	struct cfs_vfs *v;
	uint32_t n;		/* records of handles */
	unsigned number, of;	/* the inodes that leave `number` when divided by `of` */
	uint64_t handles, gone; /* counts of those restored, and of those whose inode is gone */
	_Atomic int *failed;	/* shared by the parts: the first error, which ends all of them */
	pthread_t thread;
};

/* A handle that cannot be restored answers as stale. */
static int restore(struct part *p, struct cfs_handoff_handle *rec)
{
	struct cfs_vfs *v = p->v;
	uint64_t fh = atomic_load(&rec->fh);
	struct handle *h = handle_claim(&v->handles, fh);
	int r = -ENOENT;

	if (h && h->record == rec) {
		h->flags = (int)rec->flags;
		if (cfs_handoff_header(v->conf.handoff)->version == CFS_HANDOFF_VERSION_PASSTHROUGH)
			h->passthrough = (struct handle_passthrough){
				.node = rec->passthrough & CFS_HANDOFF_OTHER_NODE,
				.passed = rec->passthrough & CFS_HANDOFF_PASSED,
				.writes = (rec->flags & O_ACCMODE) != O_RDONLY,
			};
		r = restore_kind(v, h, rec->ino, (enum handle_kind)rec->kind);
	}
	if (r == 0) {
		atomic_store_explicit(&h->kind, rec->kind, memory_order_release);
		p->handles++;
		return 0;
	}
	if (h)
		atomic_fetch_sub(&v->handles.in_use, 1);
	if (r != -ENOENT && r != -EBUSY)
		return r;
	atomic_store(&rec->gen, (uint32_t)(fh >> 32) + 1);
	atomic_store(&rec->fh, 0);
	p->gone++;
	return 0;
}

/* Skips the handles that an earlier call of cfs_vfs_restore() has restored. */
static void *restore_part(void *arg)
{
	struct part *p = arg;
	struct cfs_handoff_handle *rec;
	int r = 0, none = 0;
	uint64_t fh;
	uint32_t i;

	for (i = 0; i < p->n && r == 0 && !atomic_load(p->failed); i++) {
		rec = cfs_handoff_handle(p->v->conf.handoff, i);
		fh = atomic_load(&rec->fh);
		if (fh && rec->ino % p->of == p->number && !handle_find_any(&p->v->handles, fh))
			r = restore(p, rec);
	}
	if (r < 0)
		atomic_compare_exchange_strong(p->failed, &none, r);
	return NULL;
}

static unsigned count_parts(struct cfs_vfs *v, uint32_t n)
{
	uint32_t i, in_use = 0;

	for (i = 0; i < n; i++)
		in_use += atomic_load(&cfs_handoff_handle(v->conf.handoff, i)->fh) != 0;
	return CFS_MAX(CFS_MIN(in_use / PER_THREAD, THREADS_MAX), 1u);
}

/* Without memory for a thread, this one takes its part. */
static int restore_all(struct cfs_vfs *v, uint32_t n, struct cfs_vfs_restored *ret)
{
	unsigned of = count_parts(v, n), started, i;
	struct part part[THREADS_MAX];
	_Atomic int failed = 0;

	for (i = 0; i < of; i++)
		part[i] = (struct part){.v = v, .n = n, .number = i, .of = of, .failed = &failed};
	for (started = 1; started < of; started++)
		if (cfs_thread_start("restore", restore_part, &part[started],
				     &part[started].thread) < 0)
			break;
	restore_part(&part[0]);
	for (i = started; i < of; i++)
		restore_part(&part[i]);
	for (i = 1; i < started; i++)
		pthread_join(part[i].thread, NULL);
	for (i = 0; i < of; i++) {
		ret->handles += part[i].handles;
		ret->gone += part[i].gone;
	}
	return atomic_load(&failed);
}

/* Restores the positions of directory readers, and unlocks to be done; frees the other records. */
static void resume_dirs(struct cfs_vfs *v)
{
	struct cfs_handoff_unlock *u;
	struct cfs_handoff_dir *d;
	struct handle *h;
	uint32_t i;

	for (i = 0; (d = cfs_handoff_dir(v->conf.handoff, i)) != NULL; i++) {
		u = cfs_handoff_as_unlock(d);
		if (u) {
			cfs_meta_unlock_again(v->conf.meta, u->ino, u->owner, u->posix, u);
			continue;
		}
		h = handle_find(&v->handles, atomic_load(&d->fh), HANDLE_DIR);
		if (h)
			dir_resume(h, d);
		else
			cfs_handoff_remove_dir(v->conf.handoff, d);
	}
}

static int begin(struct cfs_vfs *v, uint32_t n, struct cfs_vfs_restored *ret)
{
	size_t max = n + (size_t)atomic_load(&cfs_handoff_header(v->conf.handoff)->n_marked);
	int r = handles_reserve(&v->handles);
	size_t i;

	if (r < 0)
		return r;
	/* Without memory for the list, the kernel shows lost data until it asks for attributes. */
	ret->lost_inos = max ? malloc(max * sizeof(*ret->lost_inos)) : NULL;
	ret->lost = cfs_handoff_mark_lost(v->conf.handoff, ret->lost_inos, ret->lost_inos ? max : 0,
					  &ret->closed);
	ret->n_lost_inos = ret->lost_inos ? ret->lost + ret->closed : 0;
	v->passthrough.n_old = atomic_load(&cfs_handoff_header(v->conf.handoff)->n_marked);
	closed_restore(v);
	for (i = 0; i < ret->closed; i++)
		closed_lost(v, ret->lost_inos ? ret->lost_inos[ret->lost + i] : 0, -EIO);
	ret->begun = true;
	return 0;
}

int cfs_vfs_restore(struct cfs_vfs *v, struct cfs_vfs_restored *ret)
{
	struct cfs_handoff_header *header = cfs_handoff_header(v->conf.handoff);
	uint32_t n = atomic_load(&header->n_used);
	int r;

	if (n > CFS_HANDOFF_HANDLES)
		return -EPROTO;
	r = ret->begun ? 0 : begin(v, n, ret);
	if (r == 0)
		r = restore_all(v, n, ret);
	if (r < 0)
		return r;
	handles_free_rest(&v->handles);
	resume_dirs(v);
	atomic_store(&header->sid, cfs_meta_sid(v->conf.meta));
	return 0;
}

/*
 * Undoes what dead processes have made for requests and the kernel does not know: handles of those
 * that were answered with an error (the standby has marked others), and files without a name and a
 * handle.
 */
static void undo_requests(struct cfs_vfs *v)
{
	struct cfs_handoff_request *r;
	uint32_t pos = 0, flags;
	struct cfs_ctx ctx;
	uint64_t fh;

	while ((r = cfs_handoff_next_request(v->conf.handoff, &pos)) != NULL) {
		ctx = internal_ctx(v);
		fh = atomic_load(&r->fh);
		flags = atomic_load(&r->flags);
		if (!fh && (flags & CFS_HANDOFF_UNNAMED) && atomic_load(&r->ino)) {
			file_drop_unnamed(v, &ctx, atomic_load(&r->ino));
			atomic_store(&r->ino, 0);
		}
		if (!(flags & CFS_HANDOFF_FAILED))
			continue;
		if (fh)
			cfs_handoff_released(v->conf.handoff, fh);
		cfs_handoff_end_request(r);
	}
}

void cfs_vfs_close_released(struct cfs_vfs *v)
{
	enum handle_kind kind;
	struct cfs_ctx ctx;
	uint32_t pos = 0;
	uint64_t fh;

	undo_requests(v);
	while ((fh = handle_next(&v->handles, &pos, &kind)) != 0) {
		struct cfs_handoff_handle *rec =
			cfs_handoff_handle(v->conf.handoff, (uint32_t)fh - 1);

		if (!rec || !atomic_load(&rec->released))
			continue;
		ctx = internal_ctx(v);
		if (kind == HANDLE_DIR)
			cfs_vfs_releasedir(v, &ctx, fh);
		else
			cfs_vfs_release(v, &ctx, fh);
	}
}
