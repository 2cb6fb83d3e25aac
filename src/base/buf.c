/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A slab is 2 MiB of data in 16 units of CFS_PAGE_LARGE. A unit is handed out whole or carved into
 * pages of one smaller class; it becomes whole again when the last of them comes back. Free units
 * of a slab and free pages of a carved unit are bits in a mask; slabs with free units and carved
 * units with free pages are on lists, so taking and giving back are O(1).
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/queue.h>

#include "activity.h"
#include "buf.h"
#include "bytes.h"
#include "log.h"

#define SLAB_SIZE  ((size_t)2 << 20)
#define SLAB_UNITS (SLAB_SIZE / CFS_PAGE_LARGE)
#define UNIT_PAGES (CFS_PAGE_LARGE / CFS_PAGE_SMALL)
#define ALL_UNITS  ((1u << SLAB_UNITS) - 1)
#define BUDGET_MIN ((uint64_t)8 << 20)
/* Part of the budget that writers leave to others. */
#define READERS_PARTS 8

/* Asked of a reclaim function at once, so that a full pool does not evict page by page. */
#define RECLAIM_STEP ((uint64_t)2 << 20)
/* A cached page becomes reclaimable when its last reader leaves, which is not signalled. */
#define RECLAIM_AGAIN_MS 50

enum page_class { SMALL, MEDIUM, LARGE, CLASS_COUNT };
static const uint32_t class_size[CLASS_COUNT] = {CFS_PAGE_SMALL, CFS_PAGE_MEDIUM, CFS_PAGE_LARGE};

_Static_assert(CFS_POOL_TORN == CLASS_COUNT * SLAB_SIZE, "a slab of each class");

struct slab;

struct page {
	struct cfs_page pub; /* first: a cfs_page is a page */
	struct slab *slab;
};

struct unit {
	TAILQ_ENTRY(unit) link; /* in pool.carved[class] while free_pages != 0 */
	struct slab *slab;
	uint32_t free_pages;
	enum page_class class;
};

/* Mapped on its own, so that the pages[] of units that are never carved cost nothing. */
struct slab {
	TAILQ_ENTRY(slab) link; /* in pool.idle, pool.slabs or pool.full, as free_units says */
	uint8_t *data;
	uint32_t free_units;
	struct unit units[SLAB_UNITS];
	struct page whole[SLAB_UNITS];
	struct page pages[SLAB_UNITS][UNIT_PAGES];
};

TAILQ_HEAD(slab_list, slab);
TAILQ_HEAD(unit_list, unit);

struct reclaimer {
	TAILQ_ENTRY(reclaimer) link;
	cfs_reclaim_fn fn;
	void *arg;
};
TAILQ_HEAD(reclaimer_list, reclaimer);

struct cfs_pool {
	uint64_t budget;
	uint64_t mapped_max; /* a partly used unit per class may pin a slab beyond the budget */
	_Atomic uint64_t used_by[CFS_USE_COUNT];
	_Atomic unsigned waiters; /* changes under lock, peeked at without */

	/*
	 * Protects the list of reclaimers and makes one caller reclaim at a time; the others find
	 * what it freed. Taken before every lock that a reclaim function takes, and before `lock`.
	 */
	pthread_mutex_t reclaim_lock;
	struct reclaimer_list reclaimers;

	/* Protects what follows. A leaf. */
	pthread_mutex_t lock;
	pthread_cond_t freed;
	uint64_t used, mapped, waits;
	uint64_t freed_count; /* grows with every page that comes back or becomes reclaimable */
	struct slab_list slabs, full; /* with free units and without */
	struct slab_list idle;	      /* wholly free; the last one used, still in caches, first */
	struct unit_list carved[CLASS_COUNT];
};

int cfs_pool_create(uint64_t budget, struct cfs_pool **ret)
{
	struct cfs_pool *p;
	int r;

	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->budget = CFS_MAX(CFS_DIV_UP(budget, SLAB_SIZE) * SLAB_SIZE, BUDGET_MIN);
	p->mapped_max = p->budget + CFS_POOL_TORN;
	TAILQ_INIT(&p->reclaimers);
	TAILQ_INIT(&p->slabs);
	TAILQ_INIT(&p->full);
	TAILQ_INIT(&p->idle);
	TAILQ_INIT(&p->carved[SMALL]);
	TAILQ_INIT(&p->carved[MEDIUM]);
	r = cfs_cond_init(&p->freed);
	if (r) {
		free(p);
		return r;
	}
	pthread_mutex_init(&p->lock, NULL);
	pthread_mutex_init(&p->reclaim_lock, NULL);
	*ret = p;
	return 0;
}

/*
 * A child that is forked would share the pages until either side writes one: both would then keep
 * a copy, and huge pages be torn into small ones. No child needs the data.
 */
static void keep_from_children(void *at, size_t size)
{
	madvise(at, size, MADV_DONTFORK);
}

/* SLAB_SIZE bytes aligned to SLAB_SIZE, without which the kernel cannot use a huge page. */
static uint8_t *map_aligned(void)
{
	size_t before;
	uint8_t *m;

	m = mmap(NULL, 2 * SLAB_SIZE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (m == MAP_FAILED)
		return NULL;
	before = -(uintptr_t)m & (SLAB_SIZE - 1);
	if (before)
		munmap(m, before);
	munmap(m + before + SLAB_SIZE, SLAB_SIZE - before);
	/* Fails on kernels without huge pages, where small ones do. */
	madvise(m + before, SLAB_SIZE, MADV_HUGEPAGE);
	keep_from_children(m + before, SLAB_SIZE);
	return m + before;
}

static int add_slab(struct cfs_pool *p)
{
	struct slab *s;
	size_t i;

	s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (s == MAP_FAILED)
		return -ENOMEM;
	s->data = map_aligned();
	if (!s->data) {
		munmap(s, sizeof(*s));
		return -ENOMEM;
	}
	keep_from_children(s, sizeof(*s));
	for (i = 0; i < SLAB_UNITS; i++)
		s->units[i].slab = s;
	s->free_units = ALL_UNITS;
	TAILQ_INSERT_HEAD(&p->idle, s, link);
	p->mapped += SLAB_SIZE;
	return 0;
}

static void remove_slab(struct cfs_pool *p, struct slab *s)
{
	TAILQ_REMOVE(&p->idle, s, link);
	p->mapped -= SLAB_SIZE;
	munmap(s->data, SLAB_SIZE);
	munmap(s, sizeof(*s));
}

static size_t unit_index(const struct unit *u)
{
	return (size_t)(u - u->slab->units);
}

static uint8_t *unit_data(const struct unit *u)
{
	return u->slab->data + unit_index(u) * CFS_PAGE_LARGE;
}

/* -ENOBUFS when the pool may not grow. */
static int take_unit(struct cfs_pool *p, struct unit **ret)
{
	struct slab *s;
	unsigned i;
	int r;

	if (TAILQ_EMPTY(&p->slabs)) {
		if (TAILQ_EMPTY(&p->idle) && p->mapped + SLAB_SIZE > p->mapped_max)
			return -ENOBUFS;
		r = TAILQ_EMPTY(&p->idle) ? add_slab(p) : 0;
		if (r < 0)
			return r;
		s = TAILQ_FIRST(&p->idle);
		TAILQ_REMOVE(&p->idle, s, link);
		TAILQ_INSERT_HEAD(&p->slabs, s, link);
	}
	s = TAILQ_FIRST(&p->slabs);
	i = (unsigned)__builtin_ctz(s->free_units);
	s->free_units &= s->free_units - 1;
	if (!s->free_units) {
		TAILQ_REMOVE(&p->slabs, s, link);
		TAILQ_INSERT_HEAD(&p->full, s, link);
	}
	*ret = &s->units[i];
	return 0;
}

static void give_unit(struct cfs_pool *p, struct unit *u)
{
	struct slab *s = u->slab;
	bool was_full = !s->free_units;

	s->free_units |= 1u << unit_index(u);
	if (was_full) {
		TAILQ_REMOVE(&p->full, s, link);
		TAILQ_INSERT_HEAD(&p->slabs, s, link);
	}
	if (s->free_units == ALL_UNITS) {
		TAILQ_REMOVE(&p->slabs, s, link);
		TAILQ_INSERT_HEAD(&p->idle, s, link);
	}
}

static uint32_t all_pages(enum page_class class)
{
	return (uint32_t)(((uint64_t)1 << (CFS_PAGE_LARGE / class_size[class])) - 1);
}

/* With the lock held. -ENOBUFS when there is no room, -ENOMEM when the kernel has none. */
static int take_page(struct cfs_pool *p, enum page_class class, struct page **ret)
{
	uint32_t size = class_size[class];
	struct page *page;
	struct unit *u;
	unsigned i = 0;
	int r;

	if (p->used + size > p->budget)
		return -ENOBUFS;
	u = class == LARGE ? NULL : TAILQ_FIRST(&p->carved[class]);
	if (!u) {
		r = take_unit(p, &u);
		if (r < 0)
			return r;
		u->class = class;
		if (class != LARGE) {
			u->free_pages = all_pages(class);
			TAILQ_INSERT_HEAD(&p->carved[class], u, link);
		}
	}
	if (class == LARGE) {
		page = &u->slab->whole[unit_index(u)];
	} else {
		i = (unsigned)__builtin_ctz(u->free_pages);
		u->free_pages &= u->free_pages - 1;
		if (!u->free_pages)
			TAILQ_REMOVE(&p->carved[class], u, link);
		page = &u->slab->pages[unit_index(u)][i];
	}
	p->used += size;
	page->slab = u->slab;
	page->pub.data = unit_data(u) + (size_t)i * size;
	page->pub.size = size;
	page->pub.pool = p;
	*ret = page;
	return 0;
}

/* With the lock held. */
static void give_page(struct cfs_pool *p, struct page *page)
{
	size_t off = (size_t)(page->pub.data - page->slab->data);
	struct unit *u = &page->slab->units[off / CFS_PAGE_LARGE];
	enum page_class class = u->class;
	uint32_t was_free = u->free_pages;

	p->used -= page->pub.size;
	if (class == LARGE) {
		give_unit(p, u);
		return;
	}
	u->free_pages |= 1u << (off % CFS_PAGE_LARGE / page->pub.size);
	if (!was_free)
		TAILQ_INSERT_HEAD(&p->carved[class], u, link);
	if (u->free_pages == all_pages(class)) {
		TAILQ_REMOVE(&p->carved[class], u, link);
		u->free_pages = 0;
		give_unit(p, u);
	}
}

/* Pages that cannot be stored may stay for long; this share lets readers go on. */
static int take_for(struct cfs_pool *p, enum cfs_pool_use use, enum page_class class,
		    struct page **ret)
{
	uint64_t written = atomic_load_explicit(&p->used_by[CFS_USE_WRITE], memory_order_relaxed);

	if (use == CFS_USE_WRITE &&
	    written + class_size[class] > p->budget - p->budget / READERS_PARTS)
		return -ENOBUFS;
	return take_page(p, class, ret);
}

/* Calls the reclaim functions one by one until a page of the class can be had. */
static int reclaim_and_take(struct cfs_pool *p, enum cfs_pool_use use, enum page_class class,
			    struct page **ret)
{
	uint64_t want = CFS_MIN(RECLAIM_STEP, p->budget / 16);
	struct reclaimer *rc;
	int r;

	pthread_mutex_lock(&p->reclaim_lock);
	pthread_mutex_lock(&p->lock);
	r = take_for(p, use, class, ret);
	pthread_mutex_unlock(&p->lock);
	for (rc = TAILQ_FIRST(&p->reclaimers); rc && r == -ENOBUFS; rc = TAILQ_NEXT(rc, link)) {
		rc->fn(rc->arg, want);
		pthread_mutex_lock(&p->lock);
		r = take_for(p, use, class, ret);
		pthread_mutex_unlock(&p->lock);
	}
	pthread_mutex_unlock(&p->reclaim_lock);
	return r;
}

/* Until something was freed after freed_count was `seen`, or it is time to reclaim again. */
static void wait_freed(struct cfs_pool *p, uint64_t seen, cfs_deadline_t deadline)
{
	cfs_deadline_t until = cfs_deadline_min(deadline, cfs_deadline_in(RECLAIM_AGAIN_MS));
	int r = 0;

	cfs_activity_wait(CFS_WAIT_MEMORY, 0, "of buffer-size");
	p->waiters++;
	while (p->freed_count == seen && r != -ETIMEDOUT)
		r = cfs_cond_wait(&p->freed, &p->lock, until);
	p->waiters--;
	cfs_activity_wait_end();
}

static int take_slowly(struct cfs_pool *p, enum cfs_pool_use use, enum page_class class,
		       cfs_deadline_t deadline, struct page **ret)
{
	bool waited = false;
	uint64_t seen;
	int r;

	for (;;) {
		pthread_mutex_lock(&p->lock);
		seen = p->freed_count;
		pthread_mutex_unlock(&p->lock);
		r = reclaim_and_take(p, use, class, ret);
		if (r != -ENOBUFS)
			return r;
		if (cfs_deadline_passed(deadline))
			return -ETIMEDOUT;
		pthread_mutex_lock(&p->lock);
		if (!waited)
			p->waits++;
		waited = true;
		wait_freed(p, seen, deadline);
		pthread_mutex_unlock(&p->lock);
	}
}

int cfs_page_get(struct cfs_pool *p, size_t size, enum cfs_pool_use use, cfs_deadline_t deadline,
		 struct cfs_page **ret)
{
	enum page_class class = SMALL;
	struct page *page;
	int r;

	if (size > CFS_PAGE_LARGE)
		return -EINVAL;
	while (class_size[class] < size)
		class ++;
	pthread_mutex_lock(&p->lock);
	r = take_for(p, use, class, &page);
	pthread_mutex_unlock(&p->lock);
	if (r == -ENOBUFS)
		r = take_slowly(p, use, class, deadline, &page);
	if (r < 0)
		return r;
	atomic_store_explicit(&page->pub.refs, 1, memory_order_relaxed);
	atomic_store_explicit(&page->pub.use, (uint8_t)use, memory_order_relaxed);
	atomic_fetch_add_explicit(&p->used_by[use], page->pub.size, memory_order_relaxed);
	*ret = &page->pub;
	return 0;
}

struct cfs_page *cfs_page_ref(struct cfs_page *page)
{
	atomic_fetch_add_explicit(&page->refs, 1, memory_order_relaxed);
	return page;
}

void cfs_page_unref(struct cfs_page *page)
{
	struct cfs_pool *p;

	if (!page || atomic_fetch_sub_explicit(&page->refs, 1, memory_order_acq_rel) != 1)
		return;
	p = page->pool;
	atomic_fetch_sub_explicit(&p->used_by[page->use], page->size, memory_order_relaxed);
	pthread_mutex_lock(&p->lock);
	give_page(p, (struct page *)page);
	p->freed_count++;
	if (p->waiters)
		pthread_cond_broadcast(&p->freed);
	pthread_mutex_unlock(&p->lock);
}

void cfs_page_set_use(struct cfs_page *page, enum cfs_pool_use use)
{
	uint8_t old = atomic_exchange_explicit(&page->use, (uint8_t)use, memory_order_relaxed);
	struct cfs_pool *p = page->pool;

	if (old == use)
		return;
	atomic_fetch_sub_explicit(&p->used_by[old], page->size, memory_order_relaxed);
	atomic_fetch_add_explicit(&p->used_by[use], page->size, memory_order_relaxed);
	/*
	 * Pages that were just written or read, and go to the cache, can be reclaimed from there.
	 */
	if (use == CFS_USE_CACHE && p->waiters) {
		pthread_mutex_lock(&p->lock);
		p->freed_count++;
		pthread_cond_broadcast(&p->freed);
		pthread_mutex_unlock(&p->lock);
	}
}

int cfs_pool_add_reclaim(struct cfs_pool *p, cfs_reclaim_fn fn, void *arg)
{
	struct reclaimer *rc;

	rc = malloc(sizeof(*rc));
	if (!rc)
		return -ENOMEM;
	rc->fn = fn;
	rc->arg = arg;
	pthread_mutex_lock(&p->reclaim_lock);
	TAILQ_INSERT_TAIL(&p->reclaimers, rc, link);
	pthread_mutex_unlock(&p->reclaim_lock);
	return 0;
}

void cfs_pool_remove_reclaim(struct cfs_pool *p, cfs_reclaim_fn fn, void *arg)
{
	struct reclaimer *rc;

	pthread_mutex_lock(&p->reclaim_lock);
	TAILQ_FOREACH(rc, &p->reclaimers, link)
	if (rc->fn == fn && rc->arg == arg)
		break;
	if (rc)
		TAILQ_REMOVE(&p->reclaimers, rc, link);
	pthread_mutex_unlock(&p->reclaim_lock);
	free(rc);
}

void cfs_pool_trim(struct cfs_pool *p)
{
	struct slab *s;

	pthread_mutex_lock(&p->lock);
	while ((s = TAILQ_FIRST(&p->idle)) != NULL)
		remove_slab(p, s);
	pthread_mutex_unlock(&p->lock);
}

void cfs_pool_stats(struct cfs_pool *p, struct cfs_pool_stats *ret)
{
	int i;

	ret->budget = p->budget;
	for (i = 0; i < CFS_USE_COUNT; i++)
		ret->used[i] = atomic_load_explicit(&p->used_by[i], memory_order_relaxed);
	pthread_mutex_lock(&p->lock);
	ret->mapped = p->mapped;
	ret->waits = p->waits;
	pthread_mutex_unlock(&p->lock);
}

static void snapshot(void *pool, void *ret)
{
	cfs_pool_stats(pool, ret);
}

#define M(n, h, field)	  CFS_METRIC(struct cfs_pool_stats, n, NULL, h, field)
#define L(n, l, h, field) CFS_METRIC(struct cfs_pool_stats, n, l, h, field)
static const struct cfs_metric metrics[] = {
	M("pool_budget_bytes", "Limit of memory for data", budget),
	M("pool_mapped_bytes", "Memory for data taken from the system", mapped),
	L("pool_used_bytes", "use=\"cache\"", "Memory for data in use", used[CFS_USE_CACHE]),
	L("pool_used_bytes", "use=\"read\"", NULL, used[CFS_USE_READ]),
	L("pool_used_bytes", "use=\"write\"", NULL, used[CFS_USE_WRITE]),
	L("pool_used_bytes", "use=\"peer\"", NULL, used[CFS_USE_PEER]),
	L("pool_used_bytes", "use=\"listing\"", NULL, used[CFS_USE_LISTING]),
	M("pool_waits_total", "Times that somebody waited for memory", waits),
};
#undef M
#undef L

const struct cfs_metric_table cfs_pool_metrics = CFS_METRIC_TABLE(metrics, .snapshot = snapshot);

void cfs_pool_destroy(struct cfs_pool *p)
{
	struct reclaimer *rc;

	if (!p)
		return;
	if (p->used) {
		/* Other threads may still touch the pages: losing the memory beats crashing. */
		cfs_err("buffer pool destroyed while in use, memory is lost: bytes=%llu",
			(unsigned long long)p->used);
		return;
	}
	cfs_pool_trim(p);
	while ((rc = TAILQ_FIRST(&p->reclaimers)) != NULL) {
		TAILQ_REMOVE(&p->reclaimers, rc, link);
		free(rc);
	}
	pthread_cond_destroy(&p->freed);
	pthread_mutex_destroy(&p->lock);
	pthread_mutex_destroy(&p->reclaim_lock);
	free(p);
}
