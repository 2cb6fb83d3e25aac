/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory tier: a hash of blocks in shards, each with its own lock and its own clock of pages.
 *
 * A hit takes one shard lock for as long as it takes to find the block and reference its pages
 * (well below a microsecond), so that an evicted page is free the moment it leaves the clock and no
 * grace period stands between memory pressure and memory.
 *
 * Eviction is a clock with a small counter: the hand takes the oldest page; a page that was hit
 * since the hand's last visit, or is in use (freeing it would free nothing), gets another round.
 * The first read of a page does not count: streams read each page once. A prefetched page has a
 * grace period until its first read, or pages already read would evict pages about to be read.
 *
 * Pages that a stream of reads or writes has passed are evicted first, when there are more than a
 * few. So a stream uses little memory instead of all of the tier: the first touch of memory costs
 * more than anything else. A repeated read mostly finds the bytes in the kernel's cache.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "store-internal.h"

#define FIRST_BUCKETS 64
#define HOT_MAX	      3
/* Share of the pool, the rest being for what is in flight without having to evict first. */
#define SHARE_PERCENT 80
/* At most one part of the tier is pages that streams have passed. */
#define PASSED_PARTS 8

static uint64_t hash_block(const struct cfs_block *b)
{
	uint64_t h = (b->slice + ((uint64_t)b->index << 48)) * 0x9E3779B97F4A7C15ULL;

	h ^= h >> 32;
	h *= 0xD6E8FEB86659FD93ULL;
	return h ^ h >> 32;
}

struct shard *cfs_memory_shard(struct cfs_store *s, const struct cfs_block *b)
{
	return &s->shards[hash_block(b) % CFS_STORE_SHARDS];
}

static struct block_list *bucket_of(const struct shard *sh, const struct cfs_block *b)
{
	return &sh->buckets[hash_block(b) / CFS_STORE_SHARDS % sh->n_buckets];
}

struct block *cfs_memory_find(struct shard *sh, const struct cfs_block *b)
{
	struct block *block;

	LIST_FOREACH(block, bucket_of(sh, b), link)
	{
		if (cfs_block_equal(&block->id, b))
			return block;
	}
	return NULL;
}

/* Without memory for a larger table the chains get longer. */
static void grow(struct shard *sh)
{
	struct block_list *old = sh->buckets, *v;
	size_t i, n = sh->n_buckets;
	struct block *block;

	v = calloc(2 * n, sizeof(*v));
	if (!v)
		return;
	sh->buckets = v;
	sh->n_buckets = 2 * n;
	for (i = 0; i < n; i++) {
		while ((block = LIST_FIRST(&old[i])) != NULL) {
			LIST_REMOVE(block, link);
			LIST_INSERT_HEAD(bucket_of(sh, &block->id), block, link);
		}
	}
	free(old);
}

struct block *cfs_memory_use(struct shard *sh, const struct cfs_block *b)
{
	struct block *block = cfs_memory_find(sh, b);
	unsigned i, n;

	if (!block) {
		n = CFS_DIV_UP(b->len, CFS_PAGE_LARGE);
		block = calloc(1, sizeof(*block) + n * sizeof(block->slots[0]));
		if (!block)
			return NULL;
		block->id = *b;
		block->shard = sh;
		block->n_slots = n;
		for (i = 0; i < n; i++)
			block->slots[i].index = (uint16_t)i;
		if (sh->n_blocks >= sh->n_buckets)
			grow(sh);
		LIST_INSERT_HEAD(bucket_of(sh, b), block, link);
		sh->n_blocks++;
	}
	block->users++;
	return block;
}

void cfs_memory_unuse(struct shard *sh, struct block *block)
{
	if (--block->users > 0)
		return;
	LIST_REMOVE(block, link);
	sh->n_blocks--;
	free(block);
}

bool cfs_memory_insert(struct cfs_store *s, struct shard *sh, struct block *block, unsigned index,
		       struct cfs_page *page, bool ahead)
{
	struct slot *slot = &block->slots[index];

	if (slot->page || slot->flight)
		return false;
	cfs_page_set_use(page, CFS_USE_CACHE);
	slot->page = page;
	slot->hot = 0;
	slot->fresh = true;
	slot->stream = slot->passed = false;
	slot->born = atomic_fetch_add_explicit(&s->inserted, 1, memory_order_relaxed);
	if (!ahead)
		slot->born -= s->grace;
	block->users++;
	TAILQ_INSERT_TAIL(&sh->clock, slot, link);
	sh->n_clock++;
	atomic_fetch_add_explicit(&s->memory_bytes, page->size, memory_order_relaxed);
	return true;
}

/* Inserts the page where the hand comes first, or last. */
static void set_passed(struct shard *sh, struct slot *slot, bool passed)
{
	if (slot->passed == passed)
		return;
	slot->passed = passed;
	TAILQ_REMOVE(&sh->clock, slot, link);
	if (passed) {
		TAILQ_INSERT_HEAD(&sh->clock, slot, link);
		atomic_fetch_add_explicit(&sh->store->passed_bytes, slot->page->size,
					  memory_order_relaxed);
	} else {
		TAILQ_INSERT_TAIL(&sh->clock, slot, link);
		atomic_fetch_sub_explicit(&sh->store->passed_bytes, slot->page->size,
					  memory_order_relaxed);
	}
}

void cfs_memory_set_passed(struct block *block, unsigned index)
{
	set_passed(block->shard, &block->slots[index], true);
}

/* The page is the caller's to release, unlocked. May free the block. */
static struct cfs_page *remove_page(struct cfs_store *s, struct shard *sh, struct slot *slot)
{
	struct block *block =
		(struct block *)((char *)(slot - slot->index) - offsetof(struct block, slots));
	struct cfs_page *page = slot->page;

	set_passed(sh, slot, false);
	TAILQ_REMOVE(&sh->clock, slot, link);
	sh->n_clock--;
	slot->page = NULL;
	atomic_fetch_sub_explicit(&s->memory_bytes, page->size, memory_order_relaxed);
	cfs_memory_unuse(sh, block);
	return page;
}

/* A read has used the page, up to its end or not. */
static void note_hit(struct block *block, struct slot *slot, bool to_end)
{
	if (slot->fresh)
		slot->hot = 0;
	else if (slot->hot < HOT_MAX)
		slot->hot++;
	slot->fresh = false;
	if (slot->stream && to_end) {
		set_passed(block->shard, slot, true);
		slot->stream = false;
	} else {
		set_passed(block->shard, slot, false);
	}
}

static int collect(struct block *block, uint32_t off, uint32_t len, bool hit, struct cfs_segs *ret)
{
	unsigned i, first = off / CFS_PAGE_LARGE, last = (off + len - 1) / CFS_PAGE_LARGE;
	uint64_t before = ret->len;
	int r;

	if (block->put) {
		r = cfs_segs_slice(ret, cfs_put_data(block->put), off, len);
		return r < 0 ? r : 1;
	}
	for (i = first; i <= last; i++) {
		if (!block->slots[i].page)
			return 0;
	}
	for (i = first; i <= last; i++) {
		struct slot *slot = &block->slots[i];
		uint32_t from = i == first ? off % CFS_PAGE_LARGE : 0;
		uint32_t to = i == last ? (off + len - 1) % CFS_PAGE_LARGE + 1 : CFS_PAGE_LARGE;

		r = cfs_segs_add(ret, cfs_page_ref(slot->page), from, to - from);
		if (r < 0) {
			/* The slot keeps it from being the last reference. */
			cfs_page_unref(slot->page);
			cfs_segs_truncate(ret, before);
			return r;
		}
		if (hit)
			note_hit(block, slot, to == cfs_slot_len(&block->id, i));
	}
	return 1;
}

int cfs_memory_collect(struct block *block, uint32_t off, uint32_t len, struct cfs_segs *ret)
{
	return collect(block, off, len, true, ret);
}

bool cfs_memory_expects(const struct block *block, uint32_t off, uint32_t len)
{
	unsigned i, last = (off + len - 1) / CFS_PAGE_LARGE;

	for (i = off / CFS_PAGE_LARGE; i <= last; i++) {
		if (block->slots[i].flight)
			return true;
	}
	return false;
}

uint32_t cfs_memory_held(struct cfs_store *s, const struct cfs_block *b, uint32_t off, uint32_t len)
{
	struct shard *sh = cfs_memory_shard(s, b);
	uint32_t bytes = 0, end = off + len, next;
	struct block *block;
	CFS_LOCK_GUARD(&sh->lock);

	block = cfs_memory_find(sh, b);
	for (; block && off < end; off = next) {
		next = CFS_MIN(end, (off / CFS_PAGE_LARGE + 1) * CFS_PAGE_LARGE);
		if (block->put || block->slots[off / CFS_PAGE_LARGE].page)
			bytes += next - off;
	}
	return bytes;
}

int cfs_memory_collect_block(struct block *block, struct cfs_segs *ret)
{
	return collect(block, 0, block->id.len, false, ret);
}

void cfs_memory_forget(struct cfs_store *s, const struct cfs_block *b)
{
	struct shard *sh = cfs_memory_shard(s, b);
	struct cfs_page *pages[CFS_STORE_PAGES_MAX];
	struct block *block;
	unsigned i, n = 0;

	pthread_mutex_lock(&sh->lock);
	block = cfs_memory_find(sh, b);
	if (block) {
		block->users++;
		for (i = 0; i < block->n_slots; i++) {
			block->slots[i].flight = NULL;
			if (block->slots[i].page)
				pages[n++] = remove_page(s, sh, &block->slots[i]);
		}
		cfs_memory_unuse(sh, block);
	}
	pthread_mutex_unlock(&sh->lock);
	for (i = 0; i < n; i++)
		cfs_page_unref(pages[i]);
}

static bool has_grace(const struct cfs_store *s, const struct slot *slot)
{
	uint32_t now = atomic_load_explicit(&s->inserted, memory_order_relaxed);

	return slot->fresh && now - slot->born < s->grace;
}

/* Evicts one page; NULL when the hand went round the shard without finding one. */
static struct cfs_page *evict_page(struct cfs_store *s, struct shard *sh, bool hard)
{
	struct slot *slot;
	size_t steps;
	CFS_LOCK_GUARD(&sh->lock);

	for (steps = sh->n_clock; steps > 0; steps--) {
		slot = TAILQ_FIRST(&sh->clock);
		/* The only reference is that of the tier: others are taken under this lock. */
		if (slot->hot == 0 && (hard || !has_grace(s, slot)) &&
		    atomic_load(&slot->page->refs) == 1)
			return remove_page(s, sh, slot);
		if (slot->hot > 0)
			slot->hot--;
		set_passed(sh, slot, false);
		TAILQ_REMOVE(&sh->clock, slot, link);
		TAILQ_INSERT_TAIL(&sh->clock, slot, link);
	}
	return NULL;
}

/* A shard has few blocks: cold pages of other shards are evicted before hot ones of this. */
static void evict(struct cfs_store *s, uint64_t want)
{
	const unsigned cooled = CFS_STORE_SHARDS * (HOT_MAX + 1);
	unsigned idle = 0;
	uint64_t freed = 0;

	while (freed < want && idle < cooled + CFS_STORE_SHARDS) {
		unsigned i = atomic_fetch_add_explicit(&s->hand, 1, memory_order_relaxed);
		struct cfs_page *page =
			evict_page(s, &s->shards[i % CFS_STORE_SHARDS], idle >= cooled);

		if (page) {
			freed += page->size;
			idle = 0;
			cfs_page_unref(page);
		} else {
			idle++;
		}
	}
}

/* Evicts a page that its stream has passed and that has no other user; NULL: the shard has none. */
static struct cfs_page *evict_passed(struct cfs_store *s, struct shard *sh)
{
	struct slot *slot;
	CFS_LOCK_GUARD(&sh->lock);

	slot = TAILQ_FIRST(&sh->clock);
	while (slot && slot->passed && atomic_load(&slot->page->refs) > 1)
		slot = TAILQ_NEXT(slot, link);
	return slot && slot->passed ? remove_page(s, sh, slot) : NULL;
}

static void shrink_passed(struct cfs_store *s)
{
	unsigned idle = 0;

	while (idle < CFS_STORE_SHARDS &&
	       atomic_load_explicit(&s->passed_bytes, memory_order_relaxed) > s->passed_limit) {
		unsigned i = atomic_fetch_add_explicit(&s->hand, 1, memory_order_relaxed);
		struct cfs_page *page = evict_passed(s, &s->shards[i % CFS_STORE_SHARDS]);

		idle = page ? 0 : idle + 1;
		cfs_page_unref(page);
	}
}

void cfs_memory_shrink(struct cfs_store *s, uint32_t room)
{
	uint64_t bytes;

	shrink_passed(s);
	bytes = atomic_load_explicit(&s->memory_bytes, memory_order_relaxed) + room;
	if (bytes > s->memory_limit)
		evict(s, bytes - s->memory_limit);
}

static void reclaim(void *arg, uint64_t want)
{
	evict(arg, want);
}

int cfs_memory_init(struct cfs_store *s)
{
	struct cfs_pool_stats stats;
	unsigned i;

	cfs_pool_stats(s->pool, &stats);
	s->memory_limit = stats.budget / 100 * SHARE_PERCENT;
	s->passed_limit = s->memory_limit / PASSED_PARTS;
	s->grace = (uint32_t)(s->memory_limit / CFS_PAGE_LARGE / 2);
	for (i = 0; i < CFS_STORE_SHARDS; i++) {
		struct shard *sh = &s->shards[i];

		pthread_mutex_init(&sh->lock, NULL);
		sh->store = s;
		TAILQ_INIT(&sh->clock);
		sh->n_buckets = FIRST_BUCKETS;
		sh->buckets = calloc(FIRST_BUCKETS, sizeof(*sh->buckets));
		if (!sh->buckets)
			return -ENOMEM;
	}
	return cfs_pool_add_reclaim(s->pool, reclaim, s);
}

void cfs_memory_fini(struct cfs_store *s)
{
	unsigned i;

	cfs_pool_remove_reclaim(s->pool, reclaim, s);
	for (i = 0; i < CFS_STORE_SHARDS; i++) {
		struct shard *sh = &s->shards[i];

		while (!TAILQ_EMPTY(&sh->clock))
			cfs_page_unref(remove_page(s, sh, TAILQ_FIRST(&sh->clock)));
		free(sh->buckets);
		if (sh->buckets)
			pthread_mutex_destroy(&sh->lock);
	}
}
