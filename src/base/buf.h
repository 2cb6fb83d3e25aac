/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mount's data memory: one budget, handed out as reference-counted pages.
 *
 * A page has one of three sizes (CFS_PAGE_*). Memory comes from 2 MiB-aligned slabs marked
 * MADV_HUGEPAGE, mapped when first needed, recycled for ever after (a first touch costs 2 us per
 * 4 KiB) and given back to the kernel only by cfs_pool_trim(). Contents of a fresh page are
 * undefined. Every byte is charged to one use; the sum of all uses never exceeds the budget, and
 * writers leave an eighth of it to others. Small pages are carved out of large ones, which can pin
 * CFS_POOL_TORN of mapped memory beyond the budget. Children that are forked do not have the
 * memory.
 *
 * A page may be shared by many readers; its owner decides when its bytes may change (write pages
 * only while the slice is open). All functions may be called from any thread.
 */
#ifndef CFS_BUF_H
#define CFS_BUF_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "clock.h"
#include "metric.h"

#define CFS_PAGE_SMALL	(4u << 10)
#define CFS_PAGE_MEDIUM (32u << 10)
#define CFS_PAGE_LARGE	(128u << 10) /* also the unit in which blocks are cached and written */

#define CFS_POOL_TORN ((uint64_t)6 << 20)

enum cfs_pool_use {
	CFS_USE_CACHE, /* memory tier */
	CFS_USE_READ,  /* fetches in flight, read-ahead */
	CFS_USE_WRITE, /* open slices and uploads */
	CFS_USE_PEER,
	CFS_USE_LISTING, /* directories that are being read */
	CFS_USE_COUNT,
};

struct cfs_pool;

struct cfs_page {
	uint8_t *data;
	uint32_t size;
	_Atomic uint32_t refs;
	_Atomic uint8_t use; /* enum cfs_pool_use */
	struct cfs_pool *pool;
};

/* budget is rounded up to 2 MiB, and to 8 MiB at the least. */
int cfs_pool_create(uint64_t budget, struct cfs_pool **ret);
/* Every page must have been released. */
void cfs_pool_destroy(struct cfs_pool *p);

/*
 * A page of at least `size` bytes (size <= CFS_PAGE_LARGE) with one reference. When the budget is
 * used up, calls the reclaim functions in order of registration, then waits: -ETIMEDOUT at the
 * deadline (a deadline of 0 never waits), -ENOMEM when the kernel refuses memory.
 */
int cfs_page_get(struct cfs_pool *p, size_t size, enum cfs_pool_use use, cfs_deadline_t deadline,
		 struct cfs_page **ret);
struct cfs_page *cfs_page_ref(struct cfs_page *page);
void cfs_page_unref(struct cfs_page *page); /* NULL is fine */
void cfs_page_set_use(struct cfs_page *page, enum cfs_pool_use use);

/*
 * Asked to free or to start freeing `want` bytes; must not wait, must not take pages, must not add
 * or remove reclaim functions. Called by one thread at a time, from within cfs_page_get(): never
 * call that with a lock held that a reclaim function takes. Registered in the order in which they
 * should give way: memory cache, read-ahead, writers. After remove returns, fn is not running.
 */
typedef void (*cfs_reclaim_fn)(void *arg, uint64_t want);
int cfs_pool_add_reclaim(struct cfs_pool *p, cfs_reclaim_fn fn, void *arg);
void cfs_pool_remove_reclaim(struct cfs_pool *p, cfs_reclaim_fn fn, void *arg);

/* Gives wholly free slabs back to the kernel. */
void cfs_pool_trim(struct cfs_pool *p);

struct cfs_pool_stats {
	uint64_t budget, mapped, used[CFS_USE_COUNT];
	uint64_t waits; /* times a caller had to wait */
};
void cfs_pool_stats(struct cfs_pool *p, struct cfs_pool_stats *ret);
extern const struct cfs_metric_table cfs_pool_metrics;

/*
 * A byte string made of pieces of pages. Owns one reference per piece. A piece without a page is a
 * run of zeros (a hole). A cfs_segs may point into itself: never copy one by assignment.
 */
struct cfs_seg {
	struct cfs_page *page;
	uint32_t off, len;
};

#define CFS_SEGS_INLINE 12
struct cfs_segs {
	struct cfs_seg *v; /* inline_v or heap */
	size_t n, cap;
	uint64_t len; /* sum of v[].len */
	struct cfs_seg inline_v[CFS_SEGS_INLINE];
};

void cfs_segs_init(struct cfs_segs *s);
void cfs_segs_release(struct cfs_segs *s); /* drops the references; s is empty and usable again */
/* Takes over the caller's reference, unless -ENOMEM. Joins with the last piece when they touch. */
int cfs_segs_add(struct cfs_segs *s, struct cfs_page *page, uint32_t off, uint32_t len);
int cfs_segs_add_zeros(struct cfs_segs *s, uint64_t len);
/* Appends [off, off + len) of src to dst with references of its own. */
int cfs_segs_slice(struct cfs_segs *dst, const struct cfs_segs *src, uint64_t off, uint64_t len);
/* Cuts to the first len bytes. */
void cfs_segs_truncate(struct cfs_segs *s, uint64_t len);
void cfs_segs_copy_out(const struct cfs_segs *s, uint64_t off, void *dst, size_t len);
/*
 * The pieces as an iovec array for a reader; holes point into one shared read-only zero page.
 * *ret is malloc'ed. Returns the count or -ENOMEM.
 */
int cfs_segs_iov(const struct cfs_segs *s, struct iovec **ret);

#endif
