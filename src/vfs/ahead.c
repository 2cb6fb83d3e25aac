/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read-ahead over the files of a directory: what walk.c advises, on threads of its own. A listing
 * made here only says what to fetch. Attributes and names that come along are cached like those of
 * a look-up; an open asks the metadata in any case.
 */
#include <stdlib.h>

#include "base/bytes.h"
#include "vfs-internal.h"

#define THREADS	     2
#define QUEUE_LIMIT  64
#define PAGE_ENTRIES 4096
#define TIMEOUT_MS   10000

struct task {
	struct cfs_job job; /* first */
	struct cfs_vfs *vfs;
	cfs_ino_t dir;
	struct walk_batch *batch; /* to be fetched; NULL: the directory is to be listed */
};

static int collect(void *arg, const struct cfs_dirent *e)
{
	struct listing *l = arg;

	return e->type == CFS_TYPE_FILE && !listing_add(l, e->name, e->name_len, e->entry.ino);
}

static struct cfs_ctx ahead_ctx(const struct cfs_vfs *v)
{
	return cfs_ctx_internal(CFS_MIN(v->conf.io_timeout_ms, (uint64_t)TIMEOUT_MS));
}

/* NULL: it could not be read. A full one is a prefix. */
static struct listing *list(struct cfs_vfs *v, cfs_ino_t dir)
{
	struct listing *l = listing_new();
	struct cfs_cursor cursor = {0};
	uint32_t had = 0;
	struct cfs_ctx ctx;
	int r = 0;

	while (l && r == 0 && !atomic_load(&v->ahead_stopped)) {
		ctx = ahead_ctx(v);
		r = cfs_meta_readdir(v->conf.meta, &ctx, dir, false, PAGE_ENTRIES, &cursor, collect,
				     l);
		if (listing_size(l) == LISTING_FILES_MAX)
			break;
		/* A page without files, or one at which the names are full. */
		if (r == 0 && listing_size(l) == had)
			break;
		had = listing_size(l);
	}
	if (l && (r < 0 || !listing_sort(l))) {
		listing_free(l);
		l = NULL;
	}
	return l;
}

/* As after a look-up of each name, at a time when the metadata was asked. */
static void keep_answers(struct cfs_vfs *v, const struct walk_batch *b, uint64_t seq,
			 uint64_t asked_ns)
{
	uint64_t asked_ms = asked_ns / 1000000;
	uint32_t entry_ms;
	struct vnode *n;
	unsigned i;

	for (i = 0; i < b->n; i++) {
		const struct cfs_head *h = &b->heads[i];

		if (h->err || !h->named)
			continue;
		n = vnode_find(v, h->ino);
		if (n) {
			vnode_put(n);
			continue;
		}
		cache_put_attr(&v->cache, seq, asked_ms, h->ino, &h->attr);
		entry_ms = entry_timeout(v, &h->attr);
		if (entry_ms)
			cache_put_name(&v->cache, seq, asked_ms + entry_ms, b->dir, h->name,
				       h->name_len, h->ino);
	}
}

static void run(struct cfs_job *job)
{
	struct task *t = (struct task *)job;
	struct cfs_vfs *v = t->vfs;
	uint64_t seq = cache_seq(&v->cache), asked_ns = cfs_now_ns();
	struct cfs_ctx ctx = ahead_ctx(v);

	if (atomic_load(&v->ahead_stopped))
		;
	else if (!t->batch)
		walk_listed(&v->walks, t->dir, list(v, t->dir));
	else if (cfs_data_read_ahead(v->conf.data, &ctx, t->batch->heads, t->batch->n) > 0)
		keep_answers(v, t->batch, seq, asked_ns);
	free(t->batch);
	free(t);
}

void ahead_opened(struct cfs_vfs *v, cfs_ino_t ino, const struct cfs_attr *attr)
{
	struct walk_batch *batch = NULL;
	struct task *t;

	if (!attr->parent || atomic_load(&v->ahead_stopped) || !cfs_data_reads_ahead(v->conf.data))
		return;
	if (walk_opened(&v->walks, attr->parent, ino, &batch) == WALK_NOTHING)
		return;
	t = malloc(sizeof(*t));
	if (t)
		*t = (struct task){.job.run = run, .vfs = v, .dir = attr->parent, .batch = batch};
	if (t && cfs_workers_try_submit(v->ahead, &t->job) == 0)
		return;
	if (!batch)
		walk_listed(&v->walks, attr->parent, NULL);
	free(batch);
	free(t);
}

int ahead_start(struct cfs_vfs *v)
{
	walks_init(&v->walks);
	return cfs_workers_create("ahead", THREADS, QUEUE_LIMIT, &v->ahead);
}

void ahead_stop(struct cfs_vfs *v)
{
	atomic_store(&v->ahead_stopped, true);
	if (v->ahead)
		cfs_workers_destroy(v->ahead);
	v->ahead = NULL;
}
