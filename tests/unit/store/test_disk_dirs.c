/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directories of the disk cache that come, fail and go. When these fail a mount stops because a
 * cache disk does.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "disk_fixture.h"
#include "unit/skip.h"

static void reopen(void)
{
	close_disk();
	open_disk();
}

static void several_directories(void **state)
{
	static char list[256];
	char second[160];
	unsigned first = 0, k;

	snprintf(list, sizeof(list), "%s/d*/cache:%s/d1/cache", top, top);
	for (k = 1; k <= 2; k++) {
		snprintf(second, sizeof(second), "%s/d%u", top, k);
		assert_int_equal(mkdir(second, 0700), 0);
	}
	disk_conf.dirs = list;
	open_disk();
	assert_int_equal(metric("disk_cache_directories"), 2);
	snprintf(cache, sizeof(cache), "%s/d1/cache", top);
	for (k = 0; k < 200; k++) {
		struct cfs_block b = {.slice = 500 + k, .len = 100};

		store_block(&b);
		first += file_exists(&b);
		assert_int_equal(get(&b, 0, b.len), b.len);
	}
	assert_in_range(first, 50, 150);
	/* The same places after a restart, found by a client that has not scanned yet. */
	reopen();
	for (k = 0; k < 200; k++) {
		struct cfs_block b = {.slice = 500 + k, .len = 100};

		assert_int_equal(get(&b, 0, b.len), b.len);
	}
	/* One goes away: its blocks are misses, then kept by the other. */
	remove_cache();
	WAIT_FOR(metric("disk_cache_directory_failures_total") >= 1);
	for (k = 0; k < 200; k++) {
		struct cfs_block b = {.slice = 500 + k, .len = 100};

		put_object(&b);
		assert_int_equal(read_range(&b, 0, b.len, soon()), 0);
	}
	close_disk();
}

/* Below /tmp somebody else may have made the directory, or a link, before us. */
static void somebody_elses(void **state)
{
	struct cfs_block b = {.slice = 660, .len = 5000};
	char path[256], other[256];

	if (geteuid() != 0)
		skip_missing("the right to give files away");
	snprintf(path, sizeof(path), "%s/" UUID, cache);
	snprintf(other, sizeof(other), "%s/other", top);
	mkdir(cache, 0755);
	assert_int_equal(mkdir(path, 0777), 0);
	assert_int_equal(chown(path, 1000, 1000), 0);
	open_disk();
	put_object(&b);
	assert_int_equal(metric("disk_cache_directories_failed"), 1);
	assert_int_equal(read_range(&b, 0, b.len, soon()), 0);
	close_disk();
	assert_int_equal(rmdir(path), 0);

	assert_int_equal(mkdir(other, 0700), 0);
	assert_int_equal(symlink(other, path), 0);
	assert_int_equal(lchown(path, 1000, 1000), 0);
	open_disk();
	assert_int_equal(metric("disk_cache_directories_failed"), 1);
	close_disk();
	assert_int_equal(rmdir(other), 0);
	assert_int_equal(unlink(path), 0);

	/* Where others may write as well they are trusted. */
	assert_int_equal(mkdir(path, 0777), 0);
	assert_int_equal(chown(path, 1000, 1000), 0);
	disk_conf.mode = 0666;
	open_disk();
	assert_int_equal(metric("disk_cache_directories_failed"), 0);
	close_disk();
}

/* The remains of a new file after a power failure. */
static void empty_id(void **state)
{
	struct cfs_block b = {.slice = 650, .len = 5000};
	char lock[256];
	struct stat st;

	open_disk();
	store_block(&b);
	close_disk();
	snprintf(lock, sizeof(lock), "%s/" UUID "/.lock", cache);
	assert_int_equal(truncate(lock, 0), 0);
	open_disk();
	assert_int_equal(metric("disk_cache_directories_failed"), 0);
	assert_int_equal(get(&b, 0, b.len), b.len);
	assert_int_equal(stat(lock, &st), 0);
	assert_true(st.st_size > 0);
	close_disk();
}

static void bad_settings(void **state)
{
	static const char *const bad[] = {"relative", "", ":", "/x:y"};
	struct cfs_disk *d;
	char err[256], none[256];
	size_t i;

	assert_int_equal(cfs_pool_create(8 * MIB, &pool), 0);
	disk_conf.pool = pool;
	for (i = 0; i < CFS_ARRAY_SIZE(bad); i++) {
		err[0] = '\0';
		disk_conf.dirs = bad[i];
		assert_true(cfs_disk_create(&disk_conf, &d, err) < 0);
		assert_true(err[0]);
	}
	snprintf(none, sizeof(none), "%s/none*/x", cache);
	disk_conf.dirs = none;
	assert_int_equal(cfs_disk_create(&disk_conf, &d, err), -ENOENT);
	disk_conf.dirs = cache;
	disk_conf.mode = 07777;
	assert_int_equal(cfs_disk_create(&disk_conf, &d, err), -EINVAL);
	cfs_pool_destroy(pool);
}

/* A removed tree is noticed, reads go on, and the cache begins again where it was. */
static void removed_directory(void **state)
{
	struct cfs_block b = {.slice = 600, .len = BLOCK}, c = {.slice = 601, .len = 5000};
	char raw[256];

	open_disk();
	put_object(&b);
	store_block(&b);
	assert_int_equal(get(&b, 0, 100), 100);
	remove_cache();
	assert_int_equal(read_range(&b, 0, b.len, soon()), 0);
	WAIT_FOR(metric("disk_cache_directory_failures_total") == 1);
	WAIT_FOR(metric("disk_cache_directories_failed") == 0);
	assert_int_equal(metric("disk_cache_bytes"), 0);
	store_block(&c);
	assert_int_equal(get(&c, 0, c.len), c.len);

	/* Only what is in it: no failure at all. */
	snprintf(raw, sizeof(raw), "%s/" UUID "/raw", cache);
	remove_tree(raw);
	WAIT_FOR(get(&c, 0, c.len) == -ENOENT);
	store_block(&c);
	assert_int_equal(get(&c, 0, c.len), c.len);
	assert_int_equal(metric("disk_cache_directory_failures_total"), 1);
	close_disk();
}

/* A directory that cannot be used at start is used once it can be. */
static void directory_that_comes_late(void **state)
{
	struct cfs_block b = {.slice = 610, .len = 5000};

	touch(cache, 5, 0);
	open_disk();
	assert_int_equal(metric("disk_cache_directories_failed"), 1);
	put_object(&b);
	assert_int_equal(read_range(&b, 0, b.len, soon()), 0);
	cfs_store_forget(store, &b);
	assert_int_equal(unlink(cache), 0);
	WAIT_FOR(metric("disk_cache_directories_failed") == 0);
	store_block(&b);
	assert_int_equal(get(&b, 0, b.len), b.len);
	close_disk();
}

/* Remounted read-only: what is there is served, nothing more comes, and later it does again. */
static void read_only_file_system(void **state)
{
	struct cfs_block b = {.slice = 800, .len = BLOCK}, c = {.slice = 801, .len = BLOCK};

	mount_tmpfs("size=64m");
	open_disk();
	store_block(&b);
	assert_int_equal(mount(NULL, cache, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
	put_object(&c);
	assert_int_equal(read_range(&c, 0, c.len, soon()), 0);
	WAIT_FOR(metric("disk_cache_directories_failed") == 1);
	assert_int_equal(get(&b, 0, b.len), b.len);
	assert_int_equal(metric("disk_cache_directory_failures_total"), 1);
	assert_int_equal(mount(NULL, cache, NULL, MS_REMOUNT, NULL), 0);
	WAIT_FOR(metric("disk_cache_directories_failed") == 0);
	store_block(&c);
	close_disk();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		DISK_TEST(several_directories),	  DISK_TEST(bad_settings),
		DISK_TEST(removed_directory),	  DISK_TEST(directory_that_comes_late),
		DISK_TEST(read_only_file_system), DISK_TEST(empty_id),
		DISK_TEST(somebody_elses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
