/* SPDX-License-Identifier: Apache-2.0 */
/* Length and attributes of a file; truncate, fallocate, copy and seek. */
#include <errno.h>
#include <unistd.h>

#include "base/activity.h"
#include "base/cleanup.h"
#include "data-internal.h"

/* ---- length and attributes ---- */

uint64_t cfs_file_length(struct cfs_file *f)
{
	CFS_LOCK_GUARD(&f->lock);

	return f->length;
}

void cfs_file_overlay(const struct cfs_file *f, struct cfs_attr *attr)
{
	struct timespec newest;

	attr->length = f->length;
	if (f->n_pending) {
		newest = f->written;
		if (cfs_timespec_cmp(newest, attr->mtime) > 0)
			attr->mtime = newest;
		if (cfs_timespec_cmp(newest, attr->ctime) > 0)
			attr->ctime = newest;
	}
	if (cfs_timespec_cmp(f->attr.ctime, attr->ctime) > 0) {
		attr->mtime = f->attr.mtime;
		attr->ctime = f->attr.ctime;
	}
	cfs_attrs_overlay(f, attr);
}

void cfs_file_overlay_attr(struct cfs_file *f, struct cfs_attr *attr)
{
	pthread_mutex_lock(&f->lock);
	cfs_file_overlay(f, attr);
	pthread_mutex_unlock(&f->lock);
}

void cfs_file_last_attr(struct cfs_file *f, struct cfs_attr *ret)
{
	pthread_mutex_lock(&f->lock);
	*ret = f->attr;
	cfs_file_overlay(f, ret);
	pthread_mutex_unlock(&f->lock);
	ret->nlink = 0;
}

void cfs_file_compute_length(struct cfs_file *f)
{
	struct cfs_wslice *s;
	uint64_t end;

	f->length = f->attr.length;
	TAILQ_FOREACH(s, &f->slices, in_file)
	{
		end = s->chunk->indx * CFS_CHUNK_SIZE + s->pos + s->len;
		f->length = CFS_MAX(f->length, end);
	}
}

/* Commits of several chunks may be answered out of order. */
void cfs_file_changed(struct cfs_file *f, const struct cfs_attr *attr)
{
	uint64_t length = CFS_MAX(f->attr.length, attr->length);

	if (cfs_timespec_cmp(attr->ctime, f->attr.ctime) >= 0)
		f->attr = *attr;
	f->attr.length = length;
	f->own_ns = cfs_now_ns();
	f->own_mark++;
	cfs_file_compute_length(f);
}

/* ---- serialised changes ---- */

void cfs_file_wake(struct cfs_file *f)
{
	if (f->waiters)
		pthread_cond_broadcast(&f->cond);
}

int cfs_file_op_begin(struct cfs_file *f, cfs_deadline_t deadline)
{
	int r = 0;
	CFS_LOCK_GUARD(&f->lock);

	f->waiters++;
	if (f->op) {
		cfs_activity_wait(CFS_WAIT_TURN, 0, NULL);
		while (f->op && r == 0)
			r = cfs_cond_wait(&f->cond, &f->lock, deadline);
		cfs_activity_wait_end();
	}
	f->waiters--;
	if (r == 0 || !f->op) {
		f->op = true;
		r = 0;
	}
	return r < 0 ? -EIO : 0;
}

void cfs_file_op_end(struct cfs_file *f)
{
	pthread_mutex_lock(&f->lock);
	f->op = false;
	cfs_file_release_space(f);
	cfs_file_wake(f);
	pthread_mutex_unlock(&f->lock);
}

/* The metadata changed the file: lists of chunks that touch [from, to) are read again. */
static void replaced(struct cfs_file *f, const struct cfs_attr *attr, uint64_t from, uint64_t to)
{
	pthread_mutex_lock(&f->lock);
	f->attr = *attr;
	f->own_ns = cfs_now_ns();
	f->own_mark++;
	cfs_chunks_drop(f, (uint32_t)(from >> CFS_CHUNK_BITS),
			(uint32_t)((CFS_MAX(to, from + 1) - 1) >> CFS_CHUNK_BITS));
	cfs_file_compute_length(f);
	pthread_mutex_unlock(&f->lock);
}

/*
 * Begins an operation on stored bytes, after what is pending. *ret_late: the context with the time
 * after these commits, which may be later than the request.
 */
static int begin_on_stored(struct cfs_file *f, const struct cfs_ctx *ctx, struct cfs_ctx *ret_late)
{
	int r = cfs_file_op_begin(f, ctx->deadline);

	if (r < 0)
		return r;
	r = cfs_file_settle(f, ctx->deadline);
	if (r < 0)
		cfs_file_op_end(f);
	*ret_late = *ctx;
	ret_late->now = cfs_wall();
	return r;
}

int cfs_file_truncate(struct cfs_file *f, const struct cfs_ctx *ctx, uint64_t length,
		      struct cfs_attr *ret)
{
	struct cfs_ctx late;
	int r = begin_on_stored(f, ctx, &late);

	if (r < 0)
		return r;
	r = cfs_meta_truncate(f->data->conf.meta, &late, f->node.key, length, ret);
	if (r == 0) /* the affected chunks depend on the stored length */
		replaced(f, ret, 0, CFS_FILE_MAX);
	cfs_file_op_end(f);
	return r;
}

int cfs_file_fallocate(struct cfs_file *f, const struct cfs_ctx *ctx, unsigned mode, uint64_t off,
		       uint64_t len, struct cfs_attr *ret)
{
	struct cfs_ctx late;
	int r = begin_on_stored(f, ctx, &late);

	if (r < 0)
		return r;
	r = cfs_meta_fallocate(f->data->conf.meta, &late, f->node.key, mode, off, len, ret);
	if (r == 0)
		replaced(f, ret, off, off + len);
	cfs_file_op_end(f);
	return r;
}

bool cfs_file_covers_stored(const struct cfs_file *f, uint64_t off)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	return off - off % page < f->attr.length;
}

/* Bytes that fsync has promised must not be replaced by bytes that a power failure could take. */
static int settle_under(struct cfs_file *dst, uint64_t off, cfs_deadline_t deadline)
{
	bool covers;

	pthread_mutex_lock(&dst->lock);
	covers = cfs_file_covers_stored(dst, off);
	pthread_mutex_unlock(&dst->lock);
	return covers ? cfs_store_sync(dst->data->conf.store, deadline) : 0;
}

int cfs_file_copy_range(struct cfs_file *src, uint64_t src_off, struct cfs_file *dst,
			uint64_t dst_off, uint64_t len, const struct cfs_ctx *ctx,
			uint64_t *ret_copied, struct cfs_attr *ret_dst)
{
	struct cfs_copy_range req = {.src = src->node.key,
				     .dst = dst->node.key,
				     .src_off = src_off,
				     .dst_off = dst_off,
				     .len = len};
	struct cfs_ctx late;
	int r = begin_on_stored(dst, ctx, &late);

	if (r < 0)
		return r;
	if (src != dst)
		r = cfs_file_settle(src, ctx->deadline);
	if (r == 0)
		r = settle_under(dst, dst_off, ctx->deadline);
	if (r == 0)
		r = cfs_meta_copy_range(dst->data->conf.meta, &late, &req, ret_copied, ret_dst);
	if (r == 0)
		replaced(dst, ret_dst, dst_off, dst_off + *ret_copied);
	cfs_file_op_end(dst);
	return r;
}

/* ---- seek; called with the lock held ---- */

/* The end of the data that covers pos, or pos in a hole. */
static uint32_t data_end(struct cfs_chunk *c, uint32_t pos)
{
	size_t i = cfs_view_find(&c->view, pos);
	struct cfs_wslice *s;
	uint32_t end = pos;

	if (i < c->view.n && c->view.v[i].pos <= pos)
		end = c->view.v[i].pos + c->view.v[i].len;
	TAILQ_FOREACH(s, &c->pending, in_chunk)
	{
		if (s->pos <= pos)
			end = CFS_MAX(end, s->pos + s->len);
	}
	return end;
}

/* The first data at or behind pos, or the end of the chunk. */
static uint32_t data_start(struct cfs_chunk *c, uint32_t pos)
{
	size_t i = cfs_view_find(&c->view, pos);
	uint32_t start = CFS_CHUNK_SIZE;
	struct cfs_wslice *s;

	if (i < c->view.n)
		start = CFS_MAX(pos, c->view.v[i].pos);
	TAILQ_FOREACH(s, &c->pending, in_chunk)
	{
		if (s->pos + s->len > pos)
			start = CFS_MIN(start, CFS_MAX(pos, s->pos));
	}
	return start;
}

static uint32_t seek_chunk(struct cfs_chunk *c, uint32_t pos, int whence)
{
	uint32_t end;

	if (whence == SEEK_DATA)
		return data_start(c, pos);
	while (pos < CFS_CHUNK_SIZE) {
		end = data_end(c, pos);
		if (end == pos)
			break;
		pos = end;
	}
	return pos;
}

/*
 * The first chunk from `indx` on that may hold data: a sparse file of 2^57 bytes has two billion
 * others. Called without the lock.
 */
static int next_chunk(struct cfs_file *f, const struct cfs_ctx *ctx, uint32_t indx,
		      uint32_t *ret_indx)
{
	struct cfs_chunk_len stored[1024];
	uint32_t first;
	ssize_t n;

	pthread_mutex_lock(&f->lock);
	first = cfs_chunks_pending(f, indx);
	pthread_mutex_unlock(&f->lock);
	n = cfs_meta_list_chunks(f->data->conf.meta, ctx, f->node.key, indx, stored);
	if (n < 0)
		return (int)n;
	*ret_indx = n ? CFS_MIN(first, stored[0].indx) : first;
	return 0;
}

int cfs_file_seek(struct cfs_file *f, const struct cfs_ctx *ctx, uint64_t off, int whence,
		  uint64_t *ret_off)
{
	uint32_t pos, indx;
	struct cfs_chunk *c;
	int r;

	if (whence != SEEK_DATA && whence != SEEK_HOLE)
		return -EINVAL;
	pthread_mutex_lock(&f->lock);
	if (off >= f->length) {
		pthread_mutex_unlock(&f->lock);
		return -ENXIO;
	}
	while (off < f->length) {
		indx = (uint32_t)(off >> CFS_CHUNK_BITS);
		c = cfs_chunk_find(f, indx);
		if (!c || !c->cached) {
			pthread_mutex_unlock(&f->lock);
			r = cfs_chunk_load(f, ctx, indx);
			if (r < 0)
				return r;
			pthread_mutex_lock(&f->lock);
			continue;
		}
		pos = seek_chunk(c, off & (CFS_CHUNK_SIZE - 1), whence);
		off = (off & ~(CFS_CHUNK_SIZE - 1)) + pos;
		if (pos < CFS_CHUNK_SIZE)
			break;
		if (whence == SEEK_DATA && off < f->length) {
			pthread_mutex_unlock(&f->lock);
			r = next_chunk(f, ctx, indx + 1, &indx);
			if (r < 0)
				return r;
			pthread_mutex_lock(&f->lock);
			off = (uint64_t)indx << CFS_CHUNK_BITS;
		}
	}
	r = 0;
	if (whence == SEEK_HOLE)
		*ret_off = CFS_MIN(off, f->length);
	else if (off < f->length)
		*ret_off = off;
	else
		r = -ENXIO;
	pthread_mutex_unlock(&f->lock);
	return r;
}
