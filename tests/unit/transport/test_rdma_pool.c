/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool of blocks that others read by RDMA, on a device that only notes what is mapped. When
 * these fail, a member reads memory that is not the block's any more, or never may read it.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
/* After the headers that it needs. */
#include <cmocka.h>

#include "base/bytes.h"
#include "transport/rdma/pool.h"
#include "transport/wire/crc.h"
#include "unit/wait.h"

#define LEN   (CFS_RDMA_PAGE * 20 + 77)
#define SLOTS 2
#define SMALL (3 * CFS_RDMA_PAGE) /* the largest block of the smallest place */
#define FIT   256		  /* of them in a slab */

/* Memory that was mapped: a key is used once. */
static struct mapped {
	struct cfs_rdma_memory memory;
	const uint8_t *start; /* NULL: unmapped */
	size_t len;
} mapped[4 * FIT];
static _Atomic unsigned n_mapped, n_unmapped;
static _Atomic int map_fails;

static int map(struct cfs_rdma *d, void *start, size_t len, enum cfs_rdma_access access,
	       struct cfs_rdma_memory **ret)
{
	struct mapped *m = &mapped[n_mapped], *other;

	(void)d;
	assert_int_equal(access, CFS_RDMA_SHARED);
	assert_in_range(n_mapped, 0, CFS_ARRAY_SIZE(mapped) - 1);
	for (other = mapped; other < m; other++)
		if (other->start)
			assert_true((uint8_t *)start + len <= other->start ||
				    other->start + other->len <= (uint8_t *)start);
	if (map_fails)
		return map_fails;
	*m = (struct mapped){.memory.key = 100 + n_mapped, .start = start, .len = len};
	n_mapped++;
	*ret = &m->memory;
	return 0;
}

static void unmap(struct cfs_rdma *d, struct cfs_rdma_memory *memory)
{
	struct mapped *m = (struct mapped *)memory;

	(void)d;
	assert_non_null(m->start);
	m->start = NULL;
	n_unmapped++;
}

static const struct cfs_rdma_ops ops = {.map = map, .unmap = unmap};

static struct cfs_rdma_pool *pool;
static uint8_t bytes[CFS_RDMA_BLOCK_MAX];
static uint32_t crcs[CFS_RDMA_BLOCK_MAX / CFS_PEER_SEGMENT];
static uint32_t len; /* of the blocks that are offered next, all with the same bytes */
static int fd;

static void set_len(uint32_t n)
{
	unsigned i;

	len = n;
	for (i = 0; i < CFS_DIV_UP(len, CFS_PEER_SEGMENT); i++)
		crcs[i] = cfs_crc_add(0, bytes + (size_t)i * CFS_PEER_SEGMENT,
				      CFS_MIN(CFS_PEER_SEGMENT, len - i * CFS_PEER_SEGMENT));
	assert_int_equal(ftruncate(fd, 0), 0);
	assert_int_equal(pwrite(fd, bytes, len, 0), len);
}

static int setup(void **state)
{
	unsigned i;

	(void)state;
	n_mapped = n_unmapped = 0;
	map_fails = 0;
	for (i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(i * 7 + (i >> 8));
	fd = memfd_create("block", MFD_CLOEXEC);
	set_len(LEN);
	assert_int_equal(cfs_rdma_pool_create(SLOTS * (uint64_t)CFS_RDMA_SLOT, &pool), 0);
	cfs_rdma_pool_attach(pool, &ops, (struct cfs_rdma *)mapped);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	cfs_rdma_pool_attach(pool, NULL, NULL);
	cfs_rdma_pool_destroy(pool);
	close(fd);
	assert_int_equal(n_mapped, n_unmapped);
	return 0;
}

static struct cfs_peer_block block(unsigned i)
{
	return (struct cfs_peer_block){.slice = 5, .index = i, .len = len};
}

static struct cfs_rdma_pool_stats stats(void)
{
	struct cfs_rdma_pool_stats st;

	cfs_rdma_pool_stats(pool, &st);
	return st;
}

static void offer(unsigned i)
{
	struct cfs_peer_block b = block(i);

	cfs_rdma_pool_offer(pool, &b, fd, crcs, CFS_DIV_UP(len, CFS_PEER_SEGMENT));
}

/* Its lease is over at once if now_ms is long ago. */
static bool grant(unsigned i, uint64_t now_ms, struct cfs_rdma_grant *ret)
{
	struct cfs_peer_block b = block(i);

	return cfs_rdma_pool_grant(pool, &b, now_ms, ret);
}

static void load(unsigned i)
{
	uint64_t loads = stats().loads;

	offer(i);
	offer(i);
	WAIT_FOR(stats().loads == loads + 1);
}

/* The second request loads it; what is granted is the block, and the table that the grant names. */
static void test_hot_block(void **state)
{
	struct cfs_rdma_grant g;
	const uint8_t *start;
	unsigned i;

	(void)state;
	assert_false(grant(1, cfs_now_ms(), &g));
	offer(1);
	offer(2);
	assert_int_equal(n_mapped, 0);
	load(1); /* the second and third time */
	assert_true(grant(1, cfs_now_ms(), &g));
	assert_int_equal(g.key, mapped[0].memory.key);
	assert_int_equal(g.lease_ms, CFS_RDMA_LEASE_MS);
	start = mapped[0].start;
	assert_int_equal(mapped[0].len, cfs_rdma_table_off(LEN) + cfs_rdma_table_len(LEN));
	assert_memory_equal(start, bytes, LEN);
	start += cfs_rdma_table_off(LEN);
	assert_int_equal(g.table_crc, cfs_crc_add(0, start, cfs_rdma_table_len(LEN)));
	for (i = 0; i < cfs_rdma_pages(LEN); i++)
		assert_int_equal(cfs_get_be32(start + (size_t)i * 4),
				 cfs_crc_add(0, bytes + (size_t)i * CFS_RDMA_PAGE,
					     CFS_MIN(CFS_RDMA_PAGE, LEN - i * CFS_RDMA_PAGE)));
}

/* A file that does not match its checksums is never granted. */
static void test_damaged_file(void **state)
{
	struct cfs_rdma_grant g;

	(void)state;
	assert_int_equal(pwrite(fd, "!", 1, LEN - 3), 1);
	offer(1);
	offer(1);
	WAIT_FOR(stats().load_failures == 1);
	assert_int_equal(n_mapped, 0);
	assert_false(grant(1, cfs_now_ms(), &g));
	assert_int_equal(ftruncate(fd, LEN - 100), 0); /* nor one that is too short */
	offer(1);
	offer(1);
	WAIT_FOR(stats().load_failures == 2);
	assert_int_equal(n_mapped, 0);
}

/* Leased blocks stay; the one that was used longest ago leaves first, and takes its key along. */
static void test_eviction(void **state)
{
	uint64_t now_ms = cfs_now_ms(), long_ago_ms = now_ms - 60000;
	struct cfs_rdma_grant g;

	(void)state;
	set_len(CFS_RDMA_BLOCK_MAX);
	load(1);
	load(2);
	assert_true(grant(1, now_ms, &g));
	assert_true(grant(2, now_ms, &g));
	offer(3);
	offer(3);
	WAIT_FOR(stats().no_room == 1);
	assert_int_equal(stats().evictions, 0);
	assert_int_equal(n_unmapped, 0);
	assert_true(grant(2, long_ago_ms, &g));
	load(3);
	assert_int_equal(stats().evictions, 1);
	assert_null(mapped[1].start);
	assert_false(grant(2, now_ms, &g));
	assert_true(grant(1, now_ms, &g));
	assert_int_equal(g.key, mapped[0].memory.key);
	assert_true(grant(3, now_ms, &g));
	assert_int_equal(g.key, mapped[2].memory.key); /* the same memory, another key */
}

static const struct mapped *with_key(uint32_t key)
{
	assert_in_range(key, 100, 99 + n_mapped);
	return &mapped[key - 100];
}

/* Small files take little: two slabs hold 512 of them, and each is found by its name. */
static void test_small_files(void **state)
{
	struct cfs_rdma_grant g;
	unsigned i;

	(void)state;
	set_len(SMALL);
	for (i = 0; i < SLOTS * FIT; i++) {
		bytes[0] = (uint8_t)i;
		bytes[1] = (uint8_t)(i >> 8);
		set_len(SMALL);
		load(i);
	}
	assert_int_equal(stats().evictions, 0);
	assert_int_equal(stats().blocks, SLOTS * FIT);
	assert_int_equal(stats().bytes, SLOTS * FIT * SMALL);
	for (i = 0; i < SLOTS * FIT; i++) {
		const uint8_t *start;

		assert_true(grant(i, 1 + i, &g));
		start = with_key(g.key)->start;
		assert_int_equal(start[0] | start[1] << 8, i);
		assert_memory_equal(start + 2, bytes + 2, SMALL - 2);
	}
	load(SLOTS * FIT);
	assert_false(grant(0, cfs_now_ms(), &g)); /* used longest ago */
	assert_true(grant(1, cfs_now_ms(), &g));
	assert_int_equal(stats().evictions, 1);
}

/*
 * Sizes share the memory: a large block takes the slab of small ones that were used less recently than
 * large ones, with all of their keys, but not while one of them has a lease.
 */
static void test_sizes_share_slabs(void **state)
{
	struct cfs_rdma_grant g;
	uint64_t loaded_ms;
	unsigned i;

	(void)state;
	set_len(CFS_RDMA_BLOCK_MAX);
	load(1);
	assert_true(grant(1, cfs_now_ms(), &g));
	set_len(SMALL);
	for (i = 0; i < 5; i++)
		load(i);
	assert_true(grant(3, cfs_now_ms(), &g));
	set_len(CFS_RDMA_BLOCK_MAX);
	offer(2);
	offer(2);
	WAIT_FOR(stats().no_room == 1);
	assert_int_equal(n_unmapped, 0);
	cfs_rdma_pool_attach(pool, &ops, (struct cfs_rdma *)mapped); /* without leases */
	assert_int_equal(n_unmapped, 6);
	set_len(SMALL);
	for (i = 0; i < 5; i++)
		load(i);
	loaded_ms = cfs_now_ms();
	WAIT_FOR(cfs_now_ms() > loaded_ms);
	set_len(CFS_RDMA_BLOCK_MAX);
	load(1);
	assert_int_equal(stats().evictions, 0);
	load(2); /* instead of the small ones */
	assert_int_equal(stats().evictions, 5);
	assert_int_equal(stats().blocks, 2);
	assert_true(grant(1, cfs_now_ms(), &g));
	assert_true(grant(2, cfs_now_ms(), &g));
	assert_memory_equal(with_key(g.key)->start, bytes, CFS_RDMA_BLOCK_MAX);
	set_len(SMALL);
	assert_false(grant(3, cfs_now_ms(), &g));
}

/* The keys of a device that is gone are void, and a block that cannot be mapped is not granted. */
static void test_device_goes(void **state)
{
	struct cfs_rdma_grant g;

	(void)state;
	load(1);
	cfs_rdma_pool_attach(pool, NULL, NULL);
	assert_int_equal(n_unmapped, 1);
	assert_false(grant(1, cfs_now_ms(), &g));
	offer(1);
	offer(1);
	cfs_rdma_pool_attach(pool, &ops, (struct cfs_rdma *)mapped);
	map_fails = -ENOMEM;
	offer(1);
	offer(1);
	WAIT_FOR(stats().load_failures == 1);
	assert_false(grant(1, cfs_now_ms(), &g));
	map_fails = 0;
	load(1);
	assert_true(grant(1, cfs_now_ms(), &g));
}

int main(void)
{
#define WITH_POOL(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
	const struct CMUnitTest tests[] = {
		WITH_POOL(test_hot_block),	   WITH_POOL(test_damaged_file),
		WITH_POOL(test_eviction),	   WITH_POOL(test_small_files),
		WITH_POOL(test_sizes_share_slabs), WITH_POOL(test_device_goes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
