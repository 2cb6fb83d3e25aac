/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Caches between memory and the objects. When these fail a cache that lies, lacks a block or hangs
 * costs its readers more than a moment.
 */
#include <errno.h>
#include <string.h>

#include "base/wouldblock.h"
#include "store_fixture.h"

struct test_tier {
	struct cfs_block has; /* len 0: nothing */
	_Atomic int gets, offers, forgets;
	bool lies; /* delivers too little */
	bool waits;
	int hold; /* so many next gets that may wait hang until let go */
	_Atomic int lates, aheads;
	_Atomic bool began[64], blamed[64]; /* gets that may wait, and lates, by slice */
};

static ssize_t tier_get(void *arg, const struct cfs_block *b, uint32_t off, const struct iovec *dst,
			int n_dst, bool nowait, cfs_deadline_t deadline)
{
	struct test_tier *t = arg;
	ssize_t n = 0;
	size_t j;
	int i;

	if (nowait && t->waits)
		return -EAGAIN;
	t->gets++;
	if (!nowait) {
		t->began[b->slice % 64] = true;
		pass_gate(&t->hold);
	}
	if (memcmp(b, &t->has, sizeof(*b)) != 0)
		return -ENOENT;
	for (i = 0; i < n_dst; i++) {
		for (j = 0; j < dst[i].iov_len; j++)
			((uint8_t *)dst[i].iov_base)[j] = byte_at(b, off + (uint32_t)n++);
	}
	return t->lies ? n - 1 : n;
}

static void tier_offer(void *arg, const struct cfs_block *b, const struct cfs_segs *data)
{
	struct test_tier *t = arg;

	assert_true(range_is_right(data, b, 0, b->len));
	t->offers++;
}

static void tier_forget(void *arg, const struct cfs_block *b)
{
	struct test_tier *t = arg;

	t->forgets++;
}

static const struct cfs_tier_ops tier_ops = {
	.name = "test",
	.get = tier_get,
	.offer = tier_offer,
	.forget = tier_forget,
};

/* The nearest tier that has a block delivers it, and the nearer ones are offered it. */
static void tiers(void **state)
{
	struct cfs_block b = {.slice = 26, .len = 5 * PAGE}, c = {.slice = 27, .len = 5 * PAGE};
	struct test_tier near = {.waits = true}, far = {.has = b};

	start_store((struct setting){0});
	assert_int_equal(cfs_store_add_tier(store, &tier_ops, &near), 0);
	assert_int_equal(cfs_store_add_tier(store, &tier_ops, &far), 0);
	assert_int_equal(read_range(&b, 0, PAGE, soon()), 0);
	assert_int_equal(near.gets, 1);
	assert_int_equal(near.offers, 0);
	cfs_store_forget(store, &b);
	assert_int_equal(near.forgets + far.forgets, 2);
	assert_int_equal(read_range(&b, 0, b.len, soon()), 0);
	assert_int_equal(near.gets, 2);
	assert_int_equal(far.gets, 2);
	assert_int_equal(faulty.gets, 0);

	put_object(&c);
	assert_int_equal(read_range(&c, 0, c.len, soon()), 0);
	assert_int_equal(faulty.gets, 1);
	assert_int_equal(far.gets, 3);

	/* A tier that fails is passed over. */
	far.lies = true;
	cfs_store_forget(store, &b);
	put_object(&b);
	assert_int_equal(read_range(&b, 0, b.len, soon()), 0);
	assert_int_equal(faulty.gets, 2);
	stop_store();
	assert_int_equal(near.offers, 3);
	assert_int_equal(far.offers, 2);
}

static bool faster; /* the tier, than the objects */

static bool is_settled(void *arg)
{
	return faster;
}

/* It has begun to write when it turns out to be late. */
static ssize_t tier_get_hedged(void *arg, const struct cfs_block *b, uint32_t off,
			       const struct iovec *dst, int n_dst, struct cfs_hedge *hedge,
			       cfs_deadline_t deadline)
{
	int r = hedge->fetch(hedge, is_settled, NULL);

	memset(dst[0].iov_base, 'x', dst[0].iov_len);
	if (r == 0 && !faster)
		return -EALREADY;
	return tier_get(arg, b, off, dst, n_dst, false, deadline);
}

/* A reader gets what a late cache was still writing, or the objects are asked twice. */
static void late_tier(void **state)
{
	static const struct cfs_tier_ops ops = {
		.name = "test",
		.get = tier_get,
		.get_hedged = tier_get_hedged,
	};
	struct cfs_block b = {.slice = 26, .len = 5 * PAGE}, lost = {.slice = 27, .len = 5 * PAGE};
	struct test_tier tier = {.waits = true, .has = lost};

	faster = false;
	start_store((struct setting){0});
	assert_int_equal(cfs_store_add_tier(store, &ops, &tier), 0);
	put_object(&b);
	assert_int_equal(read_range(&b, PAGE + 1, 3 * PAGE, soon()), 0);
	assert_int_equal(read_range(&b, 0, b.len, soon()), 0);
	assert_int_equal(tier.gets, 0);
	/* The objects fail, the tier does not. */
	assert_int_equal(read_range(&lost, 0, lost.len, soon()), 0);
	assert_int_equal(tier.gets, 1);
	/* Both have it. */
	cfs_store_forget(store, &b);
	tier.has = b;
	faster = true;
	assert_int_equal(read_range(&b, 0, b.len, soon()), 0);
	assert_int_equal(tier.gets, 2);
	stop_store();
}

static void tier_late(void *arg, const struct cfs_block *b)
{
	struct test_tier *t = arg;

	t->lates++;
	hold(&t->hold, 0);
}

static void tier_blame(void *arg, const struct cfs_block *b)
{
	struct test_tier *t = arg;

	t->blamed[b->slice % 64] = true;
}

/* Blocks from the tier at once, small parts and large. It hangs, and nobody gets an error. */
static void read_past(struct test_tier *tier, const struct cfs_tier_ops *ops, int n)
{
	struct reader readers[READERS];
	pthread_t threads[READERS];
	int i;

	tier->waits = true;
	start_store((struct setting){.tier_timeout_ms = 100});
	assert_int_equal(cfs_store_add_tier(store, ops, tier), 0);
	hold(&tier->hold, n);
	for (i = 0; i < n; i++) {
		readers[i] = (struct reader){
			.b = {.slice = (uint64_t)i, .len = 2 * PAGE},
			.len = i % 2 ? 4096 : 2 * PAGE,
			.deadline = soon(),
		};
		put_object(&readers[i].b);
	}
	start_readers(readers, threads, n);
	join_readers(threads, n);
	for (i = 0; i < n; i++)
		assert_int_equal(readers[i].r, 0);
}

/*
 * A request that queues behind a hung disk is no sign against its own disk. Otherwise one hung
 * cache directory of three would take the others with it.
 */
static void queue_is_no_fault(void **state)
{
	enum { N = 12 };
	static const struct cfs_tier_ops ops = {
		.name = "test",
		.local = true,
		.get = tier_get,
		.late = tier_blame,
	};
	struct test_tier tier = {0};
	unsigned i;

	read_past(&tier, &ops, N);
	for (i = 0; i < N; i++)
		assert_true(tier.began[i] || !tier.blamed[i]);
	let_go();
	stop_store();
}

/* A cache that hangs with every worker in it costs its readers a moment, not an error. */
static void hanging_tier(void **state)
{
	enum { N = 8 }; /* the workers are 4 */
	static const struct cfs_tier_ops ops = {
		.name = "test",
		.local = true,
		.get = tier_get,
		.late = tier_late,
	};
	struct test_tier tier = {0};

	read_past(&tier, &ops, N);
	assert_in_range(tier.lates, 1, N);
	let_go();
	stop_store();
}

static bool refuse(void *arg)
{
	return false;
}

/* Threads that are needed for others do not wait for memory either. */
static void no_memory_and_few_threads(void **state)
{
	static const struct cfs_tier_ops ops = {.name = "test", .local = true, .get = tier_get};
	struct test_tier tier = {.has = {.slice = 1, .len = PAGE}};
	struct cfs_page *pages[1024];
	unsigned n = 0;

	start_store((struct setting){0});
	assert_int_equal(cfs_store_add_tier(store, &ops, &tier), 0);
	while (cfs_page_get(pool, PAGE, CFS_USE_READ, 0, &pages[n]) == 0)
		n++;
	cfs_would_block_hook(refuse, NULL);
	assert_int_equal(read_range(&tier.has, 0, 4096, soon()), -EBUSY);
	cfs_page_unref(pages[--n]);
	assert_int_equal(read_range(&tier.has, 0, 4096, soon()), 0);
	cfs_would_block_hook(NULL, NULL);
	while (n > 0)
		cfs_page_unref(pages[--n]);
	stop_store();
}

static void tier_ahead(void *arg, const struct cfs_block *b, uint32_t off, uint32_t len)
{
	struct test_tier *t = arg;

	t->aheads++;
	pass_gate(&t->hold);
}

static bool tier_holds(void *arg, const struct cfs_block *b)
{
	return true;
}

/* Read-ahead from one disk goes on while that from another hangs. */
static void hanging_ahead(void **state)
{
	enum { HANGING = 4 };
	static const struct cfs_tier_ops ops = {
		.name = "test",
		.local = true,
		.get = tier_get,
		.ahead = tier_ahead,
		.late = tier_blame,
		.holds = tier_holds,
	};
	struct test_tier tier = {0};
	struct cfs_block b = {.slice = 1, .len = BLOCK};
	int i;

	/* None is late before all of them hang. */
	start_store((struct setting){.tier_timeout_ms = 1000});
	assert_int_equal(cfs_store_add_tier(store, &ops, &tier), 0);
	hold(&tier.hold, HANGING);
	for (i = 0; i < HANGING; i++, b.slice++)
		assert_true(cfs_store_prefetch(store, &b, 0, PAGE, 0));
	wait_held(HANGING);
	assert_false(cfs_store_prefetch(store, &b, 0, PAGE, 0));
	WAIT_FOR(cfs_store_prefetch(store, &b, 0, PAGE, 0));
	WAIT_FOR(tier.aheads == HANGING + 1);
	assert_true(tier.blamed[1]);
	assert_false(tier.blamed[2]);
	/* Those that were left behind come back, and count for nothing. */
	let_go();
	for (i = 0; i < 3 * HANGING; i++)
		WAIT_FOR(cfs_store_prefetch(store, &b, 0, PAGE, 0));
	stop_store();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tiers),	 cmocka_unit_test(late_tier),
		cmocka_unit_test(hanging_tier),	 cmocka_unit_test(queue_is_no_fault),
		cmocka_unit_test(hanging_ahead), cmocka_unit_test(no_memory_and_few_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
