/* SPDX-License-Identifier: Apache-2.0 */
/*
 * File locks. The kernel tells when a process closes a descriptor (flush) and when the last
 * descriptor of an open file is closed (release), but not that an OFD lock ends with the latter. So
 * each handle knows the owners that have set POSIX locks through it, and its release unlocks for
 * all of them.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "vfs-internal.h"

struct lock_owner {
	struct lock_owner *next;
	uint64_t owner;
};

static const struct cfs_plock everything = {.type = CFS_LOCK_NONE, .end = INT64_MAX};

/* The kernel's owner is per descriptor table; one file opened twice needs two owners. */
static uint64_t flock_owner(uint64_t owner, uint64_t fh)
{
	return owner ^ fh;
}

/* One request for a lock, or for its end. */
struct change {
	bool posix;
	uint64_t owner;
	struct cfs_plock lock; /* flock: the type only */
};

static bool has_some(struct cfs_vfs *v, struct vnode *n, const struct change *c)
{
	return cfs_meta_holds_lock(v->conf.meta, cfs_meta_sid(v->conf.meta), n->node.key, c->owner,
				   c->posix);
}

/*
 * Others may read after an unlock, and after a shared lock that replaces an exclusive one. Then they
 * must find what was written under the lock.
 */
static bool lets_others_read(struct cfs_vfs *v, struct vnode *n, const struct change *c)
{
	return c->lock.type != CFS_LOCK_WRITE && has_some(v, n, c);
}

/* An error is left to the writers' fsync. */
static void store(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct vnode *n)
{
	struct cfs_file *file = vnode_file(n);

	closed_await(v, ctx);
	if (cfs_file_dirty(file))
		cfs_file_flush(file, ctx, cfs_file_err_seq(file));
}

/* The file as the metadata has it now. A wait for the lock may have taken the time of the request. */
static int refresh(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct vnode *n,
		   bool *ret_attr_old)
{
	uint64_t asked_ns = cfs_now_ns(), seq = cache_seq(&v->cache);
	cfs_ino_t ino = n->node.key;
	struct cfs_ctx own = *ctx;
	struct cfs_attr attr;
	int r;

	if (v->conf.read_only) /* such a lock is known to this mount only */
		return 0;
	own.deadline = cfs_deadline_in(v->conf.io_timeout_ms);
	r = cfs_meta_getattr(v->conf.meta, &own, ino, &attr);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	r = vnode_attach(n, &attr, asked_ns);
	if (r < 0)
		return r;
	*ret_attr_old = cache_kernel_may_differ(&v->cache, ino, &attr);
	if (*ret_attr_old)
		cache_forget(&v->cache, ino);
	accept_attr(v, ino, seq, asked_ns, &attr);
	return 0;
}

static int set_lock(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino,
		    const struct change *c, bool wait)
{
	if (c->posix)
		return cfs_meta_setlk(v->conf.meta, ctx, ino, c->owner, &c->lock, wait);
	return cfs_meta_flock(v->conf.meta, ctx, ino, c->owner, (enum cfs_lock_type)c->lock.type,
			      wait);
}

/*
 * A lock that is granted without a refresh is given back, with all that the owner has. An owner that
 * had a lock before keeps both.
 */
static int change_lock(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct vnode *n,
		       struct change c, bool wait, bool *ret_attr_old)
{
	bool had = has_some(v, n, &c);
	int r;

	if (lets_others_read(v, n, &c))
		store(v, ctx, n);
	r = set_lock(v, ctx, n->node.key, &c, wait);
	if (r < 0 || c.lock.type == CFS_LOCK_NONE)
		return r;
	r = refresh(v, ctx, n, ret_attr_old);
	c.lock = everything;
	if (r < 0 && !had)
		set_lock(v, ctx, n->node.key, &c, false);
	return r;
}

bool cfs_vfs_lock_stores(struct cfs_vfs *v, uint64_t fh, uint64_t owner, enum cfs_lock_type type,
			 bool posix)
{
	struct handle *h = handle_find(&v->handles, fh, HANDLE_FILE);
	struct change c = {
		.posix = posix,
		.owner = posix ? owner : flock_owner(owner, fh),
		.lock.type = type,
	};

	return h && lets_others_read(v, h->vnode, &c) &&
	       (cfs_vfs_has_closed(v) || cfs_file_dirty(vnode_file(h->vnode)));
}

int cfs_vfs_flock(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh, uint64_t owner,
		  enum cfs_lock_type type, bool wait, bool *ret_attr_old)
{
	struct handle *h = handle_find(&v->handles, fh, HANDLE_FILE);

	*ret_attr_old = false;
	if (!h)
		return -EBADF;
	if (type != CFS_LOCK_NONE && lock_lost(h))
		return -EIO;
	owner = flock_owner(owner, fh);
	/* Recorded before the lock is taken: the release must find it, whatever happens between. */
	if (type != CFS_LOCK_NONE) {
		atomic_store(&h->flock_owner, owner);
		atomic_store(&h->flocked, true);
		if (h->record) {
			atomic_store(&h->record->flock_owner, owner);
			atomic_store(&h->record->flocked, 1);
		}
	}
	return change_lock(v, ctx, h->vnode, (struct change){.owner = owner, .lock.type = type},
			   wait, ret_attr_old);
}

static void lose_lock(struct handle *h)
{
	atomic_store(&h->lock_lost, true);
	if (h->record)
		atomic_store(&h->record->lock_lost, 1);
}

/* Replaces an owner in the handoff state by another; 0: a free slot. */
static void replace_owner(struct cfs_handoff_handle *rec, uint64_t from, uint64_t to)
{
	int i;

	if (!rec)
		return;
	atomic_store(&rec->plocked, 1);
	for (i = 0; i < CFS_HANDOFF_OWNERS; i++) {
		if (atomic_load(&rec->plock_owners[i]) == from) {
			atomic_store(&rec->plock_owners[i], to);
			return;
		}
	}
}

int locks_restore(struct cfs_vfs *v, struct handle *h)
{
	uint64_t sid = atomic_load(&cfs_handoff_header(v->conf.handoff)->sid);
	struct cfs_handoff_handle *rec = h->record;
	struct lock_owner *o;
	uint64_t owner;
	int i;

	atomic_store(&h->flock_owner, atomic_load(&rec->flock_owner));
	atomic_store(&h->flocked, atomic_load(&rec->flocked));
	if (atomic_load(&h->flocked))
		cfs_meta_assume_lock(v->conf.meta, rec->ino, atomic_load(&h->flock_owner), false);
	if (atomic_load(&rec->plocked))
		atomic_store(&h->vnode->plocked, true);
	for (i = 0; i < CFS_HANDOFF_OWNERS; i++) {
		owner = atomic_load(&rec->plock_owners[i]);
		if (!owner)
			continue;
		o = malloc(sizeof(*o));
		if (!o)
			return -ENOMEM;
		*o = (struct lock_owner){h->lock_owners, owner};
		h->lock_owners = o;
		cfs_meta_assume_lock(v->conf.meta, rec->ino, owner, true);
	}
	/* Which locks the previous process had is not known any more when their session has ended. */
	if (atomic_load(&rec->lock_lost) ||
	    (sid != cfs_meta_sid(v->conf.meta) && (atomic_load(&h->flocked) || h->lock_owners)))
		lose_lock(h);
	return 0;
}

static bool has_lock(struct cfs_vfs *v, struct handle *h, cfs_ino_t ino, uint64_t sid)
{
	struct lock_owner *o;
	CFS_LOCK_GUARD(&v->lock_owners_lock);

	if (atomic_load(&h->flocked) &&
	    cfs_meta_holds_lock(v->conf.meta, sid, ino, atomic_load(&h->flock_owner), false))
		return true;
	for (o = h->lock_owners; o; o = o->next)
		if (cfs_meta_holds_lock(v->conf.meta, sid, ino, o->owner, true))
			return true;
	return false;
}

void locks_session_ended(struct cfs_vfs *v, uint64_t sid)
{
	struct cfs_handoff_header *header =
		v->conf.handoff ? cfs_handoff_header(v->conf.handoff) : NULL;
	enum handle_kind kind;
	struct handle *h;
	struct vnode *n;
	uint32_t pos = 0;
	uint64_t fh, lost = 0;

	/* First of all: the next process must not go on with it. */
	if (header)
		atomic_store(&header->ended_sid, sid);
	while ((fh = handle_next(&v->handles, &pos, &kind)) != 0) {
		n = kind == HANDLE_FILE ? vnode_of_handle(v, fh) : NULL;
		if (!n)
			continue;
		h = handle_find(&v->handles, fh, HANDLE_FILE);
		if (h && has_lock(v, h, n->node.key, sid) && !lock_lost(h)) {
			lose_lock(h);
			lost++;
		}
		vnode_put(n);
	}
	if (header)
		atomic_store(&header->sid, cfs_meta_sid(v->conf.meta));
	if (lost)
		cfs_err("open files have lost their locks, they fail with EIO until they are "
			"closed: handles=%llu",
			(unsigned long long)lost);
}

static int note_owner(struct cfs_vfs *v, struct handle *h, uint64_t owner)
{
	struct lock_owner *o;
	CFS_LOCK_GUARD(&v->lock_owners_lock);

	for (o = h->lock_owners; o; o = o->next)
		if (o->owner == owner)
			return 0;
	o = malloc(sizeof(*o));
	if (!o)
		return -ENOLCK;
	*o = (struct lock_owner){h->lock_owners, owner};
	h->lock_owners = o;
	replace_owner(h->record, 0, owner);
	return 0;
}

/* Takes the first owner off the list; false: there is none. */
static bool take_owner(struct cfs_vfs *v, struct handle *h, uint64_t *ret)
{
	struct lock_owner *o;

	pthread_mutex_lock(&v->lock_owners_lock);
	o = h->lock_owners;
	if (o) {
		h->lock_owners = o->next;
		*ret = o->owner;
	}
	pthread_mutex_unlock(&v->lock_owners_lock);
	free(o);
	return o;
}

static void forget_owner(struct cfs_vfs *v, struct handle *h, uint64_t owner)
{
	struct lock_owner **p, *o;

	pthread_mutex_lock(&v->lock_owners_lock);
	for (p = &h->lock_owners; *p && (*p)->owner != owner; p = &(*p)->next)
		;
	o = *p;
	if (o) {
		*p = o->next;
		replace_owner(h->record, owner, 0);
	}
	pthread_mutex_unlock(&v->lock_owners_lock);
	free(o);
}

void locks_release(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct handle *h)
{
	cfs_ino_t ino = h->vnode->node.key;
	uint64_t owner;

	if (atomic_load(&h->flocked) || h->lock_owners)
		store(v, ctx, h->vnode);
	if (atomic_load(&h->flocked))
		cfs_meta_flock(v->conf.meta, ctx, ino, atomic_load(&h->flock_owner), CFS_LOCK_NONE,
			       false);
	while (take_owner(v, h, &owner))
		cfs_meta_setlk(v->conf.meta, ctx, ino, owner, &everything, false);
}

/* A process has closed a descriptor of the file. */
void locks_flush(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct handle *h, uint64_t owner)
{
	struct change c = {.posix = true, .owner = owner, .lock = everything};

	if (!atomic_load(&h->vnode->plocked))
		return;
	if (lets_others_read(v, h->vnode, &c))
		store(v, ctx, h->vnode);
	set_lock(v, ctx, h->vnode->node.key, &c, false);
	forget_owner(v, h, owner);
}

int cfs_vfs_setlk(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh, uint64_t owner,
		  const struct cfs_plock *lock, bool wait, bool *ret_attr_old)
{
	struct handle *h = handle_find(&v->handles, fh, HANDLE_FILE);
	int r;

	*ret_attr_old = false;
	if (!h)
		return -EBADF;
	if (lock->type != CFS_LOCK_NONE && lock_lost(h))
		return -EIO;
	/* As in cfs_vfs_flock(). */
	if (lock->type != CFS_LOCK_NONE) {
		r = note_owner(v, h, owner);
		if (r < 0)
			return r;
		atomic_store(&h->vnode->plocked, true);
	}
	return change_lock(v, ctx, h->vnode,
			   (struct change){.posix = true, .owner = owner, .lock = *lock}, wait,
			   ret_attr_old);
}

int cfs_vfs_getlk(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh, uint64_t owner,
		  struct cfs_plock *lock)
{
	struct handle *h = handle_find(&v->handles, fh, HANDLE_FILE);

	if (!h || lock_lost(h))
		return h ? -EIO : -EBADF;
	return cfs_meta_getlk(v->conf.meta, ctx, h->vnode->node.key, owner, lock);
}
