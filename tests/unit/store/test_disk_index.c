/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When these fail cached blocks are forgotten or counted twice, the cache outgrows its size or its
 * memory, one pass through a big file throws out what is read every day, or a directory shared with
 * another client is searched in the wrong place.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "store/disk/disk-internal.h"

#define BLOCK (4u << 20)

static struct cfs_block block(uint64_t n)
{
	return (struct cfs_block){.slice = n / 16 + 1, .index = (uint32_t)(n % 16), .len = BLOCK};
}

/* With room for so many blocks. */
static struct index new_index(enum cfs_disk_eviction eviction, uint32_t blocks)
{
	uint64_t limit = blocks * (uint64_t)(BLOCK + CFS_DISK_OVERHEAD);
	struct index ix = {0};

	assert_int_equal(cfs_disk_index_init(&ix, eviction, limit, blocks, BLOCK), 0);
	return ix;
}

static void add(struct index *ix, uint64_t n, uint32_t now_s)
{
	struct cfs_block b = block(n);

	assert_int_equal(cfs_disk_index_add(ix, &b, now_s, false), 0);
}

static bool has(struct index *ix, uint64_t n)
{
	struct cfs_block b = block(n);

	return cfs_disk_index_has(ix, &b);
}

static bool hit(struct index *ix, uint64_t n, uint32_t now_s)
{
	struct cfs_block b = block(n);

	return cfs_disk_index_hit(ix, &b, now_s);
}

static uint64_t number(const struct cfs_block *b)
{
	return (b->slice - 1) * 16 + b->index;
}

static uint64_t evict(struct index *ix)
{
	struct cfs_block b;

	assert_true(cfs_disk_index_take_victim(ix, &b));
	return number(&b);
}

/* Random additions, removals and reads against a plain array of flags. */
static void like_an_array(void **state)
{
	enum { N = 5000, STEPS = 200000 };
	static const enum cfs_disk_eviction policies[] = {CFS_EVICT_S3FIFO, CFS_EVICT_2RANDOM,
							  CFS_EVICT_LRU};
	bool *there = calloc(N, sizeof(*there));
	uint32_t seed = 1, n, count, i, k;
	struct cfs_block b;

	for (k = 0; k < CFS_ARRAY_SIZE(policies); k++) {
		struct index ix = new_index(policies[k], N);

		memset(there, 0, N * sizeof(*there));
		for (i = 0; i < STEPS; i++) {
			seed = seed * 1664525 + 1013904223;
			n = (seed >> 8) % N;
			b = block(n);
			switch (seed >> 28) {
			case 0 ... 6:
				assert_int_equal(cfs_disk_index_add(&ix, &b, i, false),
						 there[n] ? -EEXIST : 0);
				there[n] = true;
				break;
			case 7 ... 10:
				assert_int_equal(cfs_disk_index_hit(&ix, &b, i), there[n]);
				break;
			case 11 ... 13:
				assert_int_equal(cfs_disk_index_remove(&ix, &b), there[n]);
				there[n] = false;
				break;
			default:
				if (cfs_disk_index_state(&ix).n == 0)
					break;
				n = (uint32_t)evict(&ix);
				assert_true(there[n]);
				there[n] = false;
			}
		}
		for (count = 0, n = 0; n < N; n++) {
			assert_int_equal(has(&ix, n), there[n]);
			count += there[n];
		}
		assert_int_equal(cfs_disk_index_state(&ix).n, count);
		assert_int_equal(cfs_disk_index_state(&ix).bytes,
				 count * (uint64_t)(BLOCK + CFS_DISK_OVERHEAD));
		for (; count > 0; count--)
			there[evict(&ix)] = false;
		assert_false(cfs_disk_index_take_victim(&ix, &b));
		for (n = 0; n < N; n++)
			assert_false(there[n]);
		cfs_disk_index_fini(&ix);
	}
	free(there);
}

/* Every field at its edges; length and index are part of the name. */
static void edges(void **state)
{
	struct index ix = new_index(CFS_EVICT_S3FIFO, 100);
	struct cfs_block v[] = {
		{.slice = CFS_CACHEDIR_SLICE_MAX - 1,
		 .index = UINT16_MAX,
		 .len = CFS_CACHEDIR_LEN_MAX},
		{.slice = CFS_CACHEDIR_SLICE_MAX - 1, .index = UINT16_MAX, .len = 1},
		{.slice = 1ULL << 32, .index = 0, .len = 1},
		{.slice = 0, .index = 1, .len = 1},
		{.slice = 1, .index = 0, .len = 1},
	};
	struct cfs_block b;
	size_t i, found = 0;

	for (i = 0; i < CFS_ARRAY_SIZE(v); i++)
		assert_int_equal(cfs_disk_index_add(&ix, &v[i], 1, false), 0);
	while (cfs_disk_index_take_victim(&ix, &b)) {
		assert_memory_equal(&b, &v[found], sizeof(b));
		found++;
	}
	assert_int_equal(found, CFS_ARRAY_SIZE(v));
	assert_int_equal(cfs_disk_index_state(&ix).bytes, 0);
	cfs_disk_index_fini(&ix);
}

/* The bound on memory that limits the number of blocks. */
static void bounded(void **state)
{
	struct index ix = new_index(CFS_EVICT_S3FIFO, 1000);
	struct cfs_block b = block(1000);
	uint32_t i;

	for (i = 0; i < 1000; i++)
		add(&ix, i, 1);
	assert_int_equal(cfs_disk_index_add(&ix, &b, 1, true), -ENOSPC);
	ix.max = 2000;
	assert_int_equal(cfs_disk_index_add(&ix, &b, 1, false), -ENOSPC);
	assert_int_equal(cfs_disk_index_add(&ix, &b, 1, true), 0);
	assert_true(ix.cap <= 1024 && ix.bucket_cap <= 1024);
	cfs_disk_index_clear(&ix);
	assert_false(has(&ix, 5));
	for (i = 0; i < 1000; i++)
		add(&ix, i, 1);
	cfs_disk_index_fini(&ix);
}

static void lru(void **state)
{
	struct index ix = new_index(CFS_EVICT_LRU, 10);
	unsigned i;

	for (i = 0; i < 5; i++)
		add(&ix, i, 1);
	hit(&ix, 0, 1);
	hit(&ix, 2, 1);
	assert_int_equal(evict(&ix), 1);
	assert_int_equal(evict(&ix), 3);
	assert_int_equal(evict(&ix), 4);
	assert_int_equal(evict(&ix), 0);
	assert_int_equal(evict(&ix), 2);
	cfs_disk_index_fini(&ix);
}

/* The newest of a hundred is taken when it is picked twice only. */
static void two_random(void **state)
{
	struct index ix = new_index(CFS_EVICT_2RANDOM, 100);
	unsigned i, young = 0;

	for (i = 0; i < 100; i++)
		add(&ix, i, i);
	for (i = 0; i < 50; i++)
		young += evict(&ix) >= 50;
	assert_in_range(young, 0, 24);
	cfs_disk_index_fini(&ix);
}

/* A pass through a thousand blocks leaves those alone that are read again and again. */
static void s3fifo_resists_scans(void **state)
{
	enum { SIZE = 100, HOT = 60 };
	struct index ix = new_index(CFS_EVICT_S3FIFO, SIZE);
	unsigned i, kept = 0;
	uint32_t now_s = 1;

	for (i = 0; i < HOT; i++)
		add(&ix, i, now_s);
	for (i = 0; i < HOT; i++)
		hit(&ix, i, now_s + 1);
	now_s += 10;
	for (i = 1000; i < 2000; i++) {
		if (cfs_disk_index_state(&ix).n == SIZE)
			evict(&ix);
		add(&ix, i, now_s);
		/* Read in pieces, once. */
		hit(&ix, i, now_s);
		hit(&ix, i, now_s);
	}
	for (i = 0; i < HOT; i++)
		kept += has(&ix, i);
	assert_int_equal(kept, HOT);
	cfs_disk_index_fini(&ix);
}

/* A block that comes back soon after it left is worth more than one that was never seen. */
static void s3fifo_remembers(void **state)
{
	struct index ix = new_index(CFS_EVICT_S3FIFO, 100);
	unsigned i;

	for (i = 0; i < 100; i++)
		add(&ix, i, 1);
	assert_int_equal(evict(&ix), 0);
	add(&ix, 0, 2);
	for (i = 1; i < 80; i++)
		assert_int_equal(evict(&ix), i);
	assert_true(has(&ix, 0));
	cfs_disk_index_fini(&ix);
}

static void none(void **state)
{
	struct index ix = new_index(CFS_EVICT_NONE, 10);
	struct cfs_block b;

	add(&ix, 1, 1);
	assert_false(cfs_disk_index_take_victim(&ix, &b));
	assert_true(has(&ix, 1));
	cfs_disk_index_fini(&ix);
}

/* Blocks found at a restart are evicted in the order of their use, and before later ones. */
static void found_blocks_are_sorted(void **state)
{
	struct index ix = new_index(CFS_EVICT_LRU, 100);
	static const uint32_t atimes[] = {50, 10, 40, 20, 30};
	struct cfs_block b;
	unsigned i;

	for (i = 0; i < 5; i++) {
		b = block(i);
		assert_int_equal(cfs_disk_index_add(&ix, &b, atimes[i], true), 0);
		add(&ix, 10 + i, 5);
	}
	hit(&ix, 3, 60);
	cfs_disk_index_sort_found(&ix);
	assert_int_equal(evict(&ix), 1);
	assert_int_equal(evict(&ix), 4);
	assert_int_equal(evict(&ix), 2);
	assert_int_equal(evict(&ix), 0);
	assert_int_equal(evict(&ix), 10);
	cfs_disk_index_fini(&ix);
}

static void expired(void **state)
{
	enum { N = 10000 };
	struct index ix = new_index(CFS_EVICT_LRU, N);
	struct cfs_block v[64];
	uint32_t cursor = 0, total = 0;
	unsigned i, n;

	for (i = 0; i < N; i++)
		add(&ix, i, i % 2 ? 100 : 200);
	do {
		n = cfs_disk_index_take_expired(&ix, 150, &cursor, v, 64);
		for (i = 0; i < n; i++)
			assert_int_equal(number(&v[i]) % 2, 1);
		total += n;
	} while (cursor > 0);
	assert_int_equal(total, N / 2);
	cfs_disk_index_fini(&ix);
}

/* Reference values of the algorithm, of other implementations. */
static void murmur3(void **state)
{
	static const struct {
		const char *text;
		uint32_t hash;
	} v[] = {
		{"", 0},
		{"hello", 0x248BFA47},
		{"hello, world", 0x149BBB7F},
		{"19 Jan 2038 at 3:14:07 AM", 0xE31E8A70},
		{"The quick brown fox jumps over the lazy dog.", 0xD5C48BFC},
	};
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(v); i++)
		assert_int_equal(cfs_cachedir_murmur3(v[i].text, strlen(v[i].text)), v[i].hash);
}

/* Keys spread evenly, and only those of a failed directory move. */
static void ring(void **state)
{
	enum { N = 20000, DIRS = 4 };
	struct cache_dir *dirs = calloc(DIRS, sizeof(*dirs));
	struct cache_dirs set = {.v = dirs, .n = DIRS};
	unsigned count[DIRS] = {0}, i;
	struct cache_dir **was = calloc(N, sizeof(*was));

	pthread_mutex_init(&set.ring_lock, NULL);
	for (i = 0; i < DIRS; i++) {
		snprintf(dirs[i].id, sizeof(dirs[i].id), "1e8d3c5%x-0000-4000-8000-000000000000",
			 i);
		dirs[i].number = i;
		dirs[i].fd = -1;
		assert_int_equal(cfs_cachedirs_add(&set, &dirs[i]), 0);
	}
	for (i = 0; i < N; i++) {
		struct cfs_block b = block(i);

		was[i] = cfs_cachedirs_find(&set, &b);
		count[was[i] - dirs]++;
	}
	for (i = 0; i < DIRS; i++)
		assert_in_range(count[i], N / DIRS * 6 / 10, N / DIRS * 14 / 10);
	dirs[1].state = DIR_FAILED;
	dirs[2].state = DIR_READ_ONLY;
	for (i = 0; i < N; i++) {
		struct cfs_block b = block(i);
		struct cache_dir *dir = cfs_cachedirs_find(&set, &b);

		if (was[i] == &dirs[1])
			assert_ptr_not_equal(dir, was[i]);
		else
			assert_ptr_equal(dir, was[i]);
	}
	for (i = 0; i < DIRS; i++)
		dirs[i].state = DIR_FAILED;
	assert_null(cfs_cachedirs_find(&set, &(struct cfs_block){.slice = 1, .len = 1}));
	cfs_cachedirs_fini(&set);
	free(was);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(like_an_array),
		cmocka_unit_test(edges),
		cmocka_unit_test(bounded),
		cmocka_unit_test(lru),
		cmocka_unit_test(two_random),
		cmocka_unit_test(s3fifo_resists_scans),
		cmocka_unit_test(s3fifo_remembers),
		cmocka_unit_test(none),
		cmocka_unit_test(found_blocks_are_sorted),
		cmocka_unit_test(expired),
		cmocka_unit_test(murmur3),
		cmocka_unit_test(ring),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
