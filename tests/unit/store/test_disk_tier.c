/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The disk cache below a store. When these fail a reader gets wrong bytes, what is on disk is
 * fetched again, or the cache takes the memory of others.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "disk_fixture.h"

#define SEGMENT CFS_DISK_SEGMENT

/* Every alignment: segments, pieces of memory, the ends of the block. */
static void ranges(void **state)
{
	struct cfs_block b = {.slice = 9, .len = 5 * SEGMENT + 777};
	static const uint32_t at[] = {
		0,	     1,		  4096,	       SEGMENT - 1,	  SEGMENT,
		SEGMENT + 1, 3 * SEGMENT, 5 * SEGMENT, 5 * SEGMENT + 776, 5 * SEGMENT + 777};
	size_t i, k;

	open_disk();
	store_block(&b);
	for (i = 0; i < CFS_ARRAY_SIZE(at); i++) {
		for (k = i + 1; k < CFS_ARRAY_SIZE(at); k++) {
			assert_int_equal(get(&b, at[i], at[k] - at[i]), at[k] - at[i]);
			assert_int_equal(read_range(&b, at[i], at[k] - at[i], soon()), 0);
		}
	}
	close_disk();
}

/* Requests of any size and place are answered from the file: no memory is kept, nothing fetched. */
static void large_reads(void **state)
{
	struct cfs_block b = {.slice = 13, .len = BLOCK - 4096};
	unsigned seed = 7, i;
	uint32_t off, len;

	open_disk();
	store_block(&b);
	for (i = 0; i < 200; i++) {
		off = (uint32_t)rand_r(&seed) % b.len;
		len = 1 + (uint32_t)rand_r(&seed) % CFS_MIN(b.len - off, (uint32_t)MIB);
		assert_int_equal(read_range(&b, off, len, soon()), 0);
	}
	assert_int_equal(metric("memory_cache_bytes"), 0);
	assert_int_equal(metric("disk_cache_hits_total"), 200);
	assert_int_equal(metric_for("object_requests_total", "get"), 0);
	/* Read ahead: into the kernel's cache. */
	assert_true(cfs_store_prefetch(store, &b, 0, b.len, 0));
	assert_int_equal(read_range(&b, 0, CFS_MIN(b.len, (uint32_t)MIB), soon()), 0);
	assert_int_equal(metric("memory_cache_bytes"), 0);
	close_disk();
}

/* A small read takes no 128 KiB of memory for itself, and no object request. */
static void small_reads(void **state)
{
	struct cfs_block b = {.slice = 10, .len = BLOCK}, c = {.slice = 11, .len = BLOCK};

	open_disk();
	store_block(&b);
	assert_int_equal(read_range(&b, 100 * 4096, 4096, soon()), 0);
	assert_int_equal(metric("memory_cache_bytes"), 0);
	assert_int_equal(metric("disk_cache_hits_total"), 1);
	assert_int_equal(metric_for("object_requests_total", "get"), 0);
	/* A missing block comes from the object store, once. */
	put_object(&c);
	assert_int_equal(read_range(&c, 100 * 4096, 4096, soon()), 0);
	assert_int_equal(metric_for("object_requests_total", "get"), 1);
	assert_int_equal(read_range(&b, 0, b.len, soon()), 0);
	assert_int_equal(metric_for("object_requests_total", "get"), 1);
	close_disk();
}

/* A block that was fetched in parts is kept when all of it has been. */
static void parts_add_up(void **state)
{
	struct cfs_block b = {.slice = 12, .len = BLOCK};
	uint32_t at;

	open_disk();
	put_object(&b);
	for (at = 0; at < BLOCK; at += CFS_PAGE_LARGE) {
		assert_int_equal(metric("disk_cache_writes_total"), 0);
		assert_int_equal(read_range(&b, at, CFS_PAGE_LARGE, soon()), 0);
	}
	WAIT_FOR(metric("disk_cache_writes_total") == 1);
	assert_int_equal(get(&b, 0, b.len), b.len);
	close_disk();
}

/* A written block is kept when it is small, or when large blocks are wanted too. */
static void uploads(void **state)
{
	struct cfs_block small = {.slice = 13, .len = 5000}, large = {.slice = 13, .len = BLOCK};
	struct cfs_segs segs;

	open_disk();
	assert_int_equal(put_sync(&small), 0);
	WAIT_FOR(metric("disk_cache_writes_total") == 1);
	assert_int_equal(get(&small, 0, small.len), small.len);

	cfs_segs_init(&segs);
	assert_int_equal(cfs_segs_add_zeros(&segs, BLOCK), 0);
	assert_int_equal(cfs_store_put_sync(store, &large, &segs, soon()), 0);
	cfs_segs_release(&segs);
	assert_int_equal(metric("disk_cache_pending_bytes"), 0);
	assert_int_equal(metric("disk_cache_writes_total"), 1);
	close_disk();
}

static void partial_only(void **state)
{
	struct cfs_block small = {.slice = 14, .len = 5000}, large = {.slice = 15, .len = BLOCK};

	disk_conf.partial_only = true;
	open_disk();
	offer(&large);
	store_block(&small);
	assert_true(file_exists(&small));
	assert_false(file_exists(&large));
	close_disk();
}

/* Pages of blocks that wait to be written are given up when readers need them. */
static void waiting_blocks_give_way(void **state)
{
	struct cfs_page *pages[512];
	struct cfs_block b;
	uint32_t k, n;

	open_disk();
	for (k = 0; k < 12; k++) {
		b = (struct cfs_block){.slice = 400 + k, .len = BLOCK};
		offer(&b);
	}
	/* All 64 MiB of the pool. */
	for (n = 0; n < 512; n++)
		assert_int_equal(
			cfs_page_get(pool, CFS_PAGE_LARGE, CFS_USE_READ, soon(), &pages[n]), 0);
	WAIT_FOR(metric("disk_cache_writes_total") + metric("disk_cache_drops_total") == 12);
	while (n > 0)
		cfs_page_unref(pages[--n]);
	close_disk();
}

static void waiting_blocks_are_bounded(void **state)
{
	struct cfs_block b;
	uint32_t k;

	disk_conf.pending_max = 2 * BLOCK;
	open_disk();
	for (k = 0; k < 12; k++) {
		b = (struct cfs_block){.slice = 420 + k, .len = BLOCK};
		offer(&b);
		assert_true(metric("disk_cache_pending_bytes") <= disk_conf.pending_max);
	}
	WAIT_FOR(metric("disk_cache_writes_total") + metric("disk_cache_drops_total") == 12);
	close_disk();
}

static _Atomic bool stop;
static _Atomic int wrong;

static void *read_all_the_time(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg;

	while (!atomic_load(&stop)) {
		struct cfs_block b = {.slice = 900 + rand_r(&seed) % 20, .len = 300000};
		uint32_t off = (uint32_t)rand_r(&seed) % b.len;
		uint32_t len = 1 + (uint32_t)rand_r(&seed) % CFS_MIN(b.len - off, 70000);

		if (read_range(&b, off, len, soon()) != 0)
			atomic_fetch_add(&wrong, 1);
	}
	return NULL;
}

/* Readers see right bytes while blocks are evicted, forgotten, damaged, and the tree removed. */
static void under_load(void **state)
{
	pthread_t threads[4];
	unsigned seed = 7, k;
	int fd;

	disk_conf.size = 4 * MIB;
	open_disk();
	for (k = 0; k < 20; k++)
		put_object(&(struct cfs_block){.slice = 900 + k, .len = 300000});
	stop = false;
	wrong = 0;
	for (k = 0; k < 4; k++)
		pthread_create(&threads[k], NULL, read_all_the_time, (void *)(uintptr_t)(k + 1));
	for (k = 0; k < 300; k++) {
		struct cfs_block b = {.slice = 900 + rand_r(&seed) % 20, .len = 300000};

		switch (k % 4) {
		case 0:
			cfs_store_forget(store, &b);
			break;
		case 1:
			fd = open(path_of(&b), O_RDWR);
			if (fd >= 0) {
				assert_int_equal(pwrite(fd, "damaged", 7, rand_r(&seed) % 299000),
						 7);
				close(fd);
			}
			break;
		case 2:
			if (k % 100 == 2)
				remove_tree(cache);
			break;
		default:
			offer(&b);
		}
		assert_true(metric("disk_cache_bytes") <= disk_conf.size);
		cfs_backoff(0, 2, 2, soon());
	}
	stop = true;
	for (k = 0; k < 4; k++)
		pthread_join(threads[k], NULL);
	assert_int_equal(wrong, 0);
	WAIT_FOR(metric("disk_cache_directories_failed") == 0);
	close_disk();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		DISK_TEST(ranges),
		DISK_TEST(large_reads),
		DISK_TEST(small_reads),
		DISK_TEST(parts_add_up),
		DISK_TEST(uploads),
		DISK_TEST(partial_only),
		DISK_TEST(waiting_blocks_give_way),
		DISK_TEST(waiting_blocks_are_bounded),
		DISK_TEST(under_load),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
