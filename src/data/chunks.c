/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cached record lists. A list read from the metadata is kept until a newer mtime is seen. An own
 * commit is appended to it, so that a file that is read and written in turn costs no look-up. But
 * an own commit also hides the mtime of a foreign commit before it. So the next open reads lists
 * again that are older than the last own change (close-to-open, volume-format section 12).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "data-internal.h"

#define COMPACT_RECORDS 5
#define COMPACT_PIECES	5

static size_t position(const struct cfs_file *f, uint32_t indx)
{
	size_t lo = 0, hi = f->n_chunks, mid;

	while (lo < hi) {
		mid = (lo + hi) / 2;
		if (f->chunks[mid]->indx < indx)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

struct cfs_chunk *cfs_chunk_find(struct cfs_file *f, uint32_t indx)
{
	size_t i = position(f, indx);

	if (i == f->n_chunks || f->chunks[i]->indx != indx)
		return NULL;
	f->chunks[i]->used = ++f->clock;
	return f->chunks[i];
}

static void chunk_free(struct cfs_chunk *c)
{
	cfs_chunk_drop(c);
	free(c);
}

static bool chunk_unused(const struct cfs_chunk *c)
{
	return !c->pins && !c->committing && TAILQ_EMPTY(&c->pending);
}

/* Evicts lists when there are too many; lists in use stay. */
static void evict(struct cfs_file *f)
{
	size_t i, oldest = f->n_chunks;

	if (f->n_chunks < CFS_FILE_CHUNKS)
		return;
	for (i = 0; i < f->n_chunks; i++) {
		if (chunk_unused(f->chunks[i]) &&
		    (oldest == f->n_chunks || f->chunks[i]->used < f->chunks[oldest]->used))
			oldest = i;
	}
	if (oldest == f->n_chunks)
		return;
	chunk_free(f->chunks[oldest]);
	f->n_chunks--;
	memmove(f->chunks + oldest, f->chunks + oldest + 1,
		(f->n_chunks - oldest) * sizeof(*f->chunks));
}

struct cfs_chunk *cfs_chunk_get(struct cfs_file *f, uint32_t indx)
{
	struct cfs_chunk *c = cfs_chunk_find(f, indx);
	size_t i;

	if (c)
		return c;
	evict(f);
	if (CFS_ARRAY_ROOM(f->chunks, f->n_chunks, f->cap_chunks) < 0)
		return NULL;
	c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	c->file = f;
	c->indx = indx;
	c->used = ++f->clock;
	TAILQ_INIT(&c->pending);
	i = position(f, indx);
	memmove(f->chunks + i + 1, f->chunks + i, (f->n_chunks - i) * sizeof(*f->chunks));
	f->chunks[i] = c;
	f->n_chunks++;
	return c;
}

void cfs_chunk_drop(struct cfs_chunk *c)
{
	c->gen++;
	c->cached = false;
	free(c->recs);
	c->recs = NULL;
	c->n_recs = c->cap_recs = 0;
	cfs_view_free(&c->view);
}

void cfs_chunks_drop(struct cfs_file *f, uint32_t from, uint32_t to)
{
	size_t i;

	for (i = position(f, from); i < f->n_chunks && f->chunks[i]->indx <= to; i++)
		cfs_chunk_drop(f->chunks[i]);
}

uint32_t cfs_chunks_pending(const struct cfs_file *f, uint32_t from)
{
	size_t i;

	for (i = position(f, from); i < f->n_chunks; i++) {
		if (!TAILQ_EMPTY(&f->chunks[i]->pending))
			return f->chunks[i]->indx;
	}
	return UINT32_MAX;
}

void cfs_chunks_free(struct cfs_file *f)
{
	size_t i;

	for (i = 0; i < f->n_chunks; i++)
		chunk_free(f->chunks[i]);
	free(f->chunks);
}

void cfs_chunk_append(struct cfs_chunk *c, const struct cfs_slice *r)
{
	size_t i;

	c->gen++;
	if (!c->cached)
		return;
	/* The list may have been read between the commit and its answer. */
	for (i = c->n_recs; i > 0; i--) {
		if (c->recs[i - 1].id == r->id)
			return;
	}
	if (CFS_ARRAY_ADD(c->recs, c->n_recs, c->cap_recs, *r) < 0 ||
	    cfs_view_append(&c->view, r) < 0)
		cfs_chunk_drop(c);
}

void cfs_chunk_compacted(struct cfs_file *f, uint32_t indx)
{
	f->compacted_ns = cfs_now_ns();
	cfs_chunks_drop(f, indx, indx);
}

bool cfs_chunk_sure(const struct cfs_chunk *c)
{
	return c->cached && c->mark == c->file->own_mark;
}

/*
 * Makes records and view the cached list, and takes both over. Called with the file's lock. True
 * when the chunk is worth compacting.
 */
static bool cache_list(struct cfs_chunk *c, struct cfs_slice **recs, size_t n,
		       struct cfs_view *view, uint64_t mark)
{
	c->recs = *recs;
	c->n_recs = c->cap_recs = n;
	c->view = *view;
	c->mark = mark;
	c->cached = true;
	*recs = NULL;
	*view = (struct cfs_view){0};
	return c->n_recs >= COMPACT_RECORDS || c->view.n >= COMPACT_PIECES;
}

static int build_view(const struct cfs_file *f, uint32_t indx, const struct cfs_slice *recs,
		      size_t n, struct cfs_view *ret)
{
	int r = cfs_view_build(recs, n, ret);

	if (r == -EIO)
		cfs_err("chunk list is damaged: inode=%llu chunk=%u",
			(unsigned long long)f->node.key, indx);
	return r;
}

int cfs_chunk_load(struct cfs_file *f, const struct cfs_ctx *ctx, uint32_t indx)
{
	struct cfs_data *d = f->data;
	struct cfs_slice *recs = NULL;
	struct cfs_view view = {0};
	struct cfs_chunk *c;
	bool compact = false;
	uint64_t gen, mark;
	ssize_t n;
	int r = 0;

	if (cfs_deadline_passed(ctx->deadline))
		return -EIO;
	pthread_mutex_lock(&f->lock);
	c = cfs_chunk_get(f, indx);
	if (!c) {
		pthread_mutex_unlock(&f->lock);
		return -ENOMEM;
	}
	c->pins++;
	gen = c->gen;
	mark = f->own_mark;
	pthread_mutex_unlock(&f->lock);

	n = cfs_meta_read_chunk(d->conf.meta, ctx, f->node.key, indx, &recs);
	if (n < 0)
		r = (int)n;
	else
		r = build_view(f, indx, recs, (size_t)n, &view);

	pthread_mutex_lock(&f->lock);
	c->pins--;
	if (r == 0 && !c->cached && c->gen == gen)
		compact = cache_list(c, &recs, (size_t)n, &view, mark);
	pthread_mutex_unlock(&f->lock);

	free(recs);
	cfs_view_free(&view);
	if (compact && !d->conf.read_only)
		cfs_data_queue_compact(d, f->node.key, indx, false);
	return r;
}

bool cfs_file_has_list(struct cfs_file *f)
{
	struct cfs_chunk *c;
	CFS_LOCK_GUARD(&f->lock);

	c = cfs_chunk_find(f, 0);
	return c && cfs_chunk_sure(c);
}

/*
 * Whether a list that was read with attr is what the metadata has for the attributes in use: no
 * change of this mount was answered since the question, and no other change is known.
 */
static bool list_fits(const struct cfs_file *f, const struct cfs_attr *attr, uint64_t asked_ns)
{
	return asked_ns > CFS_MAX(f->own_ns, f->compacted_ns) && asked_ns >= f->asked_ns &&
	       cfs_timespec_cmp(attr->mtime, f->attr.mtime) == 0 &&
	       cfs_timespec_cmp(attr->ctime, f->attr.ctime) == 0;
}

void cfs_file_take_list(struct cfs_file *f, const struct cfs_attr *attr, uint64_t asked_ns,
			struct cfs_slice *recs, size_t n)
{
	struct cfs_view view = {0};
	struct cfs_chunk *c = NULL;
	bool compact = false;

	/* A list that cannot be kept is read again by the first read. */
	if (build_view(f, 0, recs, n, &view) == 0) {
		pthread_mutex_lock(&f->lock);
		if (list_fits(f, attr, asked_ns))
			c = cfs_chunk_get(f, 0);
		if (c && !c->cached)
			compact = cache_list(c, &recs, n, &view, f->own_mark);
		pthread_mutex_unlock(&f->lock);
	}
	free(recs);
	cfs_view_free(&view);
	if (compact && !f->data->conf.read_only)
		cfs_data_queue_compact(f->data, f->node.key, 0, false);
}
