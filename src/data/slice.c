/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a slice: open -> frozen -> tail claimed -> all blocks stored -> committed or failed.
 *
 * It stays in the pending list of its chunk, where readers see it, until its record is in the
 * cached list (or the list is dropped) under the same hold of the file's lock. A failed put or
 * commit is retried until io_timeout_ms have passed since the first failure; then the error is
 * recorded on the file. The block is still retried as long as there is memory for it; otherwise the
 * slice is dropped without a record.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/activity.h"
#include "base/cleanup.h"
#include "data-internal.h"

#define BACKOFF_BASE_MS 50
#define BACKOFF_MAX_MS	2000
/* Part of the pool that blocks past their deadline may hold. */
#define KEEP_PARTS 2

struct put {
	struct cfs_job job;
	struct cfs_wslice *slice;
	uint32_t index;
	unsigned attempt;
	bool sync;		/* the caller commits itself */
	bool reported;		/* the error is recorded on the file */
	uint64_t failed_ms;	/* last */
	cfs_deadline_t give_up; /* 0 until it has failed once */
};

static uint32_t block_size(const struct cfs_wslice *s)
{
	return s->file->data->conf.block_size;
}

/* Pause between two tries; many of them fit into the time until giving up. */
static void wait_before_try(struct cfs_data *d, unsigned attempt, cfs_deadline_t give_up)
{
	unsigned max_ms = (unsigned)CFS_MIN(BACKOFF_MAX_MS, d->conf.io_timeout_ms / 16 + 1);

	cfs_backoff(attempt, CFS_MIN(BACKOFF_BASE_MS, max_ms), max_ms, give_up);
}

static bool block_stored(const struct cfs_wslice *s, uint32_t i)
{
	return s->stored[i / 64] >> (i % 64) & 1;
}

/* ---- states, with the file's lock ---- */

static void upload_job(struct cfs_job *job)
{
	struct cfs_wslice *s = caa_container_of(job, struct cfs_wslice, job);

	cfs_wslice_upload(s, false, cfs_deadline_in(s->file->data->conf.io_timeout_ms));
}

struct cfs_wslice *cfs_wslice_new(struct cfs_chunk *c, uint32_t pos)
{
	struct cfs_file *f = c->file;
	struct cfs_wslice *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->file = f;
	s->chunk = c;
	s->seq = ++f->seq;
	s->pos = pos;
	s->born_ms = s->touched_ms = cfs_now_ms();
	s->born = cfs_clocks_now();
	s->job.run = upload_job;
	TAILQ_INSERT_TAIL(&c->pending, s, in_chunk);
	TAILQ_INSERT_TAIL(&f->slices, s, in_file);
	c->n_open++;
	if (f->n_pending++ == 0 && f->mark)
		atomic_store(f->mark, 1);
	cfs_file_ref(f);
	atomic_fetch_add(&f->data->n_slices, 1);
	return s;
}

void cfs_wslice_freeze(struct cfs_wslice *s)
{
	if (s->frozen)
		return;
	s->frozen = true;
	s->chunk->n_open--;
}

void cfs_file_freeze(struct cfs_file *f)
{
	struct cfs_wslice *s;

	TAILQ_FOREACH(s, &f->slices, in_file)
	cfs_wslice_freeze(s);
}

bool cfs_wslice_due(const struct cfs_wslice *s)
{
	return s->frozen && !s->busy && !s->claimed;
}

void cfs_wslice_kick(struct cfs_wslice *s)
{
	if (!cfs_wslice_due(s))
		return;
	if (s->file->flush_idle) {
		pthread_cond_broadcast(&s->file->cond);
		return;
	}
	/* Without a thread for it the ticker tries again. */
	s->claimed = cfs_workers_try_submit(s->file->data->flushers, &s->job) == 0;
}

/* Its uploads have ended: only the commit, or the failure, is left. */
static bool slice_ready(const struct cfs_wslice *s)
{
	return s->tailed && !s->puts;
}

static void commit_job(struct cfs_job *job)
{
	struct cfs_chunk *c = caa_container_of(job, struct cfs_chunk, job);
	struct cfs_file *f = c->file;

	if (c->attempt)
		wait_before_try(f->data, c->attempt - 1, c->give_up);
	cfs_chunk_commit(c, cfs_deadline_in(f->data->conf.io_timeout_ms));
	cfs_file_unref(f);
}

bool cfs_chunk_due(const struct cfs_chunk *c)
{
	const struct cfs_wslice *s = TAILQ_FIRST(&c->pending);

	return s && !c->committing && slice_ready(s) && !s->held &&
	       (s->sent || cfs_attrs_may_commit(c->file));
}

static bool submit_commit(struct cfs_chunk *c)
{
	c->job.run = commit_job;
	cfs_file_ref(c->file);
	c->committing = cfs_workers_try_submit(c->file->data->flushers, &c->job) == 0;
	if (!c->committing) /* a slice is pending, so this is not the last reference */
		cfs_file_unref(c->file);
	return c->committing;
}

void cfs_chunk_kick(struct cfs_chunk *c)
{
	if (!cfs_chunk_due(c))
		return;
	if (c->file->flush_idle)
		pthread_cond_broadcast(&c->file->cond);
	else
		submit_commit(c);
}

void cfs_file_kick(struct cfs_file *f)
{
	struct cfs_wslice *s;

	TAILQ_FOREACH(s, &f->slices, in_file)
	{
		cfs_wslice_kick(s);
		if (s == TAILQ_FIRST(&s->chunk->pending))
			cfs_chunk_kick(s->chunk);
	}
}

static void slice_fail(struct cfs_wslice *s, int err)
{
	if (!s->err)
		s->err = err;
	cfs_wslice_freeze(s);
	cfs_wslice_kick(s);
}

/* ---- upload ---- */

static void release_stored(struct cfs_wslice *s, uint32_t index)
{
	uint32_t block = block_size(s), k, i, last;
	uint32_t end = CFS_MIN(s->handed, (index + 1) * block);

	for (k = index * block / CFS_PAGE_LARGE; k * CFS_PAGE_LARGE < end; k++) {
		if (!s->pages[k])
			continue;
		/*
		 * With blocks smaller than a page, the page waits for all of its blocks; a write
		 * may be copying bytes into the next one, also when the slice is frozen.
		 */
		if ((k + 1) * CFS_PAGE_LARGE > s->handed &&
		    (s->busy || !s->frozen || s->handed != s->len))
			continue;
		last = (CFS_MIN((k + 1) * CFS_PAGE_LARGE, s->handed) - 1) / block;
		for (i = k * CFS_PAGE_LARGE / block; i <= last && block_stored(s, i); i++)
			;
		if (i <= last)
			continue;
		cfs_page_unref(s->pages[k]);
		s->pages[k] = NULL;
	}
}

static void put_retry(struct cfs_job *job);
static void record_error(struct cfs_file *f, int err);

/* Blocks that cannot be stored must leave memory for readers, and for other writers. */
static bool room_to_keep(const struct cfs_data *d)
{
	struct cfs_pool_stats pool;

	cfs_pool_stats(d->conf.pool, &pool);
	return !atomic_load(&d->draining) && pool.used[CFS_USE_WRITE] <= pool.budget / KEEP_PARTS;
}

/* The deadline has passed: writers get the error, but their bytes may still be saved. */
static bool keep(struct put *p, int err)
{
	struct cfs_file *f = p->slice->file;

	if (!room_to_keep(f->data))
		return false;
	if (!p->reported) {
		cfs_err("block not stored in time, its bytes stay in memory: inode=%llu slice=%llu "
			"block=%u error=%s",
			(unsigned long long)f->node.key, (unsigned long long)p->slice->id, p->index,
			cfs_errname(err));
		pthread_mutex_lock(&f->lock);
		record_error(f, err);
		f->late_seq++;
		cfs_file_wake(f);
		pthread_mutex_unlock(&f->lock);
		cfs_closing_advance(f->data);
	}
	p->reported = true;
	p->give_up = cfs_deadline_in(f->data->conf.io_timeout_ms);
	return true;
}

/* Puts to a slow store time out too, but other blocks make progress. */
static bool retry_later(struct put *p, int err)
{
	struct cfs_data *d = p->slice->file->data;

	if (cfs_meta_is_gone(d->conf.meta))
		return false;
	if (!p->give_up)
		p->give_up = cfs_deadline_in(d->conf.io_timeout_ms);
	if (err == -ETIMEDOUT)
		p->give_up =
			CFS_MAX(p->give_up, atomic_load(&d->stored_ms) + d->conf.io_timeout_ms);
	if (cfs_deadline_passed(p->give_up) && !keep(p, err))
		return false;
	p->sync = false;
	p->failed_ms = cfs_now_ms();
	p->job.run = put_retry;
	return cfs_workers_try_submit(d->flushers, &p->job) == 0;
}

static void put_done(void *arg, int err)
{
	struct put *p = arg;
	struct cfs_wslice *s = p->slice;
	struct cfs_file *f = s->file;

	if (err && retry_later(p, err))
		return;
	if (err)
		cfs_err("block not stored, its bytes are lost: inode=%llu slice=%llu block=%u "
			"error=%s",
			(unsigned long long)f->node.key, (unsigned long long)s->id, p->index,
			cfs_errname(err));
	else
		atomic_store(&f->data->stored_ms, cfs_now_ms());
	pthread_mutex_lock(&f->lock);
	s->puts--;
	if (err) {
		slice_fail(s, err);
	} else {
		s->stored[p->index / 64] |= 1ULL << (p->index % 64);
		s->moment = cfs_store_moment(f->data->conf.store);
		release_stored(s, p->index);
	}
	/* After the unlock the slice may be freed. */
	if (!p->sync && s == TAILQ_FIRST(&s->chunk->pending))
		cfs_chunk_kick(s->chunk);
	pthread_mutex_unlock(&f->lock);
	free(p);
}

static int slice_id(struct cfs_wslice *s, cfs_deadline_t deadline, uint64_t *ret)
{
	struct cfs_file *f = s->file;
	struct cfs_ctx ctx;
	uint64_t id;
	int r;

	pthread_mutex_lock(&f->lock);
	*ret = s->id;
	pthread_mutex_unlock(&f->lock);
	if (*ret)
		return 0;
	ctx = cfs_ctx_internal(0);
	ctx.deadline = deadline;
	r = cfs_meta_new_slice(f->data->conf.meta, &ctx, &id);
	if (r < 0)
		return r;
	pthread_mutex_lock(&f->lock);
	if (!s->id)
		s->id = id;
	*ret = s->id;
	pthread_mutex_unlock(&f->lock);
	return 0;
}

/* References to the bytes of a block. */
static int block_bytes(struct cfs_wslice *s, uint32_t index, struct cfs_segs *ret)
{
	uint64_t off = (uint64_t)index * block_size(s), end;
	int r = 0;
	CFS_LOCK_GUARD(&s->file->lock);

	end = CFS_MIN(off + block_size(s), s->handed);
	while (off < end && r == 0) {
		uint32_t in = (uint32_t)(off % CFS_PAGE_LARGE);
		uint32_t n = (uint32_t)CFS_MIN(CFS_PAGE_LARGE - in, end - off);
		struct cfs_page *page = cfs_page_ref(s->pages[off / CFS_PAGE_LARGE]);

		r = cfs_segs_add(ret, page, in, n);
		if (r < 0)
			cfs_page_unref(page);
		off += n;
	}
	return r;
}

static void put_start(struct put *p, cfs_deadline_t deadline)
{
	struct cfs_wslice *s = p->slice;
	struct cfs_store *store = s->file->data->conf.store;
	struct cfs_block b = {.index = p->index};
	struct cfs_segs data;
	bool answered = true;
	int r;

	cfs_segs_init(&data);
	pthread_mutex_lock(&s->file->lock);
	b.tier = s->file->attr.tier;
	pthread_mutex_unlock(&s->file->lock);
	r = cfs_meta_check_volume(s->file->data->conf.meta, deadline);
	if (r == 0)
		r = slice_id(s, deadline, &b.slice);
	if (r == 0)
		r = block_bytes(s, p->index, &data);
	b.len = (uint32_t)data.len;
	if (r == 0 && p->sync) {
		r = cfs_store_put_sync(store, &b, &data, deadline);
	} else if (r == 0) {
		r = cfs_store_put(store, &b, &data, put_done, p, deadline);
		answered = r < 0;
		if (r == -EIO) /* there was no room for it in time */
			r = -ETIMEDOUT;
	}
	cfs_segs_release(&data);
	if (answered)
		put_done(p, r);
}

static void put_retry(struct cfs_job *job)
{
	struct put *p = caa_container_of(job, struct put, job);
	struct cfs_file *f = p->slice->file;
	uint64_t id;

	pthread_mutex_lock(&f->lock);
	id = p->slice->id;
	pthread_mutex_unlock(&f->lock);
	/* Other blocks were stored since: many long waits would hold up each other. */
	if (atomic_load(&f->data->stored_ms) > p->failed_ms)
		p->attempt = 0;
	cfs_activity_wait(CFS_WAIT_QUEUE, id, "of blocks to be stored again");
	wait_before_try(f->data, p->attempt++, p->give_up);
	cfs_activity_wait_end();
	put_start(p, p->give_up);
}

void cfs_wslice_put(struct cfs_wslice *s, uint32_t first, uint32_t last, bool sync,
		    cfs_deadline_t deadline)
{
	struct cfs_file *f = s->file;
	struct put *p;
	uint32_t i;

	/* Each put holds the slice until its answer; after the last one it may be freed. */
	for (i = first; i < last; i++) {
		p = calloc(1, sizeof(*p));
		if (!p) {
			pthread_mutex_lock(&f->lock);
			s->puts--;
			slice_fail(s, -ENOMEM);
			if (s == TAILQ_FIRST(&s->chunk->pending))
				cfs_chunk_kick(s->chunk);
			pthread_mutex_unlock(&f->lock);
			continue;
		}
		p->slice = s;
		p->index = i;
		p->sync = sync;
		put_start(p, deadline);
	}
}

void cfs_wslice_upload(struct cfs_wslice *s, bool sync, cfs_deadline_t deadline)
{
	struct cfs_file *f = s->file;
	uint32_t block = block_size(s), first, last;

	pthread_mutex_lock(&f->lock);
	first = s->handed / block;
	last = s->err ? first : CFS_DIV_UP(s->len, block);
	s->handed = s->len;
	s->tailed = true;
	s->puts += last - first;
	if (!sync && s == TAILQ_FIRST(&s->chunk->pending))
		cfs_chunk_kick(s->chunk);
	pthread_mutex_unlock(&f->lock);
	/* Without a tail the slice may already be freed. */
	if (first < last)
		cfs_wslice_put(s, first, last, sync, deadline);
}

/* ---- commit ---- */

static void slice_free(struct cfs_wslice *s)
{
	struct cfs_file *f = s->file;
	uint32_t k;

	for (k = 0; k < s->n_pages; k++)
		cfs_page_unref(s->pages[k]);
	TAILQ_REMOVE(&s->chunk->pending, s, in_chunk);
	TAILQ_REMOVE(&f->slices, s, in_file);
	if (--f->n_pending == 0) {
		cfs_attrs_keep(f, 0); /* they were stored, or are lost with the last bytes */
		if (f->mark && !f->lost)
			atomic_store(f->mark, 0);
	}
	atomic_fetch_sub(&f->data->n_slices, 1);
	atomic_fetch_sub(&f->data->dirty_bytes, s->len);
	free(s->pages);
	free(s);
	cfs_file_wake(f);
	cfs_file_unref(f); /* the running commit has its own reference */
}

/* The errors that fsync(2) may return; the backend's own reason is in the log. */
static int error_of_writers(int err)
{
	switch (err) {
	case -ENOSPC:
	case -EDQUOT:
	case -EROFS:
	case -EFBIG:
	case -ENOMEM:
		return err;
	default:
		return -EIO;
	}
}

static void record_error(struct cfs_file *f, int err)
{
	err = error_of_writers(err);
	f->errs[f->err_seq++ % CFS_FILE_ERRORS] = err;
	atomic_fetch_add(&f->data->commit_errors, 1);
}

/* Errors after which the record may or may not have been appended. */
static bool unsure(int err)
{
	return err == -EIO || err == -ETIMEDOUT;
}

/* `cachefs gc` may have removed the blocks: this host was suspended, or its clock was set. */
static int check_age(const struct cfs_wslice *s, uint64_t slice, cfs_deadline_t deadline,
		     bool *ret_gone)
{
	int r;

	if (!cfs_gc_may_remove(s->born))
		return 0;
	r = cfs_store_has_slice(s->file->data->conf.store, slice, s->len, deadline);
	if (r)
		return r < 0 ? r : 0;
	cfs_err("blocks of a write that was not committed for long are gone: inode=%llu slice=%llu",
		(unsigned long long)s->file->node.key, (unsigned long long)slice);
	*ret_gone = true;
	return -EIO;
}

/*
 * Blocks that are gone say that the slice was committed, except when `cachefs gc` may have removed
 * them, as those of no file.
 */
static int is_stored(void *arg, const struct cfs_slice *rec, cfs_deadline_t deadline)
{
	const struct cfs_wslice *s = arg;
	int r = cfs_store_has_slice(s->file->data->conf.store, rec->id, rec->size, deadline);

	if (r || !cfs_gc_may_remove(s->born))
		return r;
	cfs_err("blocks of a write that may not have been stored are gone: inode=%llu slice=%llu",
		(unsigned long long)s->file->node.key, (unsigned long long)rec->id);
	return -EIO;
}

/* Other members of *commit are filled in. */
static int commit_record(struct cfs_wslice *s, struct cfs_commit *commit, cfs_deadline_t deadline)
{
	struct cfs_chunk *c = s->chunk;
	struct cfs_ctx ctx = cfs_ctx_internal(0);
	int r;

	ctx.deadline = deadline;
	commit->repeated = c->repeated;
	commit->known_length = c->known_length;
	commit->is_stored = is_stored;
	commit->arg = s;
	r = cfs_meta_commit(c->file->data->conf.meta, &ctx, commit);
	c->repeated = commit->repeated;
	c->known_length = commit->known_length;
	return r;
}

/* The commit of s, which refers to *attrs. Called with the file's lock. */
static struct cfs_commit commit_of(const struct cfs_wslice *s, struct cfs_attr_change *attrs)
{
	struct cfs_commit commit = {
		.ino = s->file->node.key,
		.indx = s->chunk->indx,
		.slice = {.pos = s->pos, .id = s->id, .size = s->len, .len = s->len},
		.mtime = s->mtime,
	};

	if (!s->carries)
		return commit;
	*attrs = s->attrs.change;
	if (attrs->set & CFS_SET_MTIME)
		commit.mtime = s->attrs.mtime;
	attrs->set &= ~(uint32_t)CFS_SET_MTIME;
	if (attrs->set)
		commit.attrs = attrs;
	return commit;
}

static bool covers_stored(const struct cfs_wslice *s)
{
	return cfs_file_covers_stored(s->file,
				      ((uint64_t)s->chunk->indx << CFS_CHUNK_BITS) + s->pos);
}

/* Called with the lock held. The slice will not be committed. */
static void drop_slice(struct cfs_wslice *s, int err)
{
	struct cfs_chunk *c = s->chunk;
	struct cfs_file *f = c->file;

	if (unsure(err))
		cfs_chunk_drop(c);
	if (err != -ENOENT && f->n_pending == 1 && f->waiting.change.set)
		cfs_err("mode, owner or times that waited for lost bytes are not stored: "
			"inode=%llu",
			(unsigned long long)f->node.key);
	/* Data of an unlinked file is not counted as lost. */
	if (err != -ENOENT) {
		atomic_fetch_add(&f->data->lost_bytes, s->len);
		atomic_fetch_add(&f->data->lost_files, !f->lost);
		f->lost = true;
	}
	slice_free(s);
	record_error(f, err);
	cfs_file_compute_length(f);
}

/* ---- what follows a commit ---- */

/* Called without locks. True: the commit is made again, by a worker or by the next flush. */
static bool repeat_commit(struct cfs_wslice *s, int err)
{
	struct cfs_chunk *c = s->chunk;
	struct cfs_file *f = c->file;

	if (!cfs_commit_may_succeed(err))
		return false;
	if (!c->attempt++)
		c->give_up = cfs_deadline_in(f->data->conf.io_timeout_ms);
	if (cfs_deadline_passed(c->give_up))
		return false;
	pthread_mutex_lock(&f->lock);
	/* A failed sync stays failed; staged bytes are still there. */
	s->moment = cfs_store_moment(f->data->conf.store);
	if (!submit_commit(c))
		cfs_warn("commit failed, the next flush repeats it: inode=%llu",
			 (unsigned long long)f->node.key);
	pthread_mutex_unlock(&f->lock);
	return true;
}

/* Called without locks. named: an attempt may have appended the record. */
static void give_up_commit(const struct cfs_commit *commit, struct cfs_data *d, int err, bool named)
{
	if (err == -ENOENT)
		cfs_info("slice not committed, its file was removed: inode=%llu slice=%llu",
			 (unsigned long long)commit->ino, (unsigned long long)commit->slice.id);
	else
		cfs_err("slice not committed, its bytes are lost: inode=%llu chunk=%u slice=%llu "
			"error=%s",
			(unsigned long long)commit->ino, commit->indx,
			(unsigned long long)commit->slice.id, cfs_errname(err));
	if (!named)
		cfs_meta_discard_slice(d->conf.meta, commit->slice.id, commit->slice.size);
}

/* Called with the file's lock. Frees s. */
static void end_commit(struct cfs_wslice *s, const struct cfs_commit *commit, int err)
{
	struct cfs_chunk *c = s->chunk;
	struct cfs_file *f = c->file;
	bool waited = f->carrying || f->waiting.change.set;

	c->attempt = 0;
	c->repeated = false;
	cfs_attrs_end(s, !err);
	if (err) {
		drop_slice(s, err);
	} else {
		/* Others may have changed the list between the commit and its answer. */
		if (commit->repeated)
			cfs_chunk_drop(c);
		else
			cfs_chunk_append(c, &commit->slice);
		slice_free(s);
		cfs_file_changed(f, &commit->attr);
		atomic_fetch_add(&f->data->commits, 1);
	}
	if (waited)
		cfs_file_kick(f);
}

void cfs_chunk_commit(struct cfs_chunk *c, cfs_deadline_t deadline)
{
	struct cfs_file *f = c->file;
	struct cfs_data *d = f->data;
	struct cfs_wslice *s;

	pthread_mutex_lock(&f->lock);
	while ((s = TAILQ_FIRST(&c->pending)) && slice_ready(s) && !s->held) {
		bool covers = covers_stored(s), lost = false;
		struct cfs_attr_change attrs;
		struct cfs_commit commit;
		uint64_t moment = s->moment;
		int err = s->err;

		if (!s->len) { /* there was no memory for its first byte */
			slice_free(s);
			continue;
		}
		/* The end of the commit under way has this chunk committed. */
		if (!err && !s->sent && !cfs_attrs_may_commit(f))
			break;
		if (!err)
			cfs_attrs_begin(s);
		commit = commit_of(s, &attrs);
		pthread_mutex_unlock(&f->lock);
		if (!err) {
			cfs_file_await_commit(f, commit.slice.id);
			if (covers) {
				err = cfs_store_sync_since(d->conf.store, moment, deadline);
				lost = cfs_store_is_suspect(d->conf.store, commit.slice.id);
			}
			/* No later sync makes a suspect durable: another try is of no use. */
			if (lost)
				err = -EIO;
			/* An earlier attempt may have named them: then cfs_meta_commit() asks. */
			if (!err && !c->repeated)
				err = check_age(s, commit.slice.id, deadline, &lost);
			if (!err)
				err = commit_record(s, &commit, deadline);
			cfs_activity_wait_end();
			if (err && !lost && repeat_commit(s, err))
				return;
			if (err)
				/* A slice that was lost before any attempt is in no record. */
				give_up_commit(&commit, d, err,
					       unsure(err) && (!lost || c->repeated));
		} else if (commit.slice.id) {
			cfs_meta_discard_slice(d->conf.meta, commit.slice.id, commit.slice.size);
		}
		pthread_mutex_lock(&f->lock);
		end_commit(s, &commit, err);
	}
	c->committing = false;
	pthread_mutex_unlock(&f->lock);
	cfs_file_list_dirty(f);
	cfs_closing_advance(d);
}

/* ---- group commit ---- */

bool cfs_group_take(struct cfs_file *f, uint64_t last, struct cfs_group_commit *ret)
{
	struct cfs_wslice *s = TAILQ_FIRST(&f->slices), *next = s ? TAILQ_NEXT(s, in_file) : NULL;
	struct cfs_chunk *c = s ? s->chunk : NULL;

	if (!s || s->seq > last || (next && next->seq <= last) || !slice_ready(s) || s->err ||
	    !s->len || c->committing || c->attempt || c->repeated || f->settling ||
	    cfs_gc_may_remove(s->born) || covers_stored(s) ||
	    (!s->sent && !cfs_attrs_may_commit(f)))
		return false;
	cfs_attrs_begin(s);
	c->committing = true;
	cfs_file_ref(f);
	ret->slice = s;
	ret->commit = commit_of(s, &ret->attrs);
	ret->commit.is_stored = is_stored;
	ret->commit.arg = s;
	return true;
}

void cfs_group_return(struct cfs_group_commit *g)
{
	struct cfs_file *f = g->slice->file;

	pthread_mutex_lock(&f->lock);
	g->slice->chunk->committing = false;
	cfs_chunk_kick(g->slice->chunk);
	pthread_mutex_unlock(&f->lock);
	cfs_file_unref(f);
}

static void end_of_group(struct cfs_group_commit *g, int err)
{
	struct cfs_wslice *s = g->slice;
	struct cfs_chunk *c = s->chunk;
	struct cfs_file *f = s->file;

	if (err) {
		pthread_mutex_lock(&f->lock);
		c->repeated = g->commit.repeated;
		c->known_length = g->commit.known_length;
		/* Those before it have ended. */
		if (err != -ECANCELED)
			cfs_closing_release(f);
		pthread_mutex_unlock(&f->lock);
	}
	if (err == -ECANCELED) {
		cfs_group_return(g);
		return;
	}
	if (err && repeat_commit(s, err)) {
		cfs_file_unref(f);
		return;
	}
	if (err)
		give_up_commit(&g->commit, f->data, err, unsure(err));
	else
		atomic_fetch_add(&f->data->grouped_commits, 1);
	pthread_mutex_lock(&f->lock);
	end_commit(s, &g->commit, err);
	c->committing = false;
	cfs_chunk_kick(c);
	pthread_mutex_unlock(&f->lock);
	cfs_file_list_dirty(f);
	cfs_file_unref(f);
}

void cfs_group_commit(struct cfs_data *d, struct cfs_group_commit *v, size_t n)
{
	struct cfs_commit *commits[CFS_COMMITS_MAX];
	struct cfs_ctx ctx = cfs_ctx_internal(0);
	int err[CFS_COMMITS_MAX];
	bool aged = false;
	size_t i;

	for (i = 0; i < n; i++) {
		commits[i] = &v[i].commit;
		err[i] = -ECANCELED;
		aged |= cfs_gc_may_remove(v[i].slice->born);
	}
	ctx.deadline = cfs_deadline_in(d->conf.io_timeout_ms);
	cfs_file_await_commit(v->slice->file, v->commit.slice.id);
	/* Each of them is looked at before it is committed, alone. */
	if (!aged)
		cfs_meta_commit_group(d->conf.meta, &ctx, commits, n, err);
	cfs_activity_wait_end();
	for (i = 0; i < n; i++)
		end_of_group(&v[i], err[i]);
	cfs_closing_advance(d);
}
