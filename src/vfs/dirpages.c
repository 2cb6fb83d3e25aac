/* SPDX-License-Identifier: Apache-2.0 */
#include "dirpages.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"

#define SHARE 16 /* all pages have that fraction (1/n) of the pool */

/* Chunks grow, so that a small directory takes little. */
static const uint32_t chunk_size[] = {CFS_PAGE_SMALL, CFS_PAGE_MEDIUM, CFS_PAGE_LARGE};

static size_t size_of(size_t name_len, size_t after_len)
{
	size_t size = sizeof(struct dirpage_entry) + name_len + after_len;

	return CFS_DIV_UP(size, _Alignof(struct dirpage_entry)) * _Alignof(struct dirpage_entry);
}

/* ---- memory ---- */

void dirpage_drop(struct dirpages *all, struct dirpage *p)
{
	unsigned i;

	for (i = 0; i < p->n_chunks; i++) {
		if (p->chunk[i].page) {
			atomic_fetch_sub(&all->bytes, p->chunk[i].size);
			cfs_page_unref(p->chunk[i].page);
		} else {
			free(p->chunk[i].data);
		}
	}
	p->n_chunks = 0;
}

/* Called with the lock held. False: no page is idle. */
static bool drop_idle(struct dirpages *all)
{
	struct dirpage *p = TAILQ_FIRST(&all->idle);

	if (!p)
		return false;
	TAILQ_REMOVE(&all->idle, p, link);
	p->idle = false;
	dirpage_drop(all, p);
	return true;
}

static void reclaim(void *arg, uint64_t want)
{
	struct dirpages *all = arg;
	uint64_t before;
	CFS_LOCK_GUARD(&all->lock);

	before = atomic_load(&all->bytes);
	while (before < want + atomic_load(&all->bytes) && drop_idle(all))
		;
}

/* Takes so many bytes from the share. False: it has not so many. */
static bool charge(struct dirpages *all, uint32_t size)
{
	CFS_LOCK_GUARD(&all->lock);

	while (atomic_load(&all->bytes) + size > all->max && drop_idle(all))
		;
	if (atomic_load(&all->bytes) + size > all->max)
		return false;
	atomic_fetch_add(&all->bytes, size);
	return true;
}

static bool add_chunk(struct dirpages *all, struct dirpage *p)
{
	struct dirpage_chunk c = {.first = p->n};

	if (p->n_chunks == DIRPAGE_CHUNKS || (p->n_chunks && !p->chunk[0].page))
		return false;
	c.size = chunk_size[CFS_MIN(p->n_chunks, 2u)];
	if (charge(all, c.size)) {
		if (cfs_page_get(all->pool, c.size, CFS_USE_LISTING, 0, &c.page) < 0)
			atomic_fetch_sub(&all->bytes, c.size);
		else
			c.data = c.page->data;
	}
	/* A page always has a first chunk, so that the reader gets some entries. */
	if (!c.data && !p->n_chunks)
		c.data = malloc(c.size);
	if (!c.data)
		return false;
	p->chunk[p->n_chunks++] = c;
	return true;
}

int dirpages_init(struct dirpages *all, struct cfs_pool *pool)
{
	struct cfs_pool_stats st;

	cfs_pool_stats(pool, &st);
	all->pool = pool;
	all->max = st.budget / SHARE;
	TAILQ_INIT(&all->idle);
	pthread_mutex_init(&all->lock, NULL);
	return cfs_pool_add_reclaim(pool, reclaim, all);
}

void dirpages_fini(struct dirpages *all)
{
	cfs_pool_remove_reclaim(all->pool, reclaim, all);
	pthread_mutex_destroy(&all->lock);
}

/* ---- pages ---- */

void dirpage_take(struct dirpages *all, struct dirpage *p)
{
	pthread_mutex_lock(&all->lock);
	if (p->idle)
		TAILQ_REMOVE(&all->idle, p, link);
	p->idle = false;
	pthread_mutex_unlock(&all->lock);
}

void dirpage_put(struct dirpages *all, struct dirpage *p)
{
	if (!p->n_chunks)
		return;
	if (!p->chunk[0].page) {
		dirpage_drop(all, p);
		return;
	}
	pthread_mutex_lock(&all->lock);
	TAILQ_INSERT_TAIL(&all->idle, p, link);
	p->idle = true;
	pthread_mutex_unlock(&all->lock);
}

bool dirpages_have_room(struct dirpages *all, const struct dirpage *p)
{
	uint64_t size = 0;
	unsigned i;

	for (i = 0; i < p->n_chunks; i++)
		size += p->chunk[i].size;
	return atomic_load(&all->bytes) + size <= all->max;
}

void dirpage_clear(struct dirpages *all, struct dirpage *p)
{
	dirpage_drop(all, p);
	p->n = 0;
	p->at = p->at_off = p->at_chunk = 0;
}

bool dirpage_add(struct dirpages *all, struct dirpage *p, const struct cfs_dirent *e, bool attrs)
{
	size_t size = size_of(e->name_len, e->after->len);
	struct dirpage_chunk *c = p->n_chunks ? &p->chunk[p->n_chunks - 1] : NULL;
	struct dirpage_entry *entry;

	if (!c || c->used + size > c->size) {
		if (!add_chunk(all, p))
			return false;
		c = &p->chunk[p->n_chunks - 1];
	}
	entry = (struct dirpage_entry *)(c->data + c->used);
	entry->ino = e->entry.ino;
	entry->type = e->type;
	entry->name_len = (uint8_t)e->name_len;
	entry->after_len = e->after->len;
	if (attrs)
		entry->attr = e->entry.attr;
	memcpy(entry->text, e->name, e->name_len);
	memcpy(entry->text + e->name_len, e->after->key, e->after->len);
	c->used += (uint32_t)size;
	p->n++;
	return true;
}

const struct dirpage_entry *dirpage_get(struct dirpage *p, uint32_t i)
{
	const struct dirpage_entry *e;

	if (i < p->at) {
		p->at_chunk = p->n_chunks - 1;
		while (p->chunk[p->at_chunk].first > i)
			p->at_chunk--;
		p->at = p->chunk[p->at_chunk].first;
		p->at_off = 0;
	}
	for (;;) {
		e = (const struct dirpage_entry *)(p->chunk[p->at_chunk].data + p->at_off);
		if (p->at == i)
			return e;
		p->at++;
		p->at_off += (uint32_t)size_of(e->name_len, e->after_len);
		if (p->at_off == p->chunk[p->at_chunk].used) {
			p->at_chunk++;
			p->at_off = 0;
		}
	}
}
