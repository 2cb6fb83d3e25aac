/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How often tiers are asked, who is offered a block, and what becomes of a transfer that nobody
 * waits for any more. When these fail a miss costs more than it has to, a block is kept twice or
 * not at all, or the network carries what was read ahead for a file that is closed.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <cachefs/store.h>

#include "base/activity.h"
#include "base/bytes.h"
#include "base/unwanted.h"
#include "unit/metric.h"
#include "unit/wait.h"

#define MIB   ((uint64_t)1 << 20)
#define BLOCK ((uint32_t)(1 * MIB))

/* ---- an object store that has every block, and may take its time ---- */

static struct bucket {
	struct cfs_object_store base;
	_Atomic unsigned gets, running, cancelled;
	_Atomic bool hold; /* gets last until it is false, or nobody wants them */
} bucket;

static ssize_t bucket_get(struct cfs_object_store *o, const char *key, uint64_t off,
			  const struct iovec *dst, int n_dst, cfs_deadline_t deadline)
{
	const char *name = strrchr(key, '/') + 1;
	uint64_t len = strtoull(strrchr(name, '_') + 1, NULL, 10);
	ssize_t got = 0;
	size_t n;
	int i;

	bucket.gets++;
	bucket.running++;
	while (bucket.hold && !cfs_unwanted() && !cfs_deadline_passed(deadline))
		cfs_backoff(0, 1, 1, deadline);
	bucket.running--;
	if (bucket.hold && cfs_unwanted()) {
		bucket.cancelled++;
		return -ECANCELED;
	}
	for (i = 0; i < n_dst && off < len; i++, off += n, got += (ssize_t)n) {
		n = CFS_MIN(dst[i].iov_len, len - off);
		memset(dst[i].iov_base, 'x', n);
	}
	return got;
}

static const struct cfs_object_ops bucket_ops = {.name = "bucket", .get = bucket_get};

/* ---- two tiers: a disk that has nothing, and others who keep blocks ---- */

static struct {
	_Atomic unsigned gets, holds, offers;
	bool full; /* has every block */
} near;
static struct {
	_Atomic unsigned gets, places, offers, keeps;
	enum cfs_place place;
} far;

static ssize_t near_get(void *tier, const struct cfs_block *b, uint32_t off,
			const struct iovec *dst, int n_dst, bool nowait, cfs_deadline_t deadline)
{
	ssize_t n = 0;
	int i;

	near.gets++;
	for (i = 0; i < n_dst; i++) {
		memset(dst[i].iov_base, 'x', dst[i].iov_len);
		n += (ssize_t)dst[i].iov_len;
	}
	return near.full ? n : -ENOENT;
}

static void near_offer(void *tier, const struct cfs_block *b, const struct cfs_segs *data)
{
	near.offers++;
}

static bool near_holds(void *tier, const struct cfs_block *b)
{
	near.holds++;
	return near.full;
}

static ssize_t far_get(void *tier, const struct cfs_block *b, uint32_t off, const struct iovec *dst,
		       int n_dst, bool nowait, cfs_deadline_t deadline)
{
	if (nowait)
		return -EAGAIN;
	far.gets++;
	return -ENOENT;
}

static void far_offer(void *tier, const struct cfs_block *b, const struct cfs_segs *data)
{
	far.offers++;
}

static enum cfs_place far_place(void *tier, const struct cfs_block *b)
{
	far.places++;
	return far.place;
}

static void far_keep(void *tier, const struct cfs_block *b, const struct cfs_segs *data,
		     bool nowait)
{
	assert_int_equal(data->len, b->len);
	far.keeps++;
}

static const struct cfs_tier_ops near_ops = {
	.name = "near", .local = true, .get = near_get, .offer = near_offer, .holds = near_holds};
static const struct cfs_tier_ops far_ops = {
	.name = "far", .get = far_get, .offer = far_offer, .place = far_place, .keep = far_keep};

/* ---- fixture ---- */

static struct cfs_pool *pool;
static struct cfs_store *store;

static int set_up(void **state)
{
	struct cfs_store_conf conf = {
		.object = &bucket.base,
		.volume = "vol",
		.block_size = BLOCK,
		.max_downloads = 4,
		.get_timeout_ms = LONG_MS,
		.prefetch = 1,
	};

	memset(&bucket, 0, sizeof(bucket));
	memset(&near, 0, sizeof(near));
	memset(&far, 0, sizeof(far));
	bucket.base.ops = &bucket_ops;
	assert_int_equal(cfs_pool_create(64 * MIB, &pool), 0);
	conf.pool = pool;
	return cfs_store_create(&conf, &store);
}

static int tear_down(void **state)
{
	bucket.hold = false;
	cfs_store_destroy(store);
	cfs_pool_destroy(pool);
	return 0;
}

static void add_tiers(void)
{
	assert_int_equal(cfs_store_add_tier(store, &near_ops, NULL), 0);
	assert_int_equal(cfs_store_add_tier(store, &far_ops, NULL), 0);
}

static int get_at(uint64_t slice, uint32_t off, uint32_t len)
{
	struct cfs_block b = {.slice = slice, .len = BLOCK};
	struct cfs_segs s;
	int r;

	cfs_segs_init(&s);
	r = cfs_store_read(store, &b, off, len, soon(), &s);
	if (r == 0)
		assert_int_equal(s.len, len);
	cfs_segs_release(&s);
	return r;
}

static int get(uint64_t slice, uint32_t len)
{
	return get_at(slice, 0, len);
}

static uint64_t metric(const char *name)
{
	return metric_of(&cfs_store_metrics, store, name, NULL);
}

/* ---- tests ---- */

/* Each tier is asked once for what it has and where a block belongs, small reads and large. */
static void one_walk(void **state)
{
	uint32_t lens[] = {4096, BLOCK / 2, BLOCK};
	unsigned i;

	add_tiers();
	for (i = 0; i < 3; i++) {
		assert_int_equal(get(1 + i, lens[i]), 0);
		assert_int_equal(bucket.gets, i + 1);
		assert_int_equal(near.gets, i + 1);
		assert_int_equal(near.holds, i + 1);
		assert_int_equal(far.gets, i + 1);
		assert_int_equal(far.places, i + 1);
	}
}

/* Where a block belongs, which takes a walk around the ring, is nothing to who has it. */
static void hit_asks_nobody(void **state)
{
	add_tiers();
	near.full = true;
	assert_int_equal(get(1, 4096), 0);
	assert_int_equal(get(1, BLOCK / 2), 0);
	assert_int_equal(near.gets, 2);
	assert_int_equal(far.places, 0);
}

static void one_walk_ahead(void **state)
{
	struct cfs_block b = {.slice = 1, .len = BLOCK};

	add_tiers();
	assert_true(cfs_store_prefetch(store, &b, 0, BLOCK, 7));
	WAIT_FOR(cfs_store_in_memory(store, &b, 0, BLOCK));
	assert_int_equal(near.gets, 1);
	assert_int_equal(near.holds, 1);
	assert_int_equal(far.gets, 1);
	assert_int_equal(far.places, 1);
}

/* Blocks kept here for others are kept by one mount, blocks kept by others by none of ours. */
static void kept_once(void **state)
{
	add_tiers();
	far.place = CFS_PLACE_HERE;
	/* Any part of it brings all. */
	assert_int_equal(get(1, 4096), 0);
	WAIT_FOR(far.keeps == 1);
	assert_int_equal(near.offers + far.offers, 0);
	far.place = CFS_PLACE_ELSEWHERE;
	assert_int_equal(get(2, BLOCK), 0);
	WAIT_FOR(far.offers == 1);
	assert_int_equal(near.offers, 0);
	far.place = CFS_PLACE_ANY;
	assert_int_equal(get(3, BLOCK), 0);
	WAIT_FOR(far.offers == 2);
	assert_int_equal(near.offers, 1);
	assert_int_equal(far.keeps, 1);
}

/* Three pages of a block come to memory, with a request each. */
static void get_parts(uint64_t slice)
{
	static const unsigned there[] = {0, 3, 7};
	unsigned i;

	far.place = CFS_PLACE_ANY;
	for (i = 0; i < 3; i++)
		assert_int_equal(get_at(slice, there[i] * CFS_PAGE_LARGE, 4096), 0);
	assert_int_equal(bucket.gets, 3);
	far.place = CFS_PLACE_HERE;
}

/* A block of which memory has parts is one request to the bucket, as many holes as there are. */
static void holes_are_one_request(void **state)
{
	add_tiers();
	get_parts(1);
	assert_int_equal(get(1, BLOCK), 0);
	assert_int_equal(bucket.gets, 4);
	WAIT_FOR(far.keeps == 1);
}

static void *run_get(void *arg)
{
	*(int *)arg = get(1, BLOCK);
	return NULL;
}

/* Also when memory drops those parts while the others are fetched. */
static void parts_dropped_meanwhile(void **state)
{
	struct cfs_page *taken[64 * MIB / CFS_PAGE_LARGE];
	struct cfs_block b = {.slice = 1, .len = BLOCK};
	unsigned n = 0;
	pthread_t t;
	int r = 1;

	add_tiers();
	get_parts(1);
	bucket.hold = true;
	assert_int_equal(pthread_create(&t, NULL, run_get, &r), 0);
	WAIT_FOR(bucket.running == 1);
	while (cfs_page_get(pool, CFS_PAGE_LARGE, CFS_USE_READ, 0, &taken[n]) == 0)
		n++;
	assert_false(cfs_store_in_memory(store, &b, 0, 1));
	bucket.hold = false;
	pthread_join(t, NULL);
	assert_int_equal(r, 0);
	assert_int_equal(bucket.gets, 4);
	while (n > 0)
		cfs_page_unref(taken[--n]);
}

/* Read-ahead of a file that is closed ends, on its way or not. */
static void abandoned(void **state)
{
	struct cfs_block b = {.slice = 1, .len = BLOCK}, c = {.slice = 2, .len = BLOCK};
	struct cfs_block whole = {.slice = 3, .len = BLOCK};

	bucket.hold = true;
	assert_true(cfs_store_prefetch(store, &b, 0, BLOCK, 7));
	assert_true(cfs_store_prefetch(store, &c, 0, BLOCK, 8));
	assert_true(cfs_store_prefetch_block(store, &whole, 7));
	WAIT_FOR(bucket.running == 3);
	cfs_store_cancel(store, 7);
	WAIT_FOR(bucket.cancelled == 2);
	assert_int_equal(bucket.running, 1);
	WAIT_FOR(metric("store_prefetch_cancels_total") == 2);
	bucket.hold = false;
	WAIT_FOR(cfs_store_in_memory(store, &c, 0, BLOCK));
	assert_false(cfs_store_in_memory(store, &b, 0, 1));
	assert_int_equal(metric_of(&cfs_store_metrics, store, "object_request_errors_total", "get"),
			 0);
	/* Nothing of it stays behind. */
	assert_int_equal(get(1, BLOCK), 0);
}

/* At the end of the mount reads of a bucket that hangs end, also those that a reader waits for. */
static void stopped(void **state)
{
	struct cfs_block b = {.slice = 1, .len = BLOCK}, c = {.slice = 2, .len = BLOCK};
	pthread_t t;
	int r = 1;

	bucket.hold = true;
	assert_true(cfs_store_prefetch_block(store, &c, 7));
	assert_int_equal(pthread_create(&t, NULL, run_get, &r), 0);
	WAIT_FOR(bucket.running == 2);
	cfs_store_stop_reads(store);
	pthread_join(t, NULL);
	assert_int_equal(r, -EIO);
	WAIT_FOR(bucket.cancelled == 2);
	assert_int_equal(bucket.running, 0);
	/* Those to come end, too. */
	assert_int_equal(get(3, BLOCK), -EIO);
	assert_false(cfs_store_in_memory(store, &b, 0, 1));
	bucket.hold = false;
}

/* Whether a thread waits for another one that fetches a block of the slice. */
static bool is_waited_for(uint64_t slice)
{
	struct cfs_activity *all;
	bool found = false;
	size_t n, i;
	unsigned w;

	assert_int_equal(cfs_activity_read(-1, &all, &n), 0);
	for (i = 0; i < n; i++) {
		for (w = 0; w < all[i].n_waits; w++)
			found |= all[i].waits[w].what == CFS_WAIT_BLOCK &&
				 all[i].waits[w].id == slice;
	}
	free(all);
	return found;
}

/* Somebody else waits for it. */
static void still_wanted(void **state)
{
	struct cfs_block b = {.slice = 1, .len = BLOCK}, c = {.slice = 2, .len = BLOCK};
	pthread_t thread;
	int r = -1;

	bucket.hold = true;
	assert_true(cfs_store_prefetch(store, &b, 0, BLOCK, 7));
	WAIT_FOR(bucket.running == 1);
	assert_int_equal(pthread_create(&thread, NULL, run_get, &r), 0);
	WAIT_FOR(is_waited_for(b.slice));
	assert_true(cfs_store_prefetch(store, &c, 0, BLOCK, 7));
	WAIT_FOR(bucket.running == 2);
	cfs_store_cancel(store, 7);
	WAIT_FOR(bucket.cancelled == 1);
	bucket.hold = false;
	pthread_join(thread, NULL);
	assert_int_equal(r, 0);
	assert_int_equal(bucket.gets, 2);
	assert_int_equal(bucket.cancelled, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(one_walk, set_up, tear_down),
		cmocka_unit_test_setup_teardown(hit_asks_nobody, set_up, tear_down),
		cmocka_unit_test_setup_teardown(one_walk_ahead, set_up, tear_down),
		cmocka_unit_test_setup_teardown(kept_once, set_up, tear_down),
		cmocka_unit_test_setup_teardown(holes_are_one_request, set_up, tear_down),
		cmocka_unit_test_setup_teardown(parts_dropped_meanwhile, set_up, tear_down),
		cmocka_unit_test_setup_teardown(abandoned, set_up, tear_down),
		cmocka_unit_test_setup_teardown(stopped, set_up, tear_down),
		cmocka_unit_test_setup_teardown(still_wanted, set_up, tear_down),
	};

	if (cfs_activity_init() < 0)
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
