/* SPDX-License-Identifier: Apache-2.0 */
/* The space the disk cache takes. When these fail it fills the disk, or keeps nothing. */
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cachefs/whole.h>

#include "disk_fixture.h"

static uint64_t file_bytes;

static int count_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	if (type == FTW_F && strstr(path, "/raw/"))
		file_bytes += (uint64_t)st->st_size;
	return 0;
}

static uint64_t bytes_on_disk(void)
{
	file_bytes = 0;
	nftw(cache, count_entry, 16, FTW_PHYS);
	return file_bytes;
}

/* The directory is never larger than it may be, whatever the policy. */
static void size_is_kept(void **state)
{
	static const enum cfs_disk_eviction policies[] = {CFS_EVICT_S3FIFO, CFS_EVICT_2RANDOM,
							  CFS_EVICT_LRU, CFS_EVICT_NONE};
	size_t i;
	uint32_t k;

	disk_conf.size = 3 * MIB;
	for (i = 0; i < CFS_ARRAY_SIZE(policies); i++) {
		disk_conf.eviction = policies[i];
		open_disk();
		for (k = 0; k < 40; k++) {
			struct cfs_block b = {.slice = 200 + k, .len = 256 << 10};

			offer(&b);
			WAIT_FOR(metric("disk_cache_pending_bytes") == 0);
			assert_true(bytes_on_disk() <= disk_conf.size);
			assert_true(metric("disk_cache_bytes") <= disk_conf.size);
		}
		assert_true(bytes_on_disk() >= disk_conf.size * 8 / 10);
		assert_int_equal(metric("disk_cache_evictions_total"),
				 policies[i] == CFS_EVICT_NONE ? 0 : 29);
		close_disk();
		/* A smaller size after a restart. */
		disk_conf.size = 1 * MIB;
		open_disk();
		if (policies[i] != CFS_EVICT_NONE)
			WAIT_FOR(metric("disk_cache_scans_total") == 1 &&
				 bytes_on_disk() <= disk_conf.size);
		close_disk();
		disk_conf.size = 3 * MIB;
		remove_tree(cache);
	}
}

static void items_are_bounded(void **state)
{
	uint32_t k;

	disk_conf.items = 10;
	open_disk();
	for (k = 0; k < 50; k++) {
		struct cfs_block b = {.slice = 300 + k, .len = 100};

		store_block(&b);
		assert_true(metric("disk_cache_blocks") <= 10);
	}
	assert_int_equal(metric("disk_cache_evictions_total"), 40);
	close_disk();
}

static void old_blocks_expire(void **state)
{
	struct cfs_block b = {.slice = 310, .len = 100};

	open_disk();
	store_block(&b);
	close_disk();
	touch(path_of(&b), 104, 7200);
	disk_conf.expire_s = 3600;
	open_disk();
	WAIT_FOR(metric("disk_cache_expired_total") == 1);
	assert_false(file_exists(&b));
	store_block(&b);
	WAIT_FOR(metric("disk_cache_scans_total") == 1);
	assert_true(file_exists(&b));
	close_disk();
}

/* A second link is another client's block that it has not uploaded: removing it frees nothing. */
static void staged_blocks_stay(void **state)
{
	struct cfs_block b = {.slice = 320, .len = 256 << 10}, c;
	char other[256];
	uint32_t k;

	disk_conf.size = 1 * MIB;
	open_disk();
	store_block(&b);
	snprintf(other, sizeof(other), "%s/staged", cache);
	assert_int_equal(link(path_of(&b), other), 0);
	for (k = 0; k < 20; k++) {
		c = (struct cfs_block){.slice = 330 + k, .len = 256 << 10};
		store_block(&c);
	}
	assert_true(file_exists(&b));
	close_disk();
}

/* A file system smaller than the cache: blocks leave, the mount stays. */
static void full_file_system(void **state)
{
	struct cfs_block b;
	char *filler = NULL;
	uint32_t k;
	int fd;

	mount_tmpfs("size=8m");
	open_disk();
	for (k = 0; k < 20; k++) {
		b = (struct cfs_block){.slice = 700 + k, .len = 1 << 20};
		offer(&b);
		WAIT_FOR(metric("disk_cache_pending_bytes") == 0);
	}
	assert_true(metric("disk_cache_writes_total") >= 15);
	assert_true(metric("disk_cache_evictions_total") >= 8);
	assert_int_equal(get(&b, 0, b.len), b.len);

	/* Somebody else takes the space: the cache gives all it has, then rests. */
	assert_true(asprintf(&filler, "%s/filler", cache) > 0);
	for (k = 0; k < 20; k++)
		cfs_disk_tier.forget(disk, &(struct cfs_block){.slice = 700 + k, .len = 1 << 20});
	WAIT_FOR((touch(filler, 0, 0), fd = open(filler, O_WRONLY)) >= 0 &&
		 posix_fallocate(fd, 0, 6 << 20) == 0);
	store_block(&(struct cfs_block){.slice = 720, .len = 1 << 20});
	b = (struct cfs_block){.slice = 721, .len = BLOCK};
	put_object(&b);
	assert_int_equal(read_range(&b, 0, b.len, soon()), 0);
	WAIT_FOR(metric("disk_cache_directories_failed") == 1);
	assert_int_equal(metric("disk_cache_blocks"), 0);
	cfs_store_forget(store, &b);
	assert_int_equal(read_range(&b, 0, b.len, soon()), 0);
	close(fd);
	unlink(filler);
	free(filler);
	WAIT_FOR(metric("disk_cache_directories_failed") == 0);
	store_block(&b);
	close_disk();
}

/* Without it: files that no table knows fill the disk, beside the limit of the cache. */
static void the_number_of_whole_files_is_kept(void **state)
{
	const uint64_t most = 65536;
	struct cfs_block b = {.slice = 790, .len = 100};
	struct cfs_whole_piece p = {.slice = b.slice, .slice_size = b.len, .len = b.len};
	struct cfs_whole_map map = {.stamp = {.length = b.len}, .v = &p, .n = 1};
	struct cfs_whole_file *w;
	char path[256], first[256];
	uint64_t ino;
	int fd;

	mount_tmpfs("size=64m,nr_inodes=1000000");
	disk_conf.size = 4096 * MIB;
	snprintf(path, sizeof(path), "%s/" UUID, cache);
	assert_int_equal(mkdir(path, 0700), 0);
	snprintf(path, sizeof(path), "%s/" UUID "/whole", cache);
	assert_int_equal(mkdir(path, 0700), 0);
	for (ino = 1; ino <= most; ino++) {
		snprintf(path, sizeof(path), "%s/" UUID "/whole/%llu_%016llx", cache,
			 (unsigned long long)ino, 1ULL);
		fd = ino > 1 ? link(first, path) : open(path, O_CREAT | O_RDWR, 0600);
		assert_true(fd >= 0);
		if (ino == 1) {
			close(fd);
			memcpy(first, path, sizeof(path));
		}
	}
	open_disk();
	WAIT_FOR(metric("whole_files") == most);
	store_block(&b);
	for (; ino <= most + 3; ino++) {
		map.stamp.ino = ino;
		assert_int_equal(cfs_whole_make(disk, &map, NULL), 0);
		w = cfs_whole_find(disk, &map.stamp);
		assert_non_null(w);
		cfs_whole_put(w);
		assert_int_equal(metric("whole_files"), most);
	}
	close_disk();
}

/* free-space-ratio: blocks leave before the file system is full. */
static void free_space_is_kept(void **state)
{
	struct cfs_block b;
	uint32_t k;

	mount_tmpfs("size=16m");
	disk_conf.free_ratio = 0.5;
	open_disk();
	for (k = 0; k < 30; k++) {
		b = (struct cfs_block){.slice = 740 + k, .len = 1 << 20};
		offer(&b);
		WAIT_FOR(metric("disk_cache_pending_bytes") == 0);
		assert_true(bytes_on_disk() <= 8 * MIB);
	}
	assert_true(bytes_on_disk() >= 6 * MIB);
	assert_int_equal(metric("disk_cache_directories_failed"), 0);
	close_disk();
}

/* The same for inodes. */
static void free_inodes_are_kept(void **state)
{
	struct cfs_block b;
	uint32_t k;

	mount_tmpfs("size=64m,nr_inodes=40");
	disk_conf.free_ratio = 0.25;
	open_disk();
	for (k = 0; k < 60; k++) {
		b = (struct cfs_block){.slice = 780 + k, .len = 100};
		offer(&b);
		WAIT_FOR(metric("disk_cache_pending_bytes") == 0);
	}
	assert_true(metric("disk_cache_evictions_total") > 20);
	assert_in_range(metric("disk_cache_blocks"), 15, 30);
	assert_int_equal(metric("disk_cache_directories_failed"), 0);
	close_disk();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		DISK_TEST(size_is_kept),	 DISK_TEST(items_are_bounded),
		DISK_TEST(old_blocks_expire),	 DISK_TEST(staged_blocks_stay),
		DISK_TEST(full_file_system),	 DISK_TEST(free_space_is_kept),
		DISK_TEST(free_inodes_are_kept), DISK_TEST(the_number_of_whole_files_is_kept),

	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
