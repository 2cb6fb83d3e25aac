/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index of a directory: entries in one array, found through a hash that grows by one bucket per
 * entry (linear hashing), so that no insertion pays for a table of ten million. Both arrays grow by
 * realloc(), which moves pages, not bytes, at the sizes where it matters.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "disk-internal.h"

#define FIRST_BUCKETS 64
#define FIRST_ENTRIES 64
#define GHOSTS_MIN    (1u << 10)
#define GHOSTS_MAX    (1u << 20)
/* Entries that are looked at in one go with the lock held. */
#define EXPIRE_STRIDE 4096

uint32_t cfs_disk_hash(const struct cfs_block *b)
{
	uint64_t h = (b->slice ^ (uint64_t)b->index << 48) * 0x9E3779B97F4A7C15ULL;

	h ^= h >> 29;
	h *= 0xBF58476D1CE4E5B9ULL;
	return (uint32_t)(h >> 32);
}

uint32_t cfs_disk_queue_hash(const struct index_entry *e)
{
	struct cfs_block b = cfs_disk_entry_block(e);

	return cfs_disk_hash(&b);
}

static uint32_t *bucket_of(struct index *ix, uint32_t hash)
{
	uint32_t i = hash & (2 * ix->low - 1);

	return &ix->buckets[i < ix->n_buckets ? i : i - ix->low];
}

static bool is_block(const struct index_entry *e, const struct cfs_block *b)
{
	return e->slice_low == (uint32_t)b->slice && e->slice_high == b->slice >> 32 &&
	       e->index == b->index && e->last == b->len - 1;
}

/* The link that points at the entry, or at the end of its chain. */
static uint32_t *find(struct index *ix, const struct cfs_block *b)
{
	uint32_t *link = bucket_of(ix, cfs_disk_hash(b));

	while (*link != CFS_NIL && !is_block(&ix->entries[*link], b))
		link = &ix->entries[*link].chain;
	return link;
}

/* Splits one bucket. Without memory the chains get longer. */
static void add_bucket(struct index *ix)
{
	uint32_t from = ix->n_buckets - ix->low, h, next;

	if (CFS_ARRAY_ROOM(ix->buckets, ix->n_buckets, ix->bucket_cap) < 0)
		return;
	h = ix->buckets[from];
	ix->buckets[from] = ix->buckets[ix->n_buckets] = CFS_NIL;
	ix->n_buckets++;
	for (; h != CFS_NIL; h = next) {
		struct index_entry *e = &ix->entries[h];
		uint32_t *head = bucket_of(ix, cfs_disk_queue_hash(e));

		next = e->chain;
		e->chain = *head;
		*head = h;
	}
	if (ix->n_buckets == 2 * ix->low)
		ix->low = ix->n_buckets;
}

static uint32_t new_entry(struct index *ix)
{
	uint32_t h = ix->free;

	if (h != CFS_NIL) {
		ix->free = ix->entries[h].chain;
		return h;
	}
	return CFS_ARRAY_ROOM(ix->entries, ix->top, ix->cap) < 0 ? CFS_NIL : ix->top++;
}

/* *link is the entry. */
static void remove_at(struct index *ix, uint32_t *link)
{
	uint32_t h = *link;
	struct index_entry *e = &ix->entries[h];
	struct cfs_block b = cfs_disk_entry_block(e);

	*link = e->chain;
	cfs_disk_queue_leave(ix, h);
	ix->n--;
	ix->bytes -= cfs_disk_charge(&b);
	e->chain = ix->free;
	ix->free = h;
}

bool cfs_disk_index_has(struct index *ix, const struct cfs_block *b)
{
	CFS_LOCK_GUARD(&ix->lock);

	return *find(ix, b) != CFS_NIL;
}

bool cfs_disk_index_hit(struct index *ix, const struct cfs_block *b, uint32_t now_s)
{
	uint32_t h;
	CFS_LOCK_GUARD(&ix->lock);

	h = *find(ix, b);
	if (h != CFS_NIL)
		cfs_disk_queue_hit(ix, h, now_s);
	return h != CFS_NIL;
}

static int add(struct index *ix, const struct cfs_block *b, uint32_t atime_s, bool found)
{
	struct index_entry *e;
	uint32_t h, *head;

	if (*find(ix, b) != CFS_NIL)
		return -EEXIST;
	if (ix->n >= ix->max ||
	    (!found && ix->bytes + ix->reserved + cfs_disk_charge(b) > ix->limit))
		return -ENOSPC;
	h = new_entry(ix);
	if (h == CFS_NIL)
		return -ENOMEM;
	e = &ix->entries[h];
	*e = (struct index_entry){
		.slice_low = (uint32_t)b->slice,
		.slice_high = (uint16_t)(b->slice >> 32),
		.index = (uint16_t)b->index,
		.last = (b->len - 1) & 0xFFFFFF,
		.atime = atime_s,
		.found = found,
	};
	if (++ix->n > ix->n_buckets)
		add_bucket(ix);
	head = bucket_of(ix, cfs_disk_hash(b));
	e->chain = *head;
	*head = h;
	ix->bytes += cfs_disk_charge(b);
	cfs_disk_queue_enter(ix, h, found);
	return 0;
}

int cfs_disk_index_add(struct index *ix, const struct cfs_block *b, uint32_t atime_s, bool found)
{
	CFS_LOCK_GUARD(&ix->lock);

	return add(ix, b, atime_s, found);
}

bool cfs_disk_index_remove(struct index *ix, const struct cfs_block *b)
{
	uint32_t *link;
	CFS_LOCK_GUARD(&ix->lock);

	link = find(ix, b);
	if (*link == CFS_NIL)
		return false;
	remove_at(ix, link);
	return true;
}

bool cfs_disk_index_take_victim(struct index *ix, struct cfs_block *ret)
{
	uint32_t h;
	CFS_LOCK_GUARD(&ix->lock);

	h = cfs_disk_queue_victim(ix);
	if (h == CFS_NIL)
		return false;
	*ret = cfs_disk_entry_block(&ix->entries[h]);
	remove_at(ix, find(ix, ret));
	return true;
}

unsigned cfs_disk_index_take_expired(struct index *ix, uint32_t before_s, uint32_t *cursor,
				     struct cfs_block *ret, unsigned n)
{
	unsigned found = 0;
	uint32_t steps;
	CFS_LOCK_GUARD(&ix->lock);

	for (steps = 0; steps < EXPIRE_STRIDE && found < n && *cursor < ix->top; steps++) {
		struct index_entry *e = &ix->entries[(*cursor)++];

		if (e->queue == CFS_QUEUE_NONE || e->atime >= before_s)
			continue;
		ret[found] = cfs_disk_entry_block(e);
		remove_at(ix, find(ix, &ret[found++]));
	}
	if (*cursor >= ix->top)
		*cursor = 0;
	return found;
}

struct index_state cfs_disk_index_state(struct index *ix)
{
	CFS_LOCK_GUARD(&ix->lock);

	return (struct index_state){.bytes = ix->bytes, .reserved = ix->reserved, .n = ix->n};
}

void cfs_disk_index_reserve(struct index *ix, int64_t bytes)
{
	pthread_mutex_lock(&ix->lock);
	ix->reserved += (uint64_t)bytes;
	pthread_mutex_unlock(&ix->lock);
}

uint32_t cfs_disk_index_victim_s(struct index *ix)
{
	uint32_t h;
	CFS_LOCK_GUARD(&ix->lock);

	h = cfs_disk_queue_victim(ix);
	return h == CFS_NIL ? UINT32_MAX : ix->entries[h].atime;
}

struct age {
	uint32_t atime, handle;
};

static int newest_first(const void *a, const void *b)
{
	const struct age *x = a, *y = b;

	return (x->atime < y->atime) - (x->atime > y->atime);
}

/* Taken unlocked, so the list may be out of date when it is used. */
static uint32_t list_found(struct index *ix, struct age **ret)
{
	struct age *v = NULL;
	uint32_t h, n = 0;

	pthread_mutex_lock(&ix->lock);
	if (ix->n > 0)
		v = malloc(ix->n * sizeof(*v));
	for (h = 0; v && h < ix->top; h++) {
		const struct index_entry *e = &ix->entries[h];

		if (e->queue != CFS_QUEUE_NONE && e->found)
			v[n++] = (struct age){.atime = e->atime, .handle = h};
	}
	pthread_mutex_unlock(&ix->lock);
	*ret = v;
	return n;
}

void cfs_disk_index_sort_found(struct index *ix)
{
	struct age *v;
	uint32_t i, n = list_found(ix, &v);

	if (!v)
		return;
	qsort(v, n, sizeof(*v), newest_first);
	for (i = 0; i < n; i++) {
		struct index_entry *e;

		pthread_mutex_lock(&ix->lock);
		e = &ix->entries[v[i].handle];
		if (v[i].handle < ix->top && e->queue != CFS_QUEUE_NONE && e->found) {
			cfs_disk_queue_leave(ix, v[i].handle);
			cfs_disk_queue_enter(ix, v[i].handle, true);
			e->found = 0;
		}
		pthread_mutex_unlock(&ix->lock);
	}
	free(v);
}

static void reset(struct index *ix)
{
	unsigned i;

	ix->top = ix->n = 0;
	ix->free = CFS_NIL;
	ix->bytes = 0;
	ix->n_buckets = ix->low = FIRST_BUCKETS;
	for (i = 0; i < FIRST_BUCKETS; i++)
		ix->buckets[i] = CFS_NIL;
	for (i = 0; i < CFS_QUEUES; i++)
		ix->queues[i] = (struct index_queue){.newest = CFS_NIL, .oldest = CFS_NIL};
}

void cfs_disk_index_clear(struct index *ix)
{
	pthread_mutex_lock(&ix->lock);
	reset(ix);
	pthread_mutex_unlock(&ix->lock);
}

int cfs_disk_index_init(struct index *ix, enum cfs_disk_eviction eviction, uint64_t limit,
			uint32_t max, uint32_t block_size)
{
	uint32_t ghosts = GHOSTS_MIN;

	pthread_mutex_init(&ix->lock, NULL);
	ix->eviction = eviction;
	ix->limit = limit;
	ix->max = max;
	ix->cap = FIRST_ENTRIES;
	ix->bucket_cap = FIRST_BUCKETS;
	ix->entries = calloc(ix->cap, sizeof(*ix->entries));
	ix->buckets = calloc(ix->bucket_cap, sizeof(*ix->buckets));
	while (ghosts < GHOSTS_MAX && ghosts < limit / block_size && ghosts < max)
		ghosts *= 2;
	ix->ghosts = calloc(ghosts, sizeof(*ix->ghosts));
	ix->ghost_mask = ghosts - 1;
	if (!ix->entries || !ix->buckets || !ix->ghosts)
		return -ENOMEM;
	reset(ix);
	return 0;
}

void cfs_disk_index_fini(struct index *ix)
{
	free(ix->entries);
	free(ix->buckets);
	free(ix->ghosts);
	pthread_mutex_destroy(&ix->lock);
}
