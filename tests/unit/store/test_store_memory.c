/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks in memory. When these fail the mount outgrows its memory, or readers starve for it. */
#include <errno.h>

#include "store_fixture.h"

enum { N_BLOCKS = 60, ROUNDS = 120 };

static void *read_at_random(void *arg)
{
	uint64_t rnd = (uint64_t)(uintptr_t)arg * 0x9E3779B97F4A7C15ULL;
	intptr_t bad = 0;
	int i;

	for (i = 0; i < ROUNDS; i++) {
		struct cfs_block b = {.slice = 100, .len = BLOCK};
		uint32_t off, len;

		rnd = rnd * 6364136223846793005ULL + 1442695040888963407ULL;
		/* Half of the reads go to a tenth of the blocks. */
		b.index = (uint32_t)(rnd >> 33) % (rnd >> 63 ? N_BLOCKS : N_BLOCKS / 10);
		off = (uint32_t)(rnd >> 20) % (BLOCK - 1);
		len = 1 + (uint32_t)(rnd >> 7) % CFS_MIN(BLOCK - off, (uint32_t)MIB);
		if (i % 8 == 0)
			cfs_store_prefetch(store, &b, 0, BLOCK, 0);
		bad += read_range(&b, off, len, soon()) != 0;
	}
	return (void *)bad;
}

/* 240 MiB of blocks through 64 MiB of memory, which nobody ever exceeds. */
static void eviction_keeps_the_budget(void **state)
{
	enum { THREADS = 8 };
	struct cfs_pool_stats st;
	pthread_t t[THREADS];
	uint32_t i;
	void *bad;

	start_store((struct setting){0});
	for (i = 0; i < N_BLOCKS; i++) {
		struct cfs_block b = {.slice = 100, .index = i, .len = BLOCK};

		put_object(&b);
	}
	for (i = 0; i < THREADS; i++)
		assert_int_equal(
			pthread_create(&t[i], NULL, read_at_random, (void *)(uintptr_t)(i + 1)), 0);
	for (i = 0; i < THREADS; i++) {
		pthread_join(t[i], &bad);
		assert_null(bad);
	}
	WAIT_FOR(metric("store_downloads_queued") == 0);
	cfs_pool_stats(pool, &st);
	assert_true(st.mapped <= 64 * MIB + 3 * 2 * MIB);
	assert_true(metric("memory_cache_bytes") <= 64 * MIB);
	assert_true(metric("memory_cache_bytes") > 32 * MIB);
	assert_true(metric("memory_cache_hits_total") > 0);
	stop_store();
}

/* Readers that together want more than there is take turns instead of starving each other. */
static void readers_take_turns_for_memory(void **state)
{
	struct reader rd[READERS];
	pthread_t t[READERS];
	uint32_t i;

	start_store((struct setting){.budget = 8 * MIB});
	for (i = 0; i < READERS; i++) {
		rd[i] = (struct reader){
			.b = {.slice = 20, .index = i, .len = BLOCK},
			.len = BLOCK,
			.deadline = soon(),
		};
		put_object(&rd[i].b);
	}
	start_readers(rd, t, READERS);
	join_readers(t, READERS);
	for (i = 0; i < READERS; i++)
		assert_int_equal(rd[i].r, 0);
	stop_store();
}

/* Without memory a read fails at its deadline and leaves the block readable. */
static void no_memory_no_read(void **state)
{
	struct cfs_block b = {.slice = 21, .len = BLOCK};
	struct cfs_page *pages[8 * MIB / PAGE];
	size_t i;

	start_store((struct setting){.budget = 8 * MIB});
	put_object(&b);
	for (i = 0; i < CFS_ARRAY_SIZE(pages); i++)
		assert_int_equal(cfs_page_get(pool, PAGE, CFS_USE_PEER, 0, &pages[i]), 0);
	assert_int_equal(read_range(&b, 0, 10, cfs_deadline_in(50)), -EIO);
	cfs_store_prefetch(store, &b, 0, BLOCK, 0);
	assert_int_equal(metric("store_prefetches_total"), 0);
	assert_int_equal(metric("store_prefetch_drops_total"), 1);
	for (i = 0; i < CFS_ARRAY_SIZE(pages); i++)
		cfs_page_unref(pages[i]);
	assert_int_equal(read_range(&b, 0, BLOCK, soon()), 0);
	stop_store();
}

/* Memory that is short is not spent on what nobody has asked for. */
static void large_misses_respect_the_budget(void **state)
{
	struct cfs_block b = {.slice = 32, .len = BLOCK};
	struct cfs_page *pages[14 * MIB / PAGE];
	size_t i;

	start_store((struct setting){.budget = 24 * MIB});
	put_object(&b);
	for (i = 0; i < CFS_ARRAY_SIZE(pages); i++)
		assert_int_equal(cfs_page_get(pool, PAGE, CFS_USE_WRITE, 0, &pages[i]), 0);
	assert_int_equal(read_range(&b, 0, BLOCK / 4, soon()), 0);
	assert_int_equal(metric_for("object_data_bytes_total", "get"), BLOCK / 4);
	for (i = 0; i < CFS_ARRAY_SIZE(pages); i++)
		cfs_page_unref(pages[i]);
	stop_store();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(eviction_keeps_the_budget),
		cmocka_unit_test(readers_take_turns_for_memory),
		cmocka_unit_test(no_memory_no_read),
		cmocka_unit_test(large_misses_respect_the_budget),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
