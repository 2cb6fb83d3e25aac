/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random reads of less than a page from a peer. When these fail the network carries pages for reads
 * of a few bytes, a reader waits for a worker it does not need, gets more bytes than it asked for, or
 * hangs with a peer that does.
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
#include "base/wouldblock.h"
#include "unit/metric.h"
#include "unit/wait.h"

#define MIB   ((uint64_t)1 << 20)
#define BLOCK ((uint32_t)(1 * MIB))
#define LEN   4096u
#define AT    (300000u & ~4095u)

static uint8_t byte_at(uint64_t off)
{
	return (uint8_t)(off * 2654435761u >> 9);
}

static ssize_t fill(uint64_t off, const struct iovec *dst, int n_dst)
{
	ssize_t n = 0;
	size_t k;
	int i;

	for (i = 0; i < n_dst; i++) {
		for (k = 0; k < dst[i].iov_len; k++, n++)
			((uint8_t *)dst[i].iov_base)[k] = byte_at(off + (uint64_t)n);
	}
	return n;
}

/* ---- an object store that has every block, may take its time, and may fail ---- */

static struct bucket {
	struct cfs_object_store base;
	_Atomic unsigned gets, running, cancelled;
	_Atomic bool hold; /* gets last until it is false, or are not wanted */
	_Atomic int err;
} bucket;

static ssize_t bucket_get(struct cfs_object_store *o, const char *key, uint64_t off,
			  const struct iovec *dst, int n_dst, cfs_deadline_t deadline)
{
	uint64_t len = strtoull(strrchr(key, '_') + 1, NULL, 10), n = 0;
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
	if (bucket.err)
		return bucket.err;
	for (i = 0; i < n_dst; i++)
		n += dst[i].iov_len;
	fill(off, dst, n_dst);
	return (ssize_t)CFS_MIN(n, len - off);
}

static const struct cfs_object_ops bucket_ops = {.name = "bucket", .get = bucket_get};

/* ---- the members of a group ---- */

enum way {
	GIVES, /* the bytes */
	MISSES,
	HOLDS,	 /* answers when the test likes to */
	LOSES,	 /* asks the hedge, which is faster, or has no room */
	CATCHES, /* asks the hedge, and then has the bytes, too */
	WINS,	 /* has the bytes while the hedge runs */
};

static struct {
	enum cfs_place place;
	enum way way;
	_Atomic unsigned asked;
	_Atomic uint32_t len;
	_Atomic bool held, settled;
	int hedge; /* what it said */
	bool starts;
	struct cfs_async *started;
} far;

static bool is_settled(void *arg)
{
	return far.settled;
}

static ssize_t far_get_hedged(void *tier, const struct cfs_block *b, uint32_t off,
			      const struct iovec *dst, int n_dst, struct cfs_hedge *hedge,
			      cfs_deadline_t deadline)
{
	ssize_t n = fill(off, dst, n_dst);

	far.asked++;
	far.len = (uint32_t)n;
	far.hedge = 1;
	switch (far.way) {
	case MISSES:
		return -ENOENT;
	case HOLDS:
		far.held = true;
		WAIT_FOR(!far.held);
		return n;
	case LOSES:
		far.hedge = hedge->fetch(hedge, is_settled, NULL);
		memset(dst[0].iov_base, 0, dst[0].iov_len);
		return far.hedge == 0 ? -EALREADY : -ENOENT;
	case CATCHES:
	case WINS:
		far.hedge = hedge->fetch(hedge, is_settled, NULL);
		return n;
	case GIVES:
		break;
	}
	return n;
}

static ssize_t far_get(void *tier, const struct cfs_block *b, uint32_t off, const struct iovec *dst,
		       int n_dst, bool nowait, cfs_deadline_t deadline)
{
	return nowait ? -EAGAIN : far_get_hedged(tier, b, off, dst, n_dst, NULL, deadline);
}

static int far_start(void *tier, const struct cfs_block *b, uint32_t off, struct cfs_async *a)
{
	struct iovec dst;

	far.started = far.starts ? a->keep(a) : NULL;
	if (!far.started)
		return -EAGAIN;
	dst = (struct iovec){.iov_base = far.started->page->data, .iov_len = a->len};
	fill(off, &dst, 1);
	return 0;
}

static void far_offer(void *tier, const struct cfs_block *b, const struct cfs_segs *data)
{
}

static enum cfs_place far_place(void *tier, const struct cfs_block *b)
{
	return far.place;
}

static void far_keep(void *tier, const struct cfs_block *b, const struct cfs_segs *data,
		     bool nowait)
{
}

static const struct cfs_tier_ops far_ops = {.name = "far",
					    .get = far_get,
					    .get_hedged = far_get_hedged,
					    .start = far_start,
					    .offer = far_offer,
					    .place = far_place,
					    .keep = far_keep};

/* ---- fixture ---- */

static const struct cfs_pattern at_random = {.random = true};
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
	memset(&far, 0, sizeof(far));
	far.place = CFS_PLACE_ELSEWHERE;
	bucket.base.ops = &bucket_ops;
	assert_int_equal(cfs_pool_create(16 * MIB, &pool), 0);
	conf.pool = pool;
	assert_int_equal(cfs_store_create(&conf, &store), 0);
	return cfs_store_add_tier(store, &far_ops, NULL);
}

static int tear_down(void **state)
{
	struct cfs_pool_stats st;

	bucket.hold = far.held = false;
	cfs_store_destroy(store);
	cfs_pool_stats(pool, &st);
	assert_int_equal(st.used[CFS_USE_READ], 0);
	cfs_pool_destroy(pool);
	return 0;
}

/* One read; its bytes are compared. */
static int read_at(uint64_t slice, uint32_t off, uint32_t len, struct cfs_pattern pattern,
		   enum cfs_source *ret)
{
	struct cfs_block b = {.slice = slice, .len = BLOCK};
	uint8_t *got = malloc(len);
	struct cfs_segs s;
	uint32_t i;
	int r;

	assert_non_null(got);
	cfs_segs_init(&s);
	r = cfs_store_fetch(store, &b, off, len, pattern, soon(), NULL, &s, ret);
	assert_int_equal(s.len, r == 0 ? len : 0);
	if (r == 0)
		cfs_segs_copy_out(&s, 0, got, len);
	for (i = 0; r == 0 && i < len; i++)
		assert_int_equal(got[i], byte_at(off + i));
	cfs_segs_release(&s);
	free(got);
	return r;
}

static int read_one(uint64_t slice)
{
	enum cfs_source source;

	return read_at(slice, AT, LEN, at_random, &source);
}

static uint64_t in_memory(void)
{
	return metric_of(&cfs_store_metrics, store, "memory_cache_bytes", NULL);
}

/* ---- tests ---- */

/* The range and nothing else, also where it lies in two pages, and nothing keeps it. */
static void just_the_range(void **state)
{
	static const uint32_t ranges[][2] = {{AT, LEN},
					     {AT, LEN},
					     {CFS_PAGE_LARGE - 10, 20},
					     {5, CFS_PAGE_LARGE - 1},
					     {BLOCK - 1, 1}};
	enum cfs_source source;
	unsigned i;

	for (i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
		assert_int_equal(read_at(1, ranges[i][0], ranges[i][1], at_random, &source), 0);
		assert_int_equal(source, CFS_SOURCE_RANGE);
		assert_int_equal(far.asked, i + 1);
		assert_int_equal(far.len, ranges[i][1]);
		assert_int_equal(in_memory(), 0);
	}
	assert_int_equal(bucket.gets, 0);
}

/* Streams, whole pages, and blocks that are kept here come in pages. */
static void others_get_pages(void **state)
{
	const struct cfs_pattern stream = {0}, long_one = {.random = true, .likely = BLOCK - AT};
	enum cfs_source source;

	assert_int_equal(read_at(1, AT, LEN, stream, &source), 0);
	assert_int_equal(source, CFS_SOURCE_REMOTE);
	assert_int_equal(far.len, CFS_PAGE_LARGE);
	assert_int_equal(read_at(2, AT, LEN, long_one, &source), 0);
	assert_int_equal(source, CFS_SOURCE_REMOTE);
	assert_int_equal(read_at(3, 2 * CFS_PAGE_LARGE, CFS_PAGE_LARGE, at_random, &source), 0);
	assert_int_equal(source, CFS_SOURCE_REMOTE);
	assert_int_equal(far.len, CFS_PAGE_LARGE);
	far.place = CFS_PLACE_HERE;
	assert_int_equal(read_at(4, AT, LEN, at_random, &source), 0);
	assert_int_equal(source, CFS_SOURCE_REMOTE);
	far.place = CFS_PLACE_ANY;
	assert_int_equal(read_at(5, AT, LEN, at_random, &source), 0);
	assert_int_equal(source, CFS_SOURCE_REMOTE);
	/* Bytes in memory are read from there. */
	far.place = CFS_PLACE_ELSEWHERE;
	assert_int_equal(read_at(5, AT + LEN, LEN, at_random, &source), 0);
	assert_int_equal(source, CFS_SOURCE_LOCAL);
}

/* A peer that does not give it is not asked again for the page. */
static void one_question(void **state)
{
	enum cfs_source source;

	far.way = MISSES;
	assert_int_equal(read_at(1, AT, LEN, at_random, &source), 0);
	assert_int_equal(source, CFS_SOURCE_REMOTE);
	assert_int_equal(far.asked, 1);
	assert_int_equal(bucket.gets, 1);
	assert_int_equal(in_memory(), CFS_PAGE_LARGE);
}

/* Threads that wait for a block of the slice, or fetch it. */
static unsigned readers_of(uint64_t slice)
{
	struct cfs_activity *all;
	unsigned found = 0, w;
	size_t n, i;

	assert_int_equal(cfs_activity_read(-1, &all, &n), 0);
	for (i = 0; i < n; i++) {
		for (w = 0; w < all[i].n_waits; w++)
			found += all[i].waits[w].what == CFS_WAIT_BLOCK &&
				 all[i].waits[w].id == slice;
	}
	free(all);
	return found;
}

static void *run_read(void *arg)
{
	int *r = arg;

	*r = read_one(1);
	return NULL;
}

/* A page that is on its way is not asked for in parts. */
static void what_is_on_its_way(void **state)
{
	struct cfs_block b = {.slice = 1, .len = BLOCK};
	pthread_t t;
	int r = 1;

	far.way = HOLDS;
	assert_true(cfs_store_prefetch(store, &b, 0, BLOCK, 7));
	WAIT_FOR(far.held);
	assert_int_equal(pthread_create(&t, NULL, run_read, &r), 0);
	WAIT_FOR(readers_of(1) == 2);
	far.held = false;
	pthread_join(t, NULL);
	assert_int_equal(r, 0);
	assert_int_equal(far.asked, 1);
}

/* The hedge is faster; what it has fetched is kept. */
static void the_hedge_wins(void **state)
{
	enum cfs_source source;

	far.way = LOSES;
	assert_int_equal(read_at(1, AT, LEN, at_random, &source), 0);
	assert_int_equal(source, CFS_SOURCE_REMOTE);
	assert_int_equal(far.hedge, 0);
	assert_int_equal(bucket.gets, 1);
	assert_int_equal(read_at(1, AT + LEN, LEN, at_random, &source), 0);
	assert_int_equal(source, CFS_SOURCE_LOCAL);
	assert_int_equal(far.asked, 1);
}

/* Both have the bytes: the reader gets them once. */
static void both_have_it(void **state)
{
	enum cfs_source source;

	far.way = CATCHES;
	assert_int_equal(read_at(1, AT, LEN, at_random, &source), 0);
	assert_int_equal(far.hedge, 0);
	assert_int_equal(source, CFS_SOURCE_RANGE);
}

static void *settle(void *arg)
{
	WAIT_FOR(bucket.running == 1);
	far.settled = true;
	return NULL;
}

/* The peer is faster: the reader does not wait for the bucket, whose answer is not wanted. */
static void the_peer_wins(void **state)
{
	pthread_t t;

	far.way = WINS;
	bucket.hold = true;
	assert_int_equal(pthread_create(&t, NULL, settle, NULL), 0);
	assert_int_equal(read_one(1), 0);
	pthread_join(t, NULL);
	assert_int_equal(far.hedge, -ECANCELED);
	WAIT_FOR(bucket.cancelled == 1);
	/* The next reader is not told that it was. */
	bucket.hold = false;
	far.way = MISSES;
	assert_int_equal(read_one(1), 0);
}

static void *run_stream(void *arg)
{
	const struct cfs_pattern stream = {0};
	enum cfs_source source;
	int *r = arg;

	*r = read_at(1, AT, LEN, stream, &source);
	return NULL;
}

/* Another reader waits for the page: the fetch goes on without the hedge that began it. */
static void a_hedge_that_others_want(void **state)
{
	pthread_t t[2];
	int r[2] = {1, 1};

	far.way = WINS;
	bucket.hold = true;
	assert_int_equal(pthread_create(&t[0], NULL, run_read, &r[0]), 0);
	WAIT_FOR(bucket.running == 1);
	assert_int_equal(pthread_create(&t[1], NULL, run_stream, &r[1]), 0);
	WAIT_FOR(readers_of(1) == 3);
	far.settled = true;
	pthread_join(t[0], NULL);
	assert_int_equal(r[0], 0);
	bucket.hold = false;
	pthread_join(t[1], NULL);
	assert_int_equal(r[1], 0);
	assert_int_equal(bucket.gets, 1);
	assert_int_equal(bucket.cancelled, 0);
}

/* Object storage fails beside the peer, which has it. */
static void the_hedge_fails(void **state)
{
	far.way = CATCHES;
	bucket.err = -EIO;
	assert_int_equal(read_one(1), 0);
	assert_true(far.hedge < 0);
	assert_int_equal(bucket.gets, 1);
	far.way = LOSES;
	assert_int_equal(read_one(2), -EIO);
	assert_int_equal(bucket.gets, 3);
}

/* The reader has memory already: it never waits for more beside the peer. */
static void no_memory_for_a_hedge(void **state)
{
	struct cfs_page *taken[16 * MIB / CFS_PAGE_SMALL];
	unsigned n = 0;

	while (cfs_page_get(pool, CFS_PAGE_LARGE, CFS_USE_WRITE, 0, &taken[n]) == 0)
		n++;
	while (cfs_page_get(pool, CFS_PAGE_LARGE, CFS_USE_READ, 0, &taken[n]) == 0)
		n++;
	assert_true(n > 1);
	cfs_page_unref(taken[--n]);
	far.way = CATCHES;
	assert_int_equal(read_one(1), 0);
	assert_int_equal(far.hedge, -EAGAIN);
	assert_int_equal(bucket.gets, 0);
	while (n > 0)
		cfs_page_unref(taken[--n]);
}

static bool may_not(void *arg)
{
	(void)arg;
	return false;
}

/* A thread that may not wait asks nobody; the repeated read does. */
static void asks_when_it_may_wait(void **state)
{
	cfs_would_block_hook(may_not, NULL);
	assert_int_equal(read_one(1), -EBUSY);
	cfs_would_block_hook(NULL, NULL);
	assert_int_equal(far.asked, 0);
	cfs_set_repeated(true);
	assert_int_equal(read_one(1), 0);
	cfs_set_repeated(false);
	assert_int_equal(far.asked, 1);
	assert_int_equal(far.len, LEN);
}

static struct cfs_async kept;

static struct cfs_async *keep(struct cfs_async *a)
{
	kept = *a;
	return &kept;
}

static struct cfs_async *keep_none(struct cfs_async *a)
{
	return NULL;
}

static int start_at(struct cfs_async *a, uint32_t off, uint32_t len, struct cfs_segs *ret)
{
	struct cfs_block b = {.slice = 1, .len = BLOCK};
	enum cfs_source source;

	cfs_segs_init(ret);
	return cfs_store_fetch(store, &b, off, len, at_random, soon(), a, ret, &source);
}

/* A small one is started, and its page is its own; all others wait as ever. */
static void no_thread_waits(void **state)
{
	struct cfs_async a = {.keep = keep}, none = {.keep = keep_none};
	struct cfs_pool_stats st;
	struct cfs_segs s;
	uint32_t i;

	far.starts = true;
	cfs_would_block_hook(may_not, NULL);
	assert_int_equal(start_at(&a, AT, LEN, &s), -EINPROGRESS);
	assert_int_equal(s.len, 0);
	assert_int_equal(a.len, LEN);
	assert_int_equal(kept.len, LEN);
	for (i = 0; i < LEN; i++)
		assert_int_equal(((uint8_t *)kept.page->data)[i], byte_at(AT + i));
	cfs_page_unref(kept.page);
	assert_int_equal(start_at(&none, AT, LEN, &s), -EBUSY);
	assert_int_equal(start_at(NULL, AT, LEN, &s), -EBUSY);
	assert_int_equal(start_at(&a, AT, (16 << 10) + 1, &s), -EBUSY);
	far.starts = false;
	assert_int_equal(start_at(&a, AT, LEN, &s), -EBUSY);
	cfs_would_block_hook(NULL, NULL);
	assert_int_equal(start_at(&a, AT, LEN, &s), 0);
	assert_int_equal(s.len, LEN);
	cfs_segs_release(&s);
	assert_int_equal(far.asked, 1);
	cfs_pool_stats(pool, &st);
	assert_int_equal(st.used[CFS_USE_READ], 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(just_the_range, set_up, tear_down),
		cmocka_unit_test_setup_teardown(others_get_pages, set_up, tear_down),
		cmocka_unit_test_setup_teardown(one_question, set_up, tear_down),
		cmocka_unit_test_setup_teardown(what_is_on_its_way, set_up, tear_down),
		cmocka_unit_test_setup_teardown(the_hedge_wins, set_up, tear_down),
		cmocka_unit_test_setup_teardown(both_have_it, set_up, tear_down),
		cmocka_unit_test_setup_teardown(the_peer_wins, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_hedge_that_others_want, set_up, tear_down),
		cmocka_unit_test_setup_teardown(the_hedge_fails, set_up, tear_down),
		cmocka_unit_test_setup_teardown(no_memory_for_a_hedge, set_up, tear_down),
		cmocka_unit_test_setup_teardown(asks_when_it_may_wait, set_up, tear_down),
		cmocka_unit_test_setup_teardown(no_thread_waits, set_up, tear_down),
	};

	if (cfs_activity_init() < 0)
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
