/* SPDX-License-Identifier: Apache-2.0 */
/*
 * File locks. Each blocking lock waits on a thread of its own: the wait has no deadline, and the
 * unlock that ends it needs a thread of the loop.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/file.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "fuse-internal.h"

#define STOP_TIMEOUT_MS 5000

struct lock_waiter {
	struct call call;
	fuse_ino_t ino;
	uint64_t fh, owner;
	bool posix, wait;
	bool stores;	       /* before it lets others read */
	struct cfs_plock lock; /* flock: the type only */
};

static int set_lock(struct lock_waiter *w, bool wait)
{
	struct call *c = &w->call;
	bool attr_old;
	int r;

	if (w->posix)
		r = cfs_vfs_setlk(c->vfs, &c->ctx, w->fh, w->owner, &w->lock, wait, &attr_old);
	else
		r = cfs_vfs_flock(c->vfs, &c->ctx, w->fh, w->owner,
				  (enum cfs_lock_type)w->lock.type, wait, &attr_old);
	/* A read then has the kernel ask, and drop its pages when length or time differ. */
	if (r == 0 && attr_old)
		drop_inode(c->fuse, w->ino, -1);
	return r;
}

static void waiter_done(struct cfs_fuse *f, bool stores)
{
	pthread_mutex_lock(&f->lock);
	f->n_waiters--;
	f->n_storing -= stores;
	pthread_cond_broadcast(&f->idle);
	pthread_mutex_unlock(&f->lock);
}

static void *run_waiter(void *arg)
{
	struct lock_waiter *w = arg;
	struct cfs_fuse *f = w->call.fuse;
	bool stores = w->stores;
	int r;

	call_take(&w->call);
	r = set_lock(w, w->wait);
	/* The wait was ended for a handover; the kernel resends the request to the next process. */
	if (r == -EINTR && atomic_load(&f->handing_over) && !fuse_req_interrupted(w->call.req))
		call_drop(&w->call);
	else
		reply_status(&w->call, r);
	free(w);
	waiter_done(f, stores);
	return NULL;
}

static int wait_for_lock(const struct lock_waiter *what)
{
	struct cfs_fuse *f = what->call.fuse;
	struct lock_waiter *w;
	pthread_t thread;
	bool room;
	int r;

	pthread_mutex_lock(&f->lock);
	room = f->n_waiters < WAITERS_MAX;
	if (room) {
		f->n_waiters++;
		f->n_storing += what->stores;
	}
	pthread_mutex_unlock(&f->lock);
	if (!room)
		return -ENOLCK;
	w = malloc(sizeof(*w));
	if (w) {
		*w = *what;
		w->call.timed = false;
		r = cfs_thread_start("lock-wait", run_waiter, w, &thread);
		if (r == 0) {
			pthread_detach(thread);
			return 0;
		}
		free(w);
	}
	waiter_done(f, what->stores);
	return -ENOLCK;
}

static void lock(struct lock_waiter *w, bool wait)
{
	int r;

	w->wait = wait;
	w->stores = cfs_vfs_lock_stores(w->call.vfs, w->fh, w->owner,
					(enum cfs_lock_type)w->lock.type, w->posix);
	r = w->stores ? -EAGAIN : set_lock(w, false);
	if (r == -EAGAIN && (wait || w->stores)) {
		r = wait_for_lock(w);
		if (r == 0) {
			call_leave();
			return;
		}
		if (w->lock.type == CFS_LOCK_NONE)
			r = set_lock(w, false);
	}
	reply_status(&w->call, r);
}

void waiters_stop(struct cfs_fuse *f)
{
	cfs_deadline_t deadline = cfs_deadline_in(STOP_TIMEOUT_MS);
	bool ended;

	atomic_store(&f->stopping, true);
	pthread_mutex_lock(&f->lock);
	/* Those that store end at their deadlines. */
	while (f->n_waiters && (f->n_storing || !cfs_deadline_passed(deadline)))
		cfs_cond_wait(&f->idle, &f->lock,
			      f->n_storing ? cfs_deadline_in(STOP_TIMEOUT_MS) : deadline);
	ended = !f->n_waiters;
	pthread_mutex_unlock(&f->lock);
	if (!ended)
		cfs_warn("lock waits did not end: waiters=%u", f->n_waiters);
}

static int to_plock(const struct flock *in, struct cfs_plock *ret)
{
	switch (in->l_type) {
	case F_RDLCK:
		ret->type = CFS_LOCK_READ;
		break;
	case F_WRLCK:
		ret->type = CFS_LOCK_WRITE;
		break;
	case F_UNLCK:
		ret->type = CFS_LOCK_NONE;
		break;
	default:
		return -EINVAL;
	}
	/* Ranges of the kernel are absolute; length 0 means to the end. */
	ret->pid = (uint32_t)in->l_pid;
	ret->start = (uint64_t)in->l_start;
	ret->end = in->l_len ? (uint64_t)in->l_start + (uint64_t)in->l_len - 1 : INT64_MAX;
	return 0;
}

void op_getlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lk)
{
	struct cfs_plock p;
	struct call c;
	int r;

	call_begin(&c, req, "getlk");
	call_args(&c, "%" PRIu64 ",%#" PRIx64 ",%lld,%lld,%d,%#" PRIx64, ino, fi->fh,
		  (long long)lk->l_start, (long long)lk->l_len, lk->l_type, fi->lock_owner);
	r = to_plock(lk, &p);
	if (r == 0)
		r = cfs_vfs_getlk(c.vfs, &c.ctx, fi->fh, fi->lock_owner, &p);
	reply_lock(&c, r, &p);
}

void op_setlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lk,
	      int sleep)
{
	struct lock_waiter w = {.ino = ino, .fh = fi->fh, .owner = fi->lock_owner, .posix = true};
	int r;

	call_begin(&w.call, req, "setlk");
	call_args(&w.call, "%" PRIu64 ",%#" PRIx64 ",%lld,%lld,%d,%#" PRIx64, ino, fi->fh,
		  (long long)lk->l_start, (long long)lk->l_len, lk->l_type, fi->lock_owner);
	r = to_plock(lk, &w.lock);
	if (r < 0)
		reply_status(&w.call, r);
	else
		lock(&w, sleep);
}

void op_flock(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, int op)
{
	struct lock_waiter w = {.ino = ino, .fh = fi->fh, .owner = fi->lock_owner};

	call_begin(&w.call, req, "flock");
	call_args(&w.call, "%" PRIu64 ",%#" PRIx64 ",%d", ino, fi->fh, op);
	switch (op & ~LOCK_NB) {
	case LOCK_SH:
		w.lock.type = CFS_LOCK_READ;
		break;
	case LOCK_EX:
		w.lock.type = CFS_LOCK_WRITE;
		break;
	case LOCK_UN:
		w.lock.type = CFS_LOCK_NONE;
		break;
	default:
		reply_status(&w.call, -EINVAL);
		return;
	}
	lock(&w, !(op & LOCK_NB));
}
