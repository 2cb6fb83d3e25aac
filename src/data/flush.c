/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting until slices are committed. The waiting thread does the work that it can do itself: a
 * small file is put and committed without another thread being woken.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/activity.h"
#include "base/cleanup.h"
#include "data-internal.h"

/* Claims the tail that needs an upload. *ret_only: there is no second one. */
static struct cfs_wslice *claim_tail(struct cfs_file *f, bool *ret_only)
{
	struct cfs_wslice *s, *first = NULL;

	*ret_only = true;
	TAILQ_FOREACH(s, &f->slices, in_file)
	{
		if (!cfs_wslice_due(s))
			continue;
		if (first) {
			*ret_only = false;
			break;
		}
		first = s;
	}
	if (first)
		first->claimed = true;
	return first;
}

/* Claims one chunk that can commit; workers get the others. */
static struct cfs_chunk *claim_chunk(struct cfs_file *f)
{
	struct cfs_chunk *mine = NULL;
	struct cfs_wslice *s;

	TAILQ_FOREACH(s, &f->slices, in_file)
	{
		if (s != TAILQ_FIRST(&s->chunk->pending) || !cfs_chunk_due(s->chunk))
			continue;
		if (mine) {
			cfs_chunk_kick(s->chunk);
			continue;
		}
		mine = s->chunk;
		mine->committing = true;
	}
	return mine;
}

/* Does one piece of work, if there is any. */
static bool flush_step(struct cfs_file *f, cfs_deadline_t deadline)
{
	struct cfs_wslice *s;
	struct cfs_chunk *c;
	bool only;

	s = claim_tail(f, &only);
	c = s ? NULL : claim_chunk(f);
	if (!s && !c)
		return false;
	pthread_mutex_unlock(&f->lock);
	if (s)
		cfs_wslice_upload(s, only, deadline);
	else
		cfs_chunk_commit(c, deadline);
	pthread_mutex_lock(&f->lock);
	return true;
}

void cfs_file_await_commit(const struct cfs_file *f, uint64_t slice)
{
	char text[64];

	snprintf(text, sizeof(text), "inode %" PRIu64 " slice %" PRIu64, f->node.key, slice);
	cfs_activity_wait(CFS_WAIT_COMMIT, slice, text);
}

int cfs_file_settle(struct cfs_file *f, cfs_deadline_t deadline)
{
	struct cfs_wslice *s;
	uint32_t late;
	uint64_t target;
	int r = 0;
	CFS_LOCK_GUARD(&f->lock);

	target = f->seq;
	late = f->late_seq;
	f->settling++;
	cfs_file_freeze(f);
	cfs_closing_release(f);
	while ((s = TAILQ_FIRST(&f->slices)) && s->seq <= target && r == 0) {
		/* A failed block may be kept and retried for longer than any caller would wait. */
		if (cfs_deadline_passed(deadline) || f->late_seq != late) {
			r = -EIO;
		} else if (!flush_step(f, deadline)) {
			f->waiters++;
			f->flush_idle++;
			cfs_file_await_commit(f, s->id);
			cfs_cond_wait(&f->cond, &f->lock, deadline);
			cfs_activity_wait_end();
			f->flush_idle--;
			f->waiters--;
		}
	}
	f->settling--;
	/* Returns the work this thread had claimed to the flushers. */
	if (f->n_pending)
		cfs_file_kick(f);
	return r;
}

uint32_t cfs_file_err_seq(struct cfs_file *f)
{
	CFS_LOCK_GUARD(&f->lock);

	return f->err_seq;
}

/* Commits, then returns the oldest error since *err_seq, and moves that behind the newest. */
static int settle_and_check(struct cfs_file *f, const struct cfs_ctx *ctx, uint32_t *err_seq)
{
	int r = cfs_file_settle(f, ctx->deadline);
	uint32_t n;
	CFS_LOCK_GUARD(&f->lock);

	n = f->err_seq - *err_seq;
	/* An error after a close, of which no other handle than its own may have been told. */
	if (!n && f->closing)
		n = f->err_seq - f->closing->err_seq;
	if (n)
		r = f->errs[(f->err_seq - CFS_MIN(n, CFS_FILE_ERRORS)) % CFS_FILE_ERRORS];
	*err_seq = f->err_seq;
	return r;
}

int cfs_file_flush(struct cfs_file *f, const struct cfs_ctx *ctx, uint32_t err_seq)
{
	return settle_and_check(f, ctx, &err_seq);
}

int cfs_file_fsync(struct cfs_file *f, const struct cfs_ctx *ctx, uint32_t *err_seq)
{
	struct cfs_data *d = f->data;
	int r;

	r = settle_and_check(f, ctx, err_seq);
	if (r < 0)
		return r;
	r = cfs_store_sync(d->conf.store, ctx->deadline);
	if (r < 0)
		return r;
	r = cfs_file_suspect(f, ctx);
	if (r < 0)
		return r;
	return cfs_meta_sync(d->conf.meta, ctx);
}

bool cfs_file_dirty(struct cfs_file *f)
{
	CFS_LOCK_GUARD(&f->lock);

	return f->n_pending > 0;
}

void cfs_file_set_mark(struct cfs_file *f, _Atomic uint32_t *mark)
{
	pthread_mutex_lock(&f->lock);
	f->mark = mark;
	atomic_store(mark, f->n_pending || f->lost);
	pthread_mutex_unlock(&f->lock);
}

void cfs_file_drop_mark(struct cfs_file *f, _Atomic uint32_t *mark)
{
	pthread_mutex_lock(&f->lock);
	if (f->mark == mark)
		f->mark = NULL;
	pthread_mutex_unlock(&f->lock);
}
