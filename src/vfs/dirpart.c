/* SPDX-License-Identifier: Apache-2.0 */
#include "dirpart.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "vfs-internal.h"

struct collecting {
	struct cfs_vfs *v;
	struct dirpart *part;
	bool full;
};

static int collect(void *arg, const struct cfs_dirent *e)
{
	struct collecting *c = arg;

	c->full = !dirpage_add(&c->v->dirpages, &c->part->page, e, c->part->attrs);
	return c->full;
}

int dirpart_read(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t dir, struct dirpart *p,
		 uint64_t first, const struct cfs_cursor *cursor, size_t size, bool attrs)
{
	struct collecting c = {v, p, false};
	int r;

	p->end = *cursor;
	dirpage_clear(&v->dirpages, &p->page);
	p->first = first;
	p->loaded = false;
	p->attrs = attrs;
	p->seq = cache_seq(&v->cache);
	p->read_ms = cfs_now_ms();
	r = cfs_meta_readdir(v->conf.meta, ctx, dir, attrs, size, &p->end, collect, &c);
	if (r < 0)
		return r;
	if (c.full && !p->page.n)
		return -ENOMEM;
	p->last = r == 1;
	p->loaded = true;
	return 0;
}

/* Belongs to the reader and to the thread that reads ahead; the one that leaves last frees it. */
struct dirpart_ahead {
	struct cfs_job job; /* first */
	struct cfs_vfs *vfs;
	cfs_ino_t dir;
	struct cfs_cursor from;
	size_t size;
	struct dirpart part; /* the thread's until DONE; idle then */

	pthread_mutex_t lock; /* protects what follows */
	pthread_cond_t changed;
	enum { QUEUED, READING, DONE, ABANDONED } state;
};

static void ahead_free(struct dirpart_ahead *a)
{
	dirpage_take(&a->vfs->dirpages, &a->part.page);
	dirpage_drop(&a->vfs->dirpages, &a->part.page);
	pthread_cond_destroy(&a->changed);
	pthread_mutex_destroy(&a->lock);
	free(a);
}

/* Goes on to `next`. False: the reader has left. */
static bool advance(struct dirpart_ahead *a, int next)
{
	CFS_LOCK_GUARD(&a->lock);

	pthread_cond_signal(&a->changed);
	if (a->state == ABANDONED)
		return false;
	a->state = next;
	return true;
}

static void read_ahead(struct cfs_job *job)
{
	struct dirpart_ahead *a = (struct dirpart_ahead *)job;
	struct cfs_ctx ctx = ahead_ctx(a->vfs);
	bool wanted = advance(a, READING);

	if (wanted) {
		if (!atomic_load(&a->vfs->ahead_stopped))
			dirpart_read(a->vfs, &ctx, a->dir, &a->part, a->part.first, &a->from,
				     a->size, a->part.attrs);
		dirpage_put(&a->vfs->dirpages, &a->part.page);
		wanted = advance(a, DONE);
	}
	if (!wanted)
		ahead_free(a);
}

struct dirpart_ahead *dirpart_begin(struct cfs_vfs *v, cfs_ino_t dir, const struct dirpart *p,
				    size_t size)
{
	struct dirpart_ahead *a;

	if (atomic_load(&v->ahead_stopped) || !dirpages_have_room(&v->dirpages, &p->page))
		return NULL;
	a = calloc(1, sizeof(*a));
	if (!a)
		return NULL;
	a->job.run = read_ahead;
	a->vfs = v;
	a->dir = dir;
	a->from = p->end;
	a->size = size;
	a->part.first = p->first + p->page.n;
	a->part.attrs = p->attrs;
	pthread_mutex_init(&a->lock, NULL);
	cfs_cond_init(&a->changed);
	if (cfs_workers_try_submit(v->ahead, &a->job) < 0) {
		ahead_free(a);
		return NULL;
	}
	return a;
}

/* Leaves it, unless the part was read. */
static bool leave(struct dirpart_ahead *a)
{
	bool done = a->state == DONE;

	if (!done)
		a->state = ABANDONED;
	pthread_mutex_unlock(&a->lock);
	return done;
}

bool dirpart_finish(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct dirpart_ahead *a,
		    struct dirpart *ret)
{
	bool usable;
	int r = 0;

	pthread_mutex_lock(&a->lock);
	/* While it is queued, the thread does other work, for which a reader does not wait. */
	while (a->state == READING && r == 0)
		r = cfs_cond_wait(&a->changed, &a->lock, ctx->deadline);
	if (!leave(a))
		return false;
	dirpage_take(&v->dirpages, &a->part.page);
	usable = a->part.loaded && (!a->part.page.n || a->part.page.n_chunks);
	if (usable) {
		*ret = a->part;
		a->part.page = (struct dirpage){0};
	}
	ahead_free(a);
	return usable;
}

void dirpart_abandon(struct dirpart_ahead *a)
{
	if (!a)
		return;
	pthread_mutex_lock(&a->lock);
	if (leave(a))
		ahead_free(a);
}
