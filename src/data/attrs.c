/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mode, owner and times that are stored with the data. tar, rsync, cp -p and git write a file, set
 * its attributes and close it: all of that is one commit.
 *
 * A change waits in the file until a commit takes it along. Each slice without a commit under way
 * may be that one, so a change is only accepted while there is such a slice. A commit that is
 * repeated takes along what it did at first: its record in the metadata proves that all of it is
 * stored.
 *
 * A time set by utimensat(2) is the mtime of all slices written before, whichever is committed
 * last. A write after it ends that.
 */
#include <errno.h>

#include "base/cleanup.h"
#include "data-internal.h"

static bool waits(const struct cfs_file *f)
{
	return f->waiting.change.set != 0;
}

void cfs_attrs_keep(struct cfs_file *f, uint32_t set)
{
	uint32_t before = f->waiting.change.set;

	f->waiting.change.set &= set;
	if (before && !waits(f))
		atomic_fetch_sub(&f->data->changed_files, 1);
}

bool cfs_attrs_may_commit(const struct cfs_file *f)
{
	return !f->carrying && !(waits(f) && f->n_sent);
}

void cfs_attrs_begin(struct cfs_wslice *s)
{
	struct cfs_file *f = s->file;

	if (s->sent)
		return;
	s->sent = true;
	f->n_sent++;
	s->carries = waits(f);
	if (!s->carries)
		return;
	s->attrs = f->waiting;
	f->carrying = true;
}

void cfs_attrs_end(struct cfs_wslice *s, bool stored)
{
	struct cfs_file *f = s->file;

	if (!s->sent)
		return;
	f->n_sent--;
	if (!s->carries)
		return;
	f->carrying = false;
	/* Slices that are not committed yet would bring their own times. */
	if (stored && f->waiting.seq == s->attrs.seq)
		cfs_attrs_keep(f, CFS_SET_MTIME);
}

void cfs_attrs_overlay(const struct cfs_file *f, struct cfs_attr *attr)
{
	const struct cfs_waiting_attrs *w = &f->waiting;
	uint32_t set = w->change.set;

	if (set & CFS_SET_MODE)
		attr->mode = w->change.mode;
	if (set & CFS_SET_UID)
		attr->uid = w->change.uid;
	if (set & CFS_SET_GID)
		attr->gid = w->change.gid;
	if (set & CFS_SET_ATIME)
		attr->atime = w->change.atime;
	if (set & CFS_SET_MTIME)
		attr->mtime = w->mtime;
	if (set && cfs_timespec_cmp(w->ctime, attr->ctime) > 0)
		attr->ctime = w->ctime;
}

/* A slice whose commit will take along what is set now. */
static bool has_carrier(const struct cfs_file *f)
{
	const struct cfs_wslice *s;

	TAILQ_FOREACH(s, &f->slices, in_file)
	{
		if (!s->sent && !s->err && s->len)
			return true;
	}
	return false;
}

/* attr: as it was; now: with the change. */
static void note(struct cfs_file *f, uint32_t set, const struct cfs_attr *attr,
		 const struct cfs_attr *now)
{
	struct cfs_waiting_attrs *w = &f->waiting;
	uint32_t what = set & (CFS_SET_MODE | CFS_SET_UID | CFS_SET_GID);

	if (now->mode != attr->mode) /* by chown(2) */
		what |= CFS_SET_MODE;
	if (set & (CFS_SET_ATIME | CFS_SET_ATIME_NOW))
		what |= CFS_SET_ATIME;
	if (set & (CFS_SET_MTIME | CFS_SET_MTIME_NOW))
		what |= CFS_SET_MTIME;
	if (!waits(f))
		atomic_fetch_add(&f->data->changed_files, 1);
	w->change.set |= what;
	if (what & CFS_SET_MODE)
		w->change.mode = now->mode;
	if (what & CFS_SET_UID)
		w->change.uid = now->uid;
	if (what & CFS_SET_GID)
		w->change.gid = now->gid;
	if (what & CFS_SET_ATIME)
		w->change.atime = now->atime;
	if (what & CFS_SET_MTIME)
		w->mtime = now->mtime;
	w->ctime = now->ctime;
	w->seq++;
}

int cfs_file_setattr(struct cfs_file *f, const struct cfs_ctx *ctx, uint32_t set,
		     const struct cfs_attr *in, struct cfs_attr *ret)
{
	struct cfs_attr attr, now;
	int r = -EAGAIN;
	CFS_LOCK_GUARD(&f->lock);

	attr = f->attr;
	cfs_file_overlay(f, &attr);
	now = attr;
	if (has_carrier(f))
		r = cfs_meta_keep_setattr(f->data->conf.meta, ctx, set, in, &now);
	if (r == 0) {
		note(f, set, &attr, &now);
		*ret = now;
	}
	return r;
}

/* A commit under way may store it any moment, and what is set next must not come before. */
static int wait_for_carrier(struct cfs_file *f, cfs_deadline_t deadline)
{
	int r = 0;

	f->waiters++;
	while (f->carrying && r == 0)
		r = cfs_cond_wait(&f->cond, &f->lock, deadline);
	f->waiters--;
	return f->carrying ? -EIO : 0;
}

int cfs_file_store_change(struct cfs_file *f, const struct cfs_ctx *ctx)
{
	struct cfs_ctx own = cfs_ctx_internal(0);
	struct cfs_waiting_attrs w;
	struct cfs_attr attr, now;
	uint32_t set, owner;
	int r;

	pthread_mutex_lock(&f->lock);
	r = wait_for_carrier(f, ctx->deadline);
	w = f->waiting;
	pthread_mutex_unlock(&f->lock);
	set = w.change.set & ~(uint32_t)CFS_SET_MTIME;
	if (r < 0 || !set)
		return r;
	own.deadline = ctx->deadline;
	attr = (struct cfs_attr){.mode = w.change.mode,
				 .uid = w.change.uid,
				 .gid = w.change.gid,
				 .atime = w.change.atime};
	/* The mode last: chown(2) clears set-id bits. */
	owner = set & (CFS_SET_UID | CFS_SET_GID);
	if (owner)
		r = cfs_meta_setattr(f->data->conf.meta, &own, f->node.key, owner, &attr, &now);
	if (r == 0 && set != owner)
		r = cfs_meta_setattr(f->data->conf.meta, &own, f->node.key, set & ~owner, &attr,
				     &now);
	if (r < 0)
		return r;
	pthread_mutex_lock(&f->lock);
	if (f->waiting.seq == w.seq)
		cfs_attrs_keep(f, CFS_SET_MTIME);
	cfs_file_changed(f, &now);
	pthread_mutex_unlock(&f->lock);
	return 0;
}

bool cfs_file_takes_change(struct cfs_file *f)
{
	CFS_LOCK_GUARD(&f->lock);

	return has_carrier(f);
}

uint64_t cfs_data_changed_files(struct cfs_data *d)
{
	return atomic_load(&d->changed_files);
}
