/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads. A read is first planned under the file's lock: which bytes come from pages that a writer
 * still holds, which from the store, which are zeros. The plan owns references to the pages, so
 * that it is carried out without the lock. When the list is cached and the blocks are in memory,
 * this path has no system call and no allocation.
 */
#include <errno.h>

#include "base/wouldblock.h"
#include "data-internal.h"

#define PLAN_MAX     32
#define PREFETCH_MAX 16
#define STARTED_MAX  64 /* blocks of a read that are fetched at the same time */

struct part {
	struct cfs_page *page; /* bytes of this page, or ... */
	uint64_t slice;	       /* ... of this slice, or (0) zeros */
	uint32_t size;	       /* of the slice */
	uint32_t pos;	       /* in the chunk; for read-ahead only */
	uint32_t off, len;     /* in page or slice */
};

struct plan {
	struct part v[PLAN_MAX];
	unsigned n;
	uint64_t len;
};

/* Zeros, until the caller says otherwise. NULL: the plan is full. */
static struct part *plan_add(struct plan *p, uint32_t len)
{
	struct part *part;

	if (p->n == PLAN_MAX)
		return NULL;
	part = &p->v[p->n++];
	part->page = NULL;
	part->slice = 0;
	part->len = len;
	p->len += len;
	return part;
}

/* The functions below return false when the plan is full; the plan then covers a prefix. */

static bool plan_stored(struct plan *p, uint64_t slice, uint32_t size, uint32_t off, uint32_t len)
{
	struct part *part = plan_add(p, len);

	if (!part)
		return false;
	part->slice = slice;
	part->size = size;
	part->off = off;
	return true;
}

/* Bytes [off, end) of an uncommitted slice. */
static bool plan_slice(struct plan *p, struct cfs_wslice *s, uint32_t off, uint32_t end)
{
	struct part *part;

	while (off < end) {
		struct cfs_page *page = s->pages[off / CFS_PAGE_LARGE];
		uint32_t in = off % CFS_PAGE_LARGE;
		uint32_t len = CFS_MIN(end - off, CFS_PAGE_LARGE - in);

		if (!page) {
			/* Stored, so its blocks are whole and `handed` is as good as the size. */
			if (!plan_stored(p, s->id, s->handed, off, len))
				return false;
		} else {
			part = plan_add(p, len);
			if (!part)
				return false;
			part->page = cfs_page_ref(page);
			part->off = in;
		}
		off += len;
	}
	return true;
}

static bool plan_view(struct plan *p, const struct cfs_view *v, uint32_t pos, uint32_t end)
{
	size_t i;
	uint32_t to;

	for (i = cfs_view_find(v, pos); pos < end; pos = to) {
		const struct cfs_piece *piece = &v->v[i];

		if (i == v->n || piece->pos >= end)
			return plan_add(p, end - pos) != NULL;
		if (piece->pos > pos) {
			to = piece->pos;
			if (!plan_add(p, to - pos))
				return false;
			continue;
		}
		to = CFS_MIN(end, piece->pos + piece->len);
		if (!plan_stored(p, piece->slice, piece->slice_size,
				 piece->slice_off + (pos - piece->pos), to - pos))
			return false;
		i++;
	}
	return true;
}

/* [pos, end) as it is after slice s and all before it. The recursion is as deep as slices
 * overlap. */
static bool plan_range(struct plan *p, struct cfs_chunk *c, struct cfs_wslice *s, uint32_t pos,
		       uint32_t end)
{
	uint32_t from, to;

	while (s && (s->pos >= end || s->pos + s->len <= pos))
		s = TAILQ_PREV(s, cfs_wslice_list, in_chunk);
	if (!s)
		return plan_view(p, &c->view, pos, end);
	from = CFS_MAX(pos, s->pos);
	to = CFS_MIN(end, s->pos + s->len);
	if (pos < from && !plan_range(p, c, TAILQ_PREV(s, cfs_wslice_list, in_chunk), pos, from))
		return false;
	if (!plan_slice(p, s, from - s->pos, to - s->pos))
		return false;
	return to == end || plan_range(p, c, TAILQ_PREV(s, cfs_wslice_list, in_chunk), to, end);
}

static void plan_release(struct plan *p, unsigned from)
{
	for (; from < p->n; from++)
		cfs_page_unref(p->v[from].page);
}

/* The reader that a plan is carried out for. */
struct reader {
	struct cfs_file *file;
	uint64_t stream;
	uint64_t at; /* in the file */
	struct cfs_forecast forecast;
	const struct cfs_ctx *ctx;
	unsigned block;		 /* number of the next stored block of the plan */
	uint64_t started;	 /* bits: blocks whose fetch start_others() has started */
	struct cfs_async *async; /* for a read of one part; NULL: the thread waits */
};

/* A random read has its bytes: the rest of the block may be worth fetching. */
static void note_random(const struct reader *rd, const struct cfs_block *b, uint32_t off,
			uint32_t len, enum cfs_source source)
{
	struct cfs_file *f = rd->file;
	bool whole;

	pthread_mutex_lock(&f->lock);
	whole = cfs_amplify_note(f, b, off, len, source);
	pthread_mutex_unlock(&f->lock);
	if (whole)
		cfs_store_prefetch_block(f->data->conf.store, b, cfs_session_owner(f, rd->stream));
	else if (source == CFS_SOURCE_REMOTE)
		atomic_fetch_add(&f->data->prefetches_declined, 1);
}

/*
 * How many bytes of a block will probably be read, 0: not known. Whole blocks fill a disk cache
 * that has room.
 */
static uint32_t likely_part(const struct reader *rd, const struct cfs_block *b, uint32_t off,
			    uint64_t at)
{
	uint64_t end = rd->forecast.likely_end;

	if (end <= at || cfs_store_has_room(rd->file->data->conf.store, b))
		return 0;
	return (uint32_t)CFS_MIN(end - at, b->len - off);
}

/*
 * Starts the fetches of all blocks of a plan but the first, so that a read across a border does not
 * wait for one block after the other.
 */
static void start_others(struct reader *rd, const struct plan *p)
{
	struct cfs_data *d = rd->file->data;
	uint64_t owner = cfs_session_owner(rd->file, rd->stream), at = rd->at;
	uint32_t block = d->conf.block_size, off, end, n;
	struct cfs_pattern pattern = {.random = rd->forecast.random};
	unsigned i, number = 0;

	rd->block = 0;
	rd->started = 0;
	for (i = 0; i < p->n; at += p->v[i++].len) {
		const struct part *part = &p->v[i];

		end = part->page || !part->slice ? 0 : part->off + part->len;
		for (off = part->off; off < end; off += n, number++) {
			struct cfs_block b =
				cfs_block_of(part->slice, part->size, off / block, block);

			n = CFS_MIN(end - off, b.len - off % block);
			if (number == 0 || number >= STARTED_MAX)
				continue;
			pattern.likely = likely_part(rd, &b, off % block, at + (off - part->off));
			if (cfs_store_start_fetch(d->conf.store, &b, off % block, n, pattern,
						  owner))
				rd->started |= 1ULL << number;
		}
	}
}

/* The reader's own structure is kept after what the read has to note. */
struct noted_async {
	struct cfs_async base; /* first */
	const struct reader *rd;
	const struct cfs_block *block;
	uint32_t in;
};

static struct cfs_async *keep(struct cfs_async *a)
{
	const struct noted_async *n = (const struct noted_async *)a;
	struct cfs_async *outer = n->rd->async;

	note_random(n->rd, n->block, n->in, a->len, CFS_SOURCE_RANGE);
	outer->page = a->page;
	outer->len = a->len;
	return outer->keep(outer);
}

static int read_blocks(struct reader *rd, const struct part *part, struct cfs_segs *ret)
{
	struct cfs_data *d = rd->file->data;
	uint32_t block = d->conf.block_size, off = part->off, end = part->off + part->len;
	struct cfs_pattern pattern = {.random = rd->forecast.random};
	enum cfs_source source;
	int r;

	while (off < end) {
		struct cfs_block b = cfs_block_of(part->slice, part->size, off / block, block);
		uint32_t in = off % block, n = CFS_MIN(end - off, b.len - in);
		struct noted_async async = {.base.keep = keep, .rd = rd, .block = &b, .in = in};
		bool may = rd->async && n == part->len;

		pattern.likely = likely_part(rd, &b, in, rd->at + (off - part->off));
		r = cfs_store_fetch(d->conf.store, &b, in, n, pattern, rd->ctx->deadline,
				    may ? &async.base : NULL, ret, &source);
		if (r < 0)
			return r;
		if (rd->block < STARTED_MAX && (rd->started >> rd->block & 1) &&
		    source == CFS_SOURCE_LOCAL)
			source = CFS_SOURCE_REMOTE;
		rd->block++;
		/* Hits of a read that is repeated were noted before. */
		if (pattern.random && !pattern.likely && n < b.len &&
		    (source != CFS_SOURCE_LOCAL || !cfs_is_repeated()))
			note_random(rd, &b, in, n, source);
		off += n;
	}
	return 0;
}

/* Carries out the plan and empties it. On error *ret_slice names the slice that could not be
 * read. */
static int plan_run(struct reader *rd, struct plan *p, struct cfs_segs *ret, uint64_t *ret_slice)
{
	struct part *part;
	unsigned i;
	int r = 0;

	for (i = 0; i < p->n; i++) {
		part = &p->v[i];
		if (part->page)
			r = cfs_segs_add(ret, part->page, part->off, part->len);
		else if (part->slice)
			r = read_blocks(rd, part, ret);
		else
			r = cfs_segs_add_zeros(ret, part->len);
		if (r < 0) {
			*ret_slice = part->slice;
			plan_release(p, i);
			break;
		}
		rd->at += part->len;
	}
	return r;
}

/* Committed bytes only; fetching bytes that an open slice covers would be waste, not a fault. */
static unsigned plan_prefetch(struct cfs_chunk *c, uint32_t pos, uint32_t end, struct part *parts)
{
	const struct cfs_view *v = &c->view;
	unsigned n = 0;
	size_t i;

	for (i = cfs_view_find(v, pos); i < v->n && v->v[i].pos < end && n < PREFETCH_MAX; i++) {
		uint32_t from = CFS_MAX(pos, v->v[i].pos);
		uint32_t to = CFS_MIN(end, v->v[i].pos + v->v[i].len);

		parts[n++] = (struct part){.slice = v->v[i].slice,
					   .size = v->v[i].slice_size,
					   .pos = from,
					   .off = v->v[i].slice_off + (from - v->v[i].pos),
					   .len = to - from};
	}
	return n;
}

/* Returns how many bytes it has handled: less than all when the store takes no more. */
static uint32_t prefetch_part(struct cfs_data *d, const struct part *part, uint64_t owner)
{
	uint32_t block = d->conf.block_size, off = part->off, end = part->off + part->len;

	while (off < end) {
		struct cfs_block b = cfs_block_of(part->slice, part->size, off / block, block);
		uint32_t in = off % block, n = CFS_MIN(end - off, b.len - in);

		if (!cfs_store_prefetch(d->conf.store, &b, in, n, owner))
			break;
		off += n;
	}
	return off - part->off;
}

/* Reads a list that is not cached: otherwise the stream would stall at the border of a chunk. */
static void prefetch(const struct reader *rd)
{
	uint64_t owner = cfs_session_owner(rd->file, rd->stream), bytes = 0;
	struct cfs_forecast span = rd->forecast;
	struct part parts[PREFETCH_MAX];
	struct cfs_file *f = rd->file;
	struct cfs_data *d = f->data;
	struct cfs_chunk *c;
	bool loaded = false;
	unsigned i, n;

	while (span.off < span.end) {
		uint32_t pos = span.off & (CFS_CHUNK_SIZE - 1);
		uint32_t len = (uint32_t)CFS_MIN(span.end - span.off, CFS_CHUNK_SIZE - pos);

		n = 0;
		pthread_mutex_lock(&f->lock);
		c = cfs_chunk_find(f, (uint32_t)(span.off >> CFS_CHUNK_BITS));
		if (c && c->cached)
			n = plan_prefetch(c, pos, pos + len, parts);
		else
			c = NULL;
		pthread_mutex_unlock(&f->lock);
		if (!c && !loaded) {
			loaded = true;
			if (cfs_chunk_load(f, rd->ctx, (uint32_t)(span.off >> CFS_CHUNK_BITS)) == 0)
				continue;
		}
		for (i = 0; i < n; i++) {
			uint32_t done = prefetch_part(d, &parts[i], owner);

			bytes += done;
			if (done == parts[i].len)
				continue;
			pthread_mutex_lock(&f->lock);
			cfs_session_withdraw(f, rd->stream, span.end,
					     span.off + (parts[i].pos - pos) + done);
			pthread_mutex_unlock(&f->lock);
			goto out;
		}
		/* There may be more than fits in the plan. */
		if (n == PREFETCH_MAX)
			len = parts[n - 1].pos + parts[n - 1].len - pos;
		span.off += len;
		loaded = false;
	}
out:
	atomic_fetch_add(&d->readahead_bytes, bytes);
}

/*
 * The chunk was compacted, here or elsewhere, and the list in use is old. If the reloaded list
 * names the same slice again, its object is really missing.
 */
static void drop_list(struct cfs_file *f, uint32_t indx)
{
	pthread_mutex_lock(&f->lock);
	cfs_chunk_compacted(f, indx);
	pthread_mutex_unlock(&f->lock);
}

int cfs_file_read(struct cfs_file *f, const struct cfs_ctx *ctx, uint64_t stream, uint64_t off,
		  uint32_t size, struct cfs_async *async, struct cfs_segs *ret)
{
	struct reader rd = {.file = f, .stream = stream, .ctx = ctx};
	uint64_t at = off, end = off + size, slice = 0, missing = 0;
	bool first = true;
	struct cfs_chunk *c;
	struct plan plan;
	int r;

	if (end < off)
		return -EINVAL;
	for (;;) {
		uint32_t indx = (uint32_t)(at >> CFS_CHUNK_BITS);
		uint32_t pos = at & (CFS_CHUNK_SIZE - 1);

		pthread_mutex_lock(&f->lock);
		end = CFS_MIN(end, f->length);
		if (at >= end) {
			pthread_mutex_unlock(&f->lock);
			return 0;
		}
		c = cfs_chunk_find(f, indx);
		if (!c || !c->cached) {
			pthread_mutex_unlock(&f->lock);
			r = cfs_chunk_load(f, ctx, indx);
			if (r < 0)
				goto fail;
			continue;
		}
		if (first)
			cfs_session_advance(f, stream, at, end, cfs_is_repeated(), &rd.forecast);
		first = false;
		plan.n = 0;
		plan.len = 0;
		plan_range(&plan, c, TAILQ_LAST(&c->pending, cfs_wslice_list), pos,
			   (uint32_t)CFS_MIN(CFS_CHUNK_SIZE, pos + (end - at)));
		pthread_mutex_unlock(&f->lock);
		if (rd.forecast.off < rd.forecast.end)
			prefetch(&rd);
		rd.forecast.off = rd.forecast.end;
		rd.at = at;
		rd.async = plan.n == 1 && plan.len == end - off ? async : NULL;
		start_others(&rd, &plan);
		r = plan_run(&rd, &plan, ret, &slice);
		if (r == 0) {
			at += plan.len;
		} else if ((r == -ENOENT || r == -EACCES) && slice != missing) {
			missing = slice;
			drop_list(f, indx);
			cfs_segs_truncate(ret, at - off);
		} else {
			if (r == -ENOENT)
				cfs_err("an object is missing, the read fails: inode=%llu chunk=%u "
					"slice=%llu",
					(unsigned long long)f->node.key, indx,
					(unsigned long long)slice);
			goto fail;
		}
	}
fail:
	cfs_segs_release(ret);
	return r == -ENOENT || r == -EACCES ? -EIO : r;
}
