/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes. One write at a time per file (cfs_file_op_begin), page by page: find or open a slice,
 * provide its page, copy without the lock, hand full blocks to the store. While a write waits for
 * memory no slice is marked busy, so that this file's own slices can be flushed to free some.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/activity.h"
#include "base/bytes.h"
#include "data-internal.h"

/* The caller's bytes, and how many were consumed. */
struct source {
	const struct iovec *v;
	int n;
	size_t off; /* in v[0] */
};

static void source_copy(struct source *src, uint8_t *dst, size_t len)
{
	while (len) {
		size_t n = CFS_MIN(len, src->v->iov_len - src->off);

		memcpy(dst, (const uint8_t *)src->v->iov_base + src->off, n);
		dst += n;
		len -= n;
		src->off += n;
		while (src->n && src->off == src->v->iov_len) {
			src->v++;
			src->n--;
			src->off = 0;
		}
	}
}

/*
 * The slice that takes bytes at pos: the newest one that they extend or overwrite above the part
 * handed to the store. None when a newer slice overlaps the bytes, since it would hide them.
 */
static struct cfs_wslice *slice_find(struct cfs_chunk *c, uint32_t pos, uint32_t len)
{
	struct cfs_wslice *s;

	TAILQ_FOREACH_REVERSE(s, &c->pending, cfs_wslice_list, in_chunk)
	{
		if (!s->frozen && pos >= s->pos + s->handed && pos <= s->pos + s->len)
			return s;
		if (pos < s->pos + s->len && s->pos < pos + len)
			return NULL;
	}
	return NULL;
}

/* Waits until the file has room for another slice. Called with f->lock held; drops it while
 * waiting. */
static int wait_for_slices(struct cfs_file *f, cfs_deadline_t deadline)
{
	int r = 0;

	if (f->n_pending < CFS_FILE_PENDING)
		return 0;
	cfs_file_freeze(f);
	cfs_closing_release(f);
	cfs_file_kick(f);
	f->waiters++;
	cfs_file_await_commit(f, TAILQ_FIRST(&f->slices)->id);
	while (f->n_pending >= CFS_FILE_PENDING && r == 0)
		r = cfs_cond_wait(&f->cond, &f->lock, deadline);
	cfs_activity_wait_end();
	f->waiters--;
	return f->n_pending < CFS_FILE_PENDING ? 0 : -EIO;
}

static void freeze_oldest(struct cfs_chunk *c)
{
	struct cfs_wslice *s;

	TAILQ_FOREACH(s, &c->pending, in_chunk)
	{
		if (s->frozen)
			continue;
		cfs_wslice_freeze(s);
		cfs_wslice_kick(s);
		return;
	}
}

static struct cfs_wslice *slice_open(struct cfs_file *f, struct cfs_chunk *c, uint32_t pos)
{
	if (c->n_open >= CFS_CHUNK_OPEN)
		freeze_oldest(c);
	return cfs_wslice_new(c, pos);
}

static int grow_pages(struct cfs_wslice *s, uint32_t k)
{
	struct cfs_page **bigger;
	uint32_t n = s->n_pages ? s->n_pages : 1;

	if (k < s->n_pages)
		return 0;
	while (n <= k)
		n *= 2;
	bigger = reallocarray(s->pages, n, sizeof(*bigger));
	if (!bigger)
		return -ENOMEM;
	memset(bigger + s->n_pages, 0, (n - s->n_pages) * sizeof(*bigger));
	s->pages = bigger;
	s->n_pages = n;
	return 0;
}

/* Small files get small pages; a page that becomes too small is replaced by a copy. */
static void use_page(struct cfs_wslice *s, uint32_t k, struct cfs_page **spare)
{
	struct cfs_page *old = s->pages[k];

	if (old)
		memcpy((*spare)->data, old->data, old->size);
	s->pages[k] = *spare;
	*spare = NULL;
	cfs_page_unref(old);
}

/* Called after the copy, with the lock held. Returns the range of blocks to put. */
static void taken(struct cfs_wslice *s, const struct cfs_ctx *ctx, uint32_t end,
		  uint32_t *ret_first, uint32_t *ret_last)
{
	struct cfs_file *f = s->file;
	uint32_t block = f->data->conf.block_size;

	s->busy = false;
	if (end > s->len) {
		atomic_fetch_add(&f->data->dirty_bytes, end - s->len);
		s->len = end;
	}
	s->mtime = ctx->now;
	s->touched_ms = cfs_now_ms();
	f->written = ctx->now;
	cfs_attrs_keep(f, ~(uint32_t)CFS_SET_MTIME);
	f->length = CFS_MAX(f->length, s->chunk->indx * CFS_CHUNK_SIZE + s->pos + s->len);
	*ret_first = s->handed / block;
	*ret_last = s->len / block;
	if (*ret_last > *ret_first) {
		s->handed = *ret_last * block;
		s->puts += *ret_last - *ret_first;
	}
	if (s->len == CFS_CHUNK_SIZE - s->pos)
		cfs_wslice_freeze(s);
	cfs_wslice_kick(s);
}

/* Replaces *spare by a page of at least `need` bytes, for page k of a slice. Called without locks. */
static int get_spare(struct cfs_file *f, const struct cfs_ctx *ctx, uint32_t need, uint32_t k,
		     struct cfs_page **spare)
{
	int r;

	cfs_page_unref(*spare);
	*spare = NULL;
	/* A file that has filled one page will probably fill the next. */
	r = cfs_page_get(f->data->conf.pool, k ? CFS_PAGE_LARGE : need, CFS_USE_WRITE,
			 ctx->deadline, spare);
	return r == -ETIMEDOUT ? -EIO : r;
}

/*
 * Finds or opens the slice for up to *n bytes at pos of a chunk, with the page for them, and cuts *n
 * to what fits into that page. 0: *ret is the slice, and f->lock is held.
 */
static int take_place(struct cfs_file *f, const struct cfs_ctx *ctx, uint32_t indx, uint32_t pos,
		      uint32_t *n, struct cfs_page **spare, struct cfs_wslice **ret)
{
	uint32_t at, k, need;
	struct cfs_wslice *s;
	struct cfs_chunk *c;
	int r;

	for (;;) {
		pthread_mutex_lock(&f->lock);
		c = cfs_chunk_get(f, indx);
		r = c ? 0 : -ENOMEM;
		if (r < 0)
			break;
		s = slice_find(c, pos, *n);
		at = s ? pos - s->pos : 0;
		k = at / CFS_PAGE_LARGE;
		*n = CFS_MIN(*n, CFS_PAGE_LARGE - at % CFS_PAGE_LARGE);
		need = at % CFS_PAGE_LARGE + *n;
		*ret = s;
		if (s && k < s->n_pages && s->pages[k] && s->pages[k]->size >= need)
			return 0;
		if (!*spare || (*spare)->size < need) {
			pthread_mutex_unlock(&f->lock);
			r = get_spare(f, ctx, need, k, spare);
			if (r < 0)
				return r;
			continue;
		}
		if (!s && f->n_pending >= CFS_FILE_PENDING) {
			r = wait_for_slices(f, ctx->deadline);
			if (r < 0)
				break;
			pthread_mutex_unlock(&f->lock);
			continue;
		}
		if (!s)
			*ret = s = slice_open(f, c, pos);
		r = s ? grow_pages(s, k) : -ENOMEM;
		if (r < 0)
			break;
		use_page(s, k, spare);
		return 0;
	}
	pthread_mutex_unlock(&f->lock);
	return r;
}

/* Consumes up to a page of the next bytes, for [pos, pos + n) of a chunk. Returns how many. */
static int write_page(struct cfs_file *f, const struct cfs_ctx *ctx, struct source *src,
		      uint32_t indx, uint32_t pos, uint32_t n, struct cfs_page **spare)
{
	uint32_t at, first, last;
	struct cfs_wslice *s;
	struct cfs_page *page;
	bool listed;
	int r;

	r = take_place(f, ctx, indx, pos, &n, spare, &s);
	if (r < 0)
		return r;
	at = pos - s->pos;
	page = s->pages[at / CFS_PAGE_LARGE];
	s->busy = true;
	pthread_mutex_unlock(&f->lock);

	source_copy(src, page->data + at % CFS_PAGE_LARGE, n);

	pthread_mutex_lock(&f->lock);
	listed = f->listed;
	taken(s, ctx, at + n, &first, &last);
	pthread_mutex_unlock(&f->lock);
	if (!listed)
		cfs_file_list_dirty(f);
	if (first < last)
		cfs_wslice_put(s, first, last, false, ctx->deadline);
	return (int)n;
}

static int write_range(struct cfs_file *f, const struct cfs_ctx *ctx, struct source *src,
		       uint64_t off, uint64_t end)
{
	struct cfs_page *spare = NULL;
	int r = 0;

	while (off < end) {
		uint32_t pos = off & (CFS_CHUNK_SIZE - 1);
		uint64_t room = CFS_MIN(end - off, CFS_CHUNK_SIZE - pos);

		r = write_page(f, ctx, src, (uint32_t)(off >> CFS_CHUNK_BITS), pos,
			       (uint32_t)CFS_MIN(room, CFS_PAGE_LARGE), &spare);
		if (r < 0)
			break;
		off += (uint32_t)r;
	}
	cfs_page_unref(spare);
	return r < 0 ? r : 0;
}

int cfs_file_write(struct cfs_file *f, const struct cfs_ctx *ctx, uint64_t off, bool append,
		   const struct iovec *src, int n_src, uint64_t *ret_off)
{
	struct source from = {.v = src, .n = n_src};
	struct cfs_data *d = f->data;
	uint64_t len = cfs_iov_len(src, n_src), length;
	struct cfs_attr attr;
	int r;

	if (d->conf.read_only)
		return -EROFS;
	while (from.n && !from.v->iov_len) {
		from.v++;
		from.n--;
	}
	r = cfs_file_op_begin(f, ctx->deadline);
	if (r < 0)
		return r;
	pthread_mutex_lock(&f->lock);
	length = f->length;
	attr = f->attr;
	pthread_mutex_unlock(&f->lock);
	if (append)
		off = length;
	if (len >= CFS_FILE_MAX || off >= CFS_FILE_MAX - len)
		r = -EFBIG;
	if (r == 0 && off + len > length)
		r = cfs_meta_claim_space(d->conf.meta, ctx, f->node.key, &attr, length, off + len);
	if (r == 0)
		r = write_range(f, ctx, &from, off, off + len);
	cfs_file_op_end(f);
	if (r == 0)
		*ret_off = off;
	return r;
}
