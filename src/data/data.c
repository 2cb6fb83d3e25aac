/* SPDX-License-Identifier: Apache-2.0 */
/* Life of the data layer, the table of open files, and the flusher. */
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "data-internal.h"

#define FLUSHERS 8
/* Slices, their puts and chunks: the memory for their bytes bounds them. */
#define FLUSH_QUEUE    SIZE_MAX
#define COMPACTORS     2
#define COMPACT_QUEUE  1024
#define TICK_MIN_MS    10
#define TICK_MAX_MS    250
#define DRAIN_PATIENCE 3 /* io_timeout_ms, for the work that is left at the end */

static struct cfs_file *file_of(struct cfs_node *node)
{
	return caa_container_of(node, struct cfs_file, node);
}

/* Fails when the last reference is already gone. */
static bool ref_alive(struct cfs_file *f)
{
	uint32_t refs = atomic_load_explicit(&f->refs, memory_order_relaxed);

	while (refs) {
		if (atomic_compare_exchange_weak(&f->refs, &refs, refs + 1))
			return true;
	}
	return false;
}

static void file_free(struct cfs_node *node)
{
	struct cfs_file *f = file_of(node);

	cfs_chunks_free(f);
	free(f->amplify);
	pthread_cond_destroy(&f->cond);
	pthread_mutex_destroy(&f->lock);
	free(f);
}

void cfs_file_ref(struct cfs_file *f)
{
	atomic_fetch_add_explicit(&f->refs, 1, memory_order_relaxed);
}

void cfs_file_unref(struct cfs_file *f)
{
	struct cfs_data *d = f->data;

	if (atomic_fetch_sub(&f->refs, 1) != 1)
		return;
	cfs_table_remove(d->files, &f->node);
	cfs_table_free_rcu(&f->node, file_free);
	atomic_fetch_sub(&d->n_files, 1);
}

static int file_new(struct cfs_data *d, cfs_ino_t ino, const struct cfs_attr *attr,
		    uint64_t asked_ns, struct cfs_file **ret)
{
	struct cfs_file *f = calloc(1, sizeof(*f));
	int r;

	if (!f)
		return -ENOMEM;
	r = cfs_cond_init(&f->cond);
	if (r < 0) {
		free(f);
		return r;
	}
	pthread_mutex_init(&f->lock, NULL);
	f->node.key = ino;
	f->data = d;
	f->refs = 1;
	f->opens = 1;
	f->attr = *attr;
	f->asked_ns = asked_ns;
	f->length = attr->length;
	TAILQ_INIT(&f->slices);
	*ret = f;
	return 0;
}

struct cfs_file *cfs_data_find(struct cfs_data *d, cfs_ino_t ino)
{
	struct cfs_file *f = NULL;
	struct cfs_node *node;

	cfs_table_read_lock();
	node = cfs_table_find(d->files, ino);
	if (node && ref_alive(file_of(node)))
		f = file_of(node);
	cfs_table_read_unlock();
	return f;
}

/*
 * Whether `attr` may have been read before the last own change was made, or before the known
 * attributes were read. Such a snapshot proves nothing: a foreign change in that time has a later
 * ctime.
 */
static bool attr_stale(const struct cfs_file *f, const struct cfs_attr *attr, uint64_t asked_ns)
{
	return asked_ns <= CFS_MAX(f->own_ns, f->asked_ns) &&
	       cfs_timespec_cmp(attr->ctime, f->attr.ctime) <= 0;
}

static void take_attr(struct cfs_file *f, const struct cfs_attr *attr, uint64_t asked_ns)
{
	if (attr_stale(f, attr, asked_ns))
		return;
	if (cfs_timespec_cmp(attr->mtime, f->attr.mtime) != 0 ||
	    cfs_timespec_cmp(attr->ctime, f->attr.ctime) != 0)
		cfs_chunks_drop(f, 0, UINT32_MAX);
	f->attr = *attr;
	f->asked_ns = CFS_MAX(f->asked_ns, asked_ns);
	cfs_file_compute_length(f);
}

/* The list may lack foreign commits from before the last own change: see chunks.c. */
static void drop_unsure(struct cfs_file *f)
{
	size_t i;

	for (i = 0; i < f->n_chunks; i++) {
		if (f->chunks[i]->cached && !cfs_chunk_sure(f->chunks[i]))
			cfs_chunk_drop(f->chunks[i]);
	}
}

void cfs_file_reopen(struct cfs_file *f, const struct cfs_attr *attr, uint64_t asked_ns)
{
	pthread_mutex_lock(&f->lock);
	take_attr(f, attr, asked_ns);
	drop_unsure(f);
	pthread_mutex_unlock(&f->lock);
}

int cfs_data_open(struct cfs_data *d, cfs_ino_t ino, const struct cfs_attr *attr, uint64_t asked_ns,
		  struct cfs_file **ret)
{
	struct cfs_file *f = cfs_data_find(d, ino), *fresh = NULL;
	struct cfs_node *node;
	int r;

	while (!f) {
		if (!fresh) {
			r = file_new(d, ino, attr, asked_ns, &fresh);
			if (r < 0)
				return r;
		}
		cfs_table_read_lock();
		node = cfs_table_add(d->files, &fresh->node);
		if (node == &fresh->node) {
			cfs_table_read_unlock();
			atomic_fetch_add(&d->n_files, 1);
			cfs_ahead_opened(d, ino, attr);
			*ret = fresh;
			return 0;
		}
		if (ref_alive(file_of(node)))
			f = file_of(node);
		else /* its last user is about to remove it too */
			cfs_table_remove(d->files, node);
		cfs_table_read_unlock();
	}
	if (fresh)
		file_free(&fresh->node);
	atomic_fetch_add(&f->opens, 1);
	cfs_file_reopen(f, attr, asked_ns);
	cfs_ahead_opened(d, ino, attr);
	*ret = f;
	return 0;
}

void cfs_file_put(struct cfs_file *f)
{
	if (!f)
		return;
	if (atomic_fetch_sub(&f->opens, 1) == 1) {
		pthread_mutex_lock(&f->lock);
		if (f->n_pending) {
			cfs_file_freeze(f);
			cfs_file_kick(f);
		}
		pthread_mutex_unlock(&f->lock);
	}
	cfs_file_unref(f);
}

bool cfs_data_is_open(struct cfs_data *d, cfs_ino_t ino)
{
	struct cfs_node *node;
	bool open;

	cfs_table_read_lock();
	node = cfs_table_find(d->files, ino);
	open = node && atomic_load(&file_of(node)->opens);
	cfs_table_read_unlock();
	return open;
}

void cfs_file_refresh(struct cfs_file *f, const struct cfs_attr *attr, uint64_t asked_ns)
{
	pthread_mutex_lock(&f->lock);
	take_attr(f, attr, asked_ns);
	pthread_mutex_unlock(&f->lock);
}

void cfs_file_release_space(struct cfs_file *f)
{
	/* A write under way may have reserved some for a slice that it opens next. */
	if (!f->n_pending && !f->op)
		cfs_meta_release_space(f->data->conf.meta, f->node.key);
}

void cfs_file_list_dirty(struct cfs_file *f)
{
	struct cfs_data *d = f->data;

	pthread_mutex_lock(&d->lock);
	pthread_mutex_lock(&f->lock);
	if (f->n_pending && !f->listed)
		TAILQ_INSERT_TAIL(&d->dirty, f, in_dirty);
	else if (!f->n_pending && f->listed)
		TAILQ_REMOVE(&d->dirty, f, in_dirty);
	f->listed = f->n_pending;
	cfs_file_release_space(f);
	pthread_mutex_unlock(&f->lock);
	pthread_mutex_unlock(&d->lock);
}

/* Freezes slices that are old enough or, under pressure, all of this file. Returns their bytes. */
static uint64_t freeze_old(struct cfs_file *f, uint64_t now_ms, bool pressure)
{
	const struct cfs_data_conf *conf = &f->data->conf;
	struct cfs_wslice *s;
	uint64_t bytes = 0;

	TAILQ_FOREACH(s, &f->slices, in_file)
	{
		if (s->frozen)
			continue;
		if (!pressure && now_ms < s->born_ms + conf->flush_age_ms &&
		    now_ms < s->touched_ms + conf->flush_idle_ms)
			continue;
		bytes += s->len - s->handed;
		cfs_wslice_freeze(s);
	}
	return bytes;
}

static void tick(void *arg)
{
	struct cfs_data *d = arg;
	uint64_t want = atomic_exchange(&d->pressure, 0), now_ms = cfs_now_ms(), freed;
	struct cfs_file *f;

	cfs_ahead_age(d);
	pthread_mutex_lock(&d->lock);
	TAILQ_FOREACH(f, &d->dirty, in_dirty)
	{
		pthread_mutex_lock(&f->lock);
		freed = freeze_old(f, now_ms, want > 0);
		want -= CFS_MIN(want, freed);
		cfs_file_kick(f);
		pthread_mutex_unlock(&f->lock);
	}
	pthread_mutex_unlock(&d->lock);
}

/* Callers may hold locks of any layer, so the ticker does the work. */
static void reclaim(void *arg, uint64_t want)
{
	struct cfs_data *d = arg;

	if (!atomic_load(&d->n_slices))
		return;
	atomic_fetch_add(&d->pressure, want);
	cfs_ticker_kick(d->ticker);
}

int cfs_data_create(const struct cfs_data_conf *conf, struct cfs_data **ret)
{
	uint64_t period_ms = CFS_MIN(conf->flush_age_ms, conf->flush_idle_ms) / 4;
	struct cfs_data *d;
	int r;

	if (conf->block_size < 65536 || conf->block_size & (conf->block_size - 1))
		return -EINVAL;
	d = calloc(1, sizeof(*d));
	if (!d)
		return -ENOMEM;
	d->conf = *conf;
	r = cfs_cond_init(&d->compacted);
	if (r < 0)
		goto free_d;
	pthread_mutex_init(&d->lock, NULL);
	TAILQ_INIT(&d->dirty);
	TAILQ_INIT(&d->compacts);
	r = cfs_closing_init(&d->closing);
	if (r < 0)
		goto destroy_lock;
	r = cfs_ahead_create(&d->ahead);
	if (r < 0)
		goto fini_closing;
	r = cfs_table_create(64, &d->files);
	if (r < 0)
		goto free_ahead;
	r = cfs_workers_create("flush", FLUSHERS, FLUSH_QUEUE, &d->flushers);
	if (r < 0)
		goto free_table;
	r = cfs_workers_create("compact", COMPACTORS, COMPACT_QUEUE, &d->compactors);
	if (r < 0)
		goto free_flushers;
	period_ms = CFS_MAX(TICK_MIN_MS, CFS_MIN(TICK_MAX_MS, period_ms));
	r = cfs_ticker_start("flush-tick", period_ms, tick, d, &d->ticker);
	if (r < 0)
		goto free_compactors;
	r = cfs_pool_add_reclaim(conf->pool, reclaim, d);
	if (r < 0)
		goto stop_ticker;
	r = cfs_wholes_start(d);
	if (r < 0)
		goto remove_reclaim;
	*ret = d;
	return 0;

remove_reclaim:
	cfs_pool_remove_reclaim(conf->pool, reclaim, d);
stop_ticker:
	cfs_ticker_stop(d->ticker);
free_compactors:
	cfs_workers_destroy(d->compactors);
free_flushers:
	cfs_workers_destroy(d->flushers);
free_table:
	cfs_table_destroy(d->files);
free_ahead:
	cfs_ahead_destroy(d->ahead);
fini_closing:
	cfs_closing_fini(&d->closing);
destroy_lock:
	pthread_mutex_destroy(&d->lock);
	pthread_cond_destroy(&d->compacted);
free_d:
	free(d);
	return r;
}

/* A file with slices left, with a reference. */
static struct cfs_file *first_dirty(struct cfs_data *d)
{
	struct cfs_file *f;
	CFS_LOCK_GUARD(&d->lock);

	TAILQ_FOREACH(f, &d->dirty, in_dirty)
	{
		if (ref_alive(f))
			return f;
	}
	return NULL;
}

static void freeze_all(struct cfs_data *d)
{
	struct cfs_file *f;

	pthread_mutex_lock(&d->lock);
	TAILQ_FOREACH(f, &d->dirty, in_dirty)
	{
		pthread_mutex_lock(&f->lock);
		cfs_file_freeze(f);
		cfs_file_kick(f);
		pthread_mutex_unlock(&f->lock);
	}
	pthread_mutex_unlock(&d->lock);
}

struct dirty {
	struct cfs_file *f; /* with a reference */
	uint32_t err_seq;   /* of its errors */
};

/* The files with slices left; *ret is malloc'ed. */
static int list_dirty_files(struct cfs_data *d, struct dirty **ret, size_t *ret_n)
{
	struct dirty *all = NULL;
	size_t max = 0, n = 0, i;
	struct cfs_file *f;

	pthread_mutex_lock(&d->lock);
	TAILQ_FOREACH(f, &d->dirty, in_dirty)
	max++;
	if (max)
		all = malloc(max * sizeof(*all));
	if (all) {
		TAILQ_FOREACH(f, &d->dirty, in_dirty)
		{
			if (ref_alive(f))
				all[n++].f = f;
		}
	}
	pthread_mutex_unlock(&d->lock);
	if (max && !all)
		return -ENOMEM;
	for (i = 0; i < n; i++)
		all[i].err_seq = cfs_file_err_seq(all[i].f);
	*ret = all;
	*ret_n = n;
	return 0;
}

int cfs_data_store(struct cfs_data *d, cfs_deadline_t deadline)
{
	struct cfs_ctx ctx = cfs_ctx_internal(0);
	struct dirty *all;
	size_t n, i;
	int r, rf;

	ctx.deadline = deadline;
	r = list_dirty_files(d, &all, &n);
	if (r < 0)
		return r;
	freeze_all(d);
	for (i = 0; i < n; i++) {
		/* A closed file is not committed before those that were closed before it. */
		rf = cfs_closing_has_all(all[i].f) ? 0
						   : cfs_file_flush(all[i].f, &ctx, all[i].err_seq);
		if (r == 0)
			r = rf;
		cfs_file_unref(all[i].f);
	}
	free(all);
	rf = cfs_data_await_closed(d, deadline);
	return r ? r : rf;
}

int cfs_data_drain(struct cfs_data *d)
{
	struct cfs_ctx ctx = cfs_ctx_internal(DRAIN_PATIENCE * d->conf.io_timeout_ms);
	struct cfs_file *f;
	uint32_t err_seq;
	int r = 0, rf;

	cfs_wholes_stop(d);
	cfs_compact_stop(d, ctx.deadline);
	freeze_all(d);
	cfs_data_await_closed(d, ctx.deadline);
	while ((f = first_dirty(d))) {
		err_seq = cfs_file_err_seq(f);
		rf = cfs_file_flush(f, &ctx, err_seq);
		if (cfs_file_dirty(f) && cfs_deadline_passed(ctx.deadline)) {
			cfs_err("writes not stored in time, the remaining ones are not waited for: "
				"inode=%llu",
				(unsigned long long)f->node.key);
			cfs_file_unref(f);
			return r ? r : -EIO;
		}
		if (r == 0)
			r = rf;
		/* The worker that committed may not have dropped its reference yet. */
		cfs_file_list_dirty(f);
		cfs_file_unref(f);
	}
	return r;
}

int cfs_data_destroy(struct cfs_data *d)
{
	int r;

	if (!d)
		return 0;
	r = cfs_data_drain(d);
	cfs_pool_remove_reclaim(d->conf.pool, reclaim, d);
	cfs_ticker_stop(d->ticker);
	cfs_workers_destroy(d->compactors);
	cfs_workers_destroy(d->flushers);
	if (atomic_load(&d->n_slices)) /* uploads under way still refer to d */
		return r;
	cfs_table_destroy(d->files);
	cfs_closing_fini(&d->closing);
	cfs_ahead_destroy(d->ahead);
	cfs_wholes_free(d);
	pthread_mutex_destroy(&d->lock);
	pthread_cond_destroy(&d->compacted);
	free(d);
	return r;
}

int cfs_data_delete_slice(struct cfs_data *d, uint64_t slice, uint32_t size)
{
	return cfs_store_remove_slice(d->conf.store, slice, size,
				      cfs_deadline_in(d->conf.io_timeout_ms));
}

int cfs_data_slices_used(struct cfs_data *d, uint64_t first, uint64_t n, cfs_deadline_t deadline)
{
	return cfs_store_slices_used(d->conf.store, first, n, deadline);
}

int cfs_data_sync_objects(struct cfs_data *d)
{
	return cfs_store_sync(d->conf.store, cfs_deadline_in(d->conf.io_timeout_ms));
}
