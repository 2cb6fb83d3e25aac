/* SPDX-License-Identifier: Apache-2.0 */
/* Compaction of chunks: volume-format section 6. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/unwanted.h"
#include "base/wouldblock.h"
#include "data-internal.h"

#define RECORDS_MAX 1000
#define GOOD_LEN    (1u << 20)
#define GOOD_SHARE  5 /* a good slice has at least one in this many bytes of the rest */
#define QUEUE_MAX   1024
#define TIMEOUTS    4 /* io_timeout_ms, or of a transfer its timeout if that is longer */
/* The pause after a compaction that has failed, in times of what it took. */
#define PAUSES	     9
#define PAUSE_MAX_MS ((uint64_t)3600 * 1000)
#define FILES_FAILED 4 /* in succession: the object store is away, or slow */

struct cfs_compact_job {
	struct cfs_job job;
	TAILQ_ENTRY(cfs_compact_job) link;
	struct cfs_data *data;
	cfs_ino_t ino;
	uint32_t indx;
	bool rerun; /* requested during a run, perhaps for records that the run has not seen */
};

/* The range that one slice would have to cover, without holes at its ends. */
static void extent(const struct cfs_view *v, const struct cfs_slice *recs, uint32_t *ret_pos,
		   uint32_t *ret_size)
{
	*ret_pos = recs[0].pos;
	*ret_size = 1;
	if (v->n) {
		*ret_pos = v->v[0].pos;
		*ret_size = v->v[v->n - 1].pos + v->v[v->n - 1].len - v->v[0].pos;
	}
}

static bool same_record(const struct cfs_slice *a, const struct cfs_slice *b)
{
	return a->pos == b->pos && a->id == b->id && a->size == b->size && a->off == b->off &&
	       a->len == b->len;
}

/* A big uncovered slice at the front is not worth copying. */
static bool good(const struct cfs_slice *recs, size_t n, const struct cfs_view *v)
{
	const struct cfs_slice *r = &recs[0];
	uint32_t pos, size;
	size_t i;

	extent(v, recs, &pos, &size);
	if (!r->id || r->len < GOOD_LEN || (uint64_t)r->len * GOOD_SHARE < size || !v->n)
		return false;
	if (v->v[0].pos != r->pos || v->v[0].len != r->len || v->v[0].slice != r->id ||
	    v->v[0].slice_off != r->off)
		return false;
	for (i = 1; i < n; i++) {
		if (same_record(r, &recs[i]))
			return false;
	}
	return true;
}

/* A range of a stored block, and its position in the chunk. */
struct source {
	struct cfs_block block;
	uint32_t off, len, pos;
};
typedef int (*source_fn)(void *arg, const struct source *src);

/* The stored ranges of bytes [pos, end) of the view. Stops at fn's first result other than 0. */
static int each_source(const struct cfs_view *v, uint32_t block, uint32_t pos, uint32_t end,
		       source_fn fn, void *arg)
{
	size_t i;
	int r = 0;

	for (i = cfs_view_find(v, pos); i < v->n && v->v[i].pos < end && r == 0; i++) {
		const struct cfs_piece *p = &v->v[i];
		uint32_t from = CFS_MAX(pos, p->pos), to = CFS_MIN(end, p->pos + p->len);

		while (from < to && r == 0) {
			uint32_t off = p->slice_off + (from - p->pos);
			struct source src = {
				.block = cfs_block_of(p->slice, p->slice_size, off / block, block),
				.off = off % block,
				.pos = from,
			};

			src.len = CFS_MIN(to - from, src.block.len - src.off);
			r = fn(arg, &src);
			from += src.len;
		}
	}
	return r;
}

static cfs_deadline_t timeouts(const struct cfs_data *d)
{
	return cfs_deadline_in(TIMEOUTS * d->conf.io_timeout_ms);
}

/* For the transfer of a range or a block, with its wait for memory. */
static cfs_deadline_t transfer_timeouts(const struct cfs_data *d)
{
	return cfs_deadline_in(TIMEOUTS *
			       CFS_MAX(d->conf.io_timeout_ms, d->conf.transfer_timeout_ms));
}

struct fill {
	struct cfs_data *data;
	struct cfs_page *page;
	uint32_t pos; /* of the page */
};

static int fill_range(void *arg, const struct source *src)
{
	const struct fill *f = arg;
	struct cfs_segs segs;
	int r;

	cfs_segs_init(&segs);
	r = cfs_store_read(f->data->conf.store, &src->block, src->off, src->len,
			   transfer_timeouts(f->data), &segs);
	if (r == 0)
		cfs_segs_copy_out(&segs, 0, f->page->data + (src->pos - f->pos), src->len);
	cfs_segs_release(&segs);
	return r;
}

struct fetch {
	struct cfs_data *data;
	uint64_t owner;
};

/* A range that cannot be fetched ahead is read page by page. */
static int prefetch_range(void *arg, const struct source *src)
{
	const struct fetch *f = arg;

	cfs_store_prefetch(f->data->conf.store, &src->block, src->off, src->len, f->owner);
	return 0;
}

static int write_block(struct cfs_data *d, const struct cfs_view *v, uint32_t pos,
		       const struct cfs_block *b)
{
	/* An even number: those of open files are odd. */
	struct fetch fetch = {.data = d, .owner = 2 * b->slice};
	struct fill fill = {.data = d};
	const uint32_t block = d->conf.block_size;
	struct cfs_segs data;
	uint32_t off, n;
	int r;

	cfs_segs_init(&data);
	r = each_source(v, block, pos, pos + b->len, prefetch_range, &fetch);
	for (off = 0; off < b->len && r == 0; off += n) {
		n = CFS_MIN(CFS_PAGE_LARGE, b->len - off);
		r = cfs_page_get(d->conf.pool, n, CFS_USE_WRITE, timeouts(d), &fill.page);
		if (r < 0)
			break;
		fill.pos = pos + off;
		memset(fill.page->data, 0, n);
		r = each_source(v, block, fill.pos, fill.pos + n, fill_range, &fill);
		if (r == 0)
			r = cfs_segs_add(&data, fill.page, 0, n);
		if (r < 0)
			cfs_page_unref(fill.page);
	}
	if (r < 0)
		cfs_store_cancel(d->conf.store, fetch.owner);
	if (r == 0)
		r = cfs_meta_check_volume(d->conf.meta, transfer_timeouts(d));
	if (r == 0)
		r = cfs_store_put_sync(d->conf.store, b, &data, transfer_timeouts(d));
	cfs_segs_release(&data);
	return r;
}

struct caller {
	struct cfs_data *data;
	const struct cfs_ctx *ctx;
};

/* Why the compaction ends early; 0: it is wanted. */
static int unwanted(const struct caller *c)
{
	if (atomic_load(&c->data->draining))
		return -EAGAIN;
	return c->ctx->interrupted && c->ctx->interrupted(c->ctx->interrupted_arg) ? -EINTR : 0;
}

static bool is_abandoned(void *arg)
{
	return unwanted(arg) < 0;
}

/* Over a slow link the whole takes as long as it takes, unless `cachefs gc` might remove it. */
static int write_merged(struct cfs_data *d, const struct cfs_view *v,
			const struct cfs_slice *merged, uint8_t tier, const struct cfs_ctx *ctx)
{
	cfs_deadline_t deadline = cfs_deadline_in(CFS_GC_AGE_MS);
	struct cfs_block b = {.slice = merged->id, .tier = tier};
	struct caller caller = {.data = d, .ctx = ctx};
	uint32_t block = d->conf.block_size, off;
	int r = 0;

	cfs_abandoned_hook(is_abandoned, &caller);
	cfs_unwanted_set(is_abandoned, &caller);
	for (off = 0; off < merged->size && r == 0; off += block) {
		b.index = off / block;
		b.len = CFS_MIN(block, merged->size - off);
		r = unwanted(&caller);
		if (r == 0)
			r = write_block(d, v, merged->pos + off, &b);
		if (r == 0 && cfs_deadline_passed(deadline))
			r = -ETIMEDOUT;
	}
	cfs_unwanted_set(NULL, NULL);
	cfs_abandoned_hook(NULL, NULL);
	return r < 0 && unwanted(&caller) < 0 ? unwanted(&caller) : r;
}

static int skip_good(const struct cfs_slice *recs, size_t n, size_t *ret_skipped,
		     struct cfs_view *ret)
{
	size_t skipped = 0;
	int r;

	for (;;) {
		r = cfs_view_build(recs + skipped, n - skipped, ret);
		if (r < 0)
			return r;
		if (n - skipped < 2 || !good(recs + skipped, n - skipped, ret))
			break;
		cfs_view_free(ret);
		skipped++;
	}
	*ret_skipped = skipped;
	return 0;
}

/* Cached lists of open files name slices that may soon be deleted. */
static void forget_list(struct cfs_data *d, cfs_ino_t ino, uint32_t indx)
{
	struct cfs_file *f = cfs_data_find(d, ino);

	if (!f)
		return;
	pthread_mutex_lock(&f->lock);
	cfs_chunk_compacted(f, indx);
	pthread_mutex_unlock(&f->lock);
	cfs_file_unref(f);
}

/*
 * How many records at the front may be replaced. A commit under way on this mount may
 * have to search for its record, to learn whether it was made: that record must stay, and so must
 * those behind it.
 */
static size_t settled(struct cfs_data *d, cfs_ino_t ino, uint32_t indx,
		      const struct cfs_slice *recs, size_t n)
{
	struct cfs_file *f = cfs_data_find(d, ino);
	const struct cfs_wslice *s;
	struct cfs_chunk *c;
	uint64_t id;
	size_t i;

	if (!f)
		return n;
	pthread_mutex_lock(&f->lock);
	c = cfs_chunk_find(f, indx);
	s = c ? TAILQ_FIRST(&c->pending) : NULL;
	id = s ? s->id : 0;
	pthread_mutex_unlock(&f->lock);
	cfs_file_unref(f);
	for (i = n; id && i; i--) {
		if (recs[i - 1].id == id)
			return i - 1;
	}
	return n;
}

/* Returns 1 when there is likely more to do. */
static int compact_once(struct cfs_data *d, const struct cfs_ctx *ctx, cfs_ino_t ino, uint32_t indx)
{
	cfs_auto_free struct cfs_slice *recs = NULL;
	struct cfs_slice merged = {0};
	struct cfs_ctx after = *ctx;
	__attribute__((cleanup(cfs_view_free))) struct cfs_view view = {0};
	struct cfs_clocks begun = cfs_clocks_now();
	size_t n, limit, skipped = 0;
	struct cfs_attr attr;
	ssize_t total;
	int r;

	total = cfs_meta_read_chunk(d->conf.meta, ctx, ino, indx, &recs);
	if (total < 0)
		return (int)total;
	limit = CFS_MIN((size_t)total, RECORDS_MAX);
	n = settled(d, ino, indx, recs, limit);
	/* A copy of lost bytes would pass for what was written. */
	r = cfs_records_suspect(d, recs, n);
	if (r < 0)
		return r;
	r = skip_good(recs, n, &skipped, &view);
	if (r < 0 || n - skipped < 2)
		return r;
	extent(&view, recs + skipped, &merged.pos, &merged.size);
	merged.len = merged.size;
	r = cfs_meta_getattr(d->conf.meta, ctx, ino, &attr);
	if (r == 0)
		r = cfs_meta_new_slice(d->conf.meta, ctx, &merged.id);
	if (r < 0)
		return r;
	r = write_merged(d, &view, &merged, attr.tier, ctx);
	after.deadline = timeouts(d);
	/* Its record replaces records of bytes that fsync may have promised. */
	if (r == 0)
		r = cfs_store_sync(d->conf.store, after.deadline);
	if (r == 0 && cfs_store_is_suspect(d->conf.store, merged.id))
		r = -EIO;
	if (r == 0)
		r = cfs_records_suspect(d, recs, n);
	/* Its blocks may be gone: this host was suspended, its clock was set, or it was slow. */
	if (r == 0 && cfs_gc_may_remove(begun))
		r = -EAGAIN;
	if (r < 0) {
		cfs_meta_discard_slice(d->conf.meta, merged.id, merged.size);
		return r == -ENOENT ? -EAGAIN : r;
	}
	r = cfs_meta_compact_chunk(d->conf.meta, &after, ino, indx, recs, n, skipped, &merged);
	forget_list(d, ino, indx);
	if (r < 0)
		return r;
	atomic_fetch_add(&d->compactions, 1);
	return n == limit && (size_t)total > n;
}

/* Called with d->lock held. */
static struct cfs_compact_job *job_find(struct cfs_data *d, cfs_ino_t ino, uint32_t indx)
{
	struct cfs_compact_job *j;

	TAILQ_FOREACH(j, &d->compacts, link)
	{
		if (j->ino == ino && j->indx == indx)
			return j;
	}
	return NULL;
}

static void job_add(struct cfs_data *d, struct cfs_compact_job *j, cfs_ino_t ino, uint32_t indx)
{
	j->data = d;
	j->ino = ino;
	j->indx = indx;
	TAILQ_INSERT_TAIL(&d->compacts, j, link);
	d->n_compacts++;
}

/* ---- pauses; called with d->lock held ---- */

/* That of the chunk, or else the one whose pause ends first. */
static struct cfs_compact_failed *failed_entry(struct cfs_data *d, cfs_ino_t ino, uint32_t indx)
{
	struct cfs_compact_failed *f, *first = d->pauses.failed;

	for (f = d->pauses.failed; f < d->pauses.failed + CFS_COMPACT_FAILED; f++) {
		if (f->ino == ino && f->indx == indx)
			return f;
		if (f->until_ms < first->until_ms)
			first = f;
	}
	return first;
}

static bool pauses(struct cfs_data *d, cfs_ino_t ino, uint32_t indx)
{
	const struct cfs_compact_failed *f = failed_entry(d, ino, indx);
	uint64_t now_ms = cfs_now_ms();

	return now_ms < d->pauses.all_until_ms ||
	       (f->ino == ino && f->indx == indx && now_ms < f->until_ms);
}

static void note_failure(struct cfs_data *d, cfs_ino_t ino, uint32_t indx, uint64_t pause_ms)
{
	struct cfs_compact_pauses *p = &d->pauses;
	uint64_t until_ms = cfs_now_ms() + pause_ms;

	*failed_entry(d, ino, indx) = (struct cfs_compact_failed){ino, indx, until_ms};
	p->files += p->last_ino != ino;
	p->last_ino = ino;
	if (p->files >= FILES_FAILED)
		p->all_until_ms = until_ms;
}

static void note_success(struct cfs_data *d)
{
	d->pauses.files = 0;
	d->pauses.last_ino = 0;
}

static void job_remove(struct cfs_data *d, struct cfs_compact_job *j)
{
	bool rerun, paused;

	pthread_mutex_lock(&d->lock);
	TAILQ_REMOVE(&d->compacts, j, link);
	d->n_compacts--;
	rerun = j->rerun;
	paused = pauses(d, j->ino, j->indx);
	pthread_cond_broadcast(&d->compacted);
	pthread_mutex_unlock(&d->lock);
	/* Requests are not repeated: these may be the last records for a long time. */
	if (rerun)
		cfs_data_queue_compact(d, j->ino, j->indx, !paused);
}

static int compact_all(struct cfs_data *d, const struct cfs_ctx *ctx, cfs_ino_t ino, uint32_t indx)
{
	int r;

	do {
		r = compact_once(d, ctx, ino, indx);
	} while (r > 0 && !cfs_deadline_passed(ctx->deadline));
	return r < 0 ? r : 0;
}

int cfs_data_compact(struct cfs_data *d, const struct cfs_ctx *ctx, cfs_ino_t ino, uint32_t indx)
{
	struct cfs_compact_job self = {0};
	bool mine;
	int r;

	if (d->conf.read_only)
		return -EROFS;
	pthread_mutex_lock(&d->lock);
	mine = !job_find(d, ino, indx);
	if (mine)
		job_add(d, &self, ino, indx);
	pthread_mutex_unlock(&d->lock);
	if (!mine)
		return -EAGAIN;
	r = compact_all(d, ctx, ino, indx);
	job_remove(d, &self);
	return r;
}

static void compact_job(struct cfs_job *job)
{
	struct cfs_compact_job *j = caa_container_of(job, struct cfs_compact_job, job);
	struct cfs_data *d = j->data;
	struct cfs_ctx ctx = cfs_ctx_internal(TIMEOUTS * d->conf.io_timeout_ms);
	uint64_t start_ms = cfs_now_ms(), pause_ms = 0;
	int r;

	r = compact_all(d, &ctx, j->ino, j->indx);
	if (r < 0 && r != -EAGAIN && r != -ENOENT) {
		pause_ms = CFS_MIN(PAUSES * (cfs_now_ms() - start_ms), PAUSE_MAX_MS);
		cfs_warn("chunk not compacted, its compaction pauses for %llu s: inode=%llu "
			 "chunk=%u error=%s",
			 (unsigned long long)pause_ms / 1000, (unsigned long long)j->ino, j->indx,
			 cfs_errname(r));
	}
	pthread_mutex_lock(&d->lock);
	if (pause_ms)
		note_failure(d, j->ino, j->indx, pause_ms);
	else if (r == 0)
		note_success(d);
	pthread_mutex_unlock(&d->lock);
	job_remove(d, j);
	free(j);
}

void cfs_data_queue_compact(struct cfs_data *d, cfs_ino_t ino, uint32_t indx, bool force)
{
	struct cfs_compact_job *j, *other;
	bool queued = false, paused;

	if (d->conf.read_only || atomic_load(&d->draining))
		return;
	j = calloc(1, sizeof(*j));
	if (!j)
		return;
	j->job.run = compact_job;
	pthread_mutex_lock(&d->lock);
	other = job_find(d, ino, indx);
	paused = !force && pauses(d, ino, indx);
	if (other && !paused) {
		other->rerun = true;
	} else if (!other && !paused && !atomic_load(&d->draining) &&
		   (force || d->n_compacts < QUEUE_MAX / 2)) {
		job_add(d, j, ino, indx);
		queued = true;
	}
	pthread_mutex_unlock(&d->lock);
	if (queued && cfs_workers_try_submit(d->compactors, &j->job) == 0)
		return;
	if (queued)
		job_remove(d, j);
	free(j);
}

void cfs_compact_stop(struct cfs_data *d, cfs_deadline_t deadline)
{
	struct cfs_compact_job *j, *next;

	atomic_store(&d->draining, true);
	pthread_mutex_lock(&d->lock);
	for (j = TAILQ_FIRST(&d->compacts); j; j = next) {
		next = TAILQ_NEXT(j, link);
		if (!j->job.run || !cfs_workers_cancel(d->compactors, &j->job))
			continue;
		TAILQ_REMOVE(&d->compacts, j, link);
		d->n_compacts--;
		free(j);
	}
	while (d->n_compacts && cfs_cond_wait(&d->compacted, &d->lock, deadline) == 0)
		;
	pthread_mutex_unlock(&d->lock);
}
