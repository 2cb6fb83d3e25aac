/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When these fail writeback loses what it has said is safe, uploads bytes that nobody wrote,
 * uploads what was removed, or goes on when there is no room for it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cachefs/stage.h>

#include "disk_fixture.h"
#include "store/disk/disk-internal.h"
#include "store/stage/stage-internal.h"

static struct cfs_stage_conf conf;

static int set_up(void **state)
{
	conf = (struct cfs_stage_conf){.writeback = true, .max_uploads = 2, .tick_ms = 10};
	disk_set_up(state);
	plain_objects = false;
	return 0;
}

static void open_mount(void)
{
	open_disk();
	assert_int_equal(cfs_stage_start(store, disk, &conf), 0);
}

static struct cfs_block block(uint64_t slice, uint32_t len)
{
	return (struct cfs_block){.slice = slice, .len = len};
}

static int read_block(const struct cfs_block *b)
{
	return read_range(b, 0, b->len, soon());
}

/* A written block is on disk, readable, and uploaded when that works; then nothing is left. */
static void test_staged_then_uploaded(void **state)
{
	struct cfs_block a = block(1001, BLOCK), b = block(1002, 100001);
	struct stat st;
	char path[512];

	faulty.put_error = -EIO;
	open_mount();
	assert_int_equal(put_sync(&a), 0);
	assert_int_equal(put_sync(&b), 0);
	assert_int_equal(metric("staging_blocks"), 2);
	assert_int_equal(metric("staging_bytes"), BLOCK + 100001);
	assert_true(in_tree("rawstaging", &a) && in_tree("rawstaging", &b));
	/* As other clients have it: the name in raw is a link, checksums follow the data. */
	path_in("raw", &b, path);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_nlink, 2);
	assert_int_equal(st.st_size, 100001 + 4 * 4);
	assert_int_equal(st.st_mode & 07777, 0600);
	WAIT_FOR(metric("staging_upload_errors_total") >= 3);
	assert_false(object_exists(&a) || object_exists(&b));
	assert_int_equal(read_block(&a), 0);

	faulty.put_error = 0;
	WAIT_FOR(metric("staging_blocks") == 0);
	assert_true(object_exists(&a) && object_exists(&b));
	assert_false(in_tree("rawstaging", &a) || in_tree("rawstaging", &b));
	assert_true(in_tree("raw", &a) && in_tree("raw", &b));
	assert_int_equal(metric("staging_uploads_total"), 2);
	assert_int_equal(metric("staging_bytes"), 0);
	/* The file may go only when the object lasts. */
	assert_true(faulty.syncs >= 1);
	assert_int_equal(read_block(&b), 0);
	close_disk();
}

/* Read from disk alone, also when the cache has dropped its name of the block. */
static void test_read_from_stage(void **state)
{
	struct cfs_block a = block(7, BLOCK), b = block(8, 4096);
	char path[512];

	conf.delay_ms = 3600000;
	open_mount();
	assert_int_equal(put_sync(&a), 0);
	assert_int_equal(put_sync(&b), 0);
	close_disk();
	open_mount();
	WAIT_FOR(metric("staging_blocks") == 2);
	assert_int_equal(read_block(&a), 0);
	cfs_store_forget(store, &a);
	cfs_store_forget(store, &b);
	path_in("raw", &a, path);
	assert_int_equal(access(path, F_OK), -1);
	assert_int_equal(read_block(&a), 0);
	assert_int_equal(read_block(&b), 0);
	assert_false(object_exists(&a));
	close_disk();
}

/* A mount that ends without uploading, and one without writeback after it. */
static void test_found_at_start(void **state)
{
	struct cfs_block b[5];
	char key[CFS_BLOCK_KEY_MAX];
	int i;

	conf.delay_ms = 3600000;
	open_mount();
	for (i = 0; i < 5; i++) {
		char path[512];
		struct timespec times[2] = {{.tv_sec = 1700000000 + 100 * i},
					    {.tv_sec = 1700000000 + 100 * i}};

		b[i] = block((uint64_t)(77 * (i + 1) % 5 + 1), 1000);
		assert_int_equal(put_sync(&b[i]), 0);
		path_in("rawstaging", &b[i], path);
		assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
	}
	close_disk();
	assert_int_equal(faulty.n_keys, 0);

	conf = (struct cfs_stage_conf){.max_uploads = 1, .tick_ms = 10};
	open_mount();
	WAIT_FOR(metric("staging_uploads_total") == 5);
	for (i = 0; i < 5; i++) {
		cfs_store_block_key(store, &b[i], key);
		assert_string_equal(faulty.keys[i], key); /* oldest first */
		assert_true(object_exists(&b[i]));
		assert_int_equal(read_block(&b[i]), 0);
	}
	/* Without the option blocks are not staged. */
	faulty.put_error = -EIO;
	b[0] = block(99, 1000);
	assert_int_equal(put_sync(&b[0]), -EIO);
	assert_int_equal(metric("staging_bypassed_total"), 0);
	close_disk();
}

static void damage(const struct cfs_block *b, off_t at, off_t size)
{
	char path[512], byte;
	int fd;

	path_in("rawstaging", b, path);
	fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	if (size >= 0) {
		assert_int_equal(ftruncate(fd, size), 0);
	} else {
		assert_int_equal(pread(fd, &byte, 1, at), 1);
		byte ^= 4;
		assert_int_equal(pwrite(fd, &byte, 1, at), 1);
	}
	close(fd);
}

/* Nothing but what was written is ever uploaded; the file stays for whoever can use it. */
static void test_damaged_is_not_uploaded(void **state)
{
	struct cfs_block good = block(1, 100000), flipped = block(2, 100000),
			 torn = block(3, 100000), empty = block(4, 100000),
			 trailer = block(5, 100000);

	conf.delay_ms = 3600000;
	open_mount();
	assert_int_equal(put_sync(&good), 0);
	assert_int_equal(put_sync(&flipped), 0);
	assert_int_equal(put_sync(&torn), 0);
	assert_int_equal(put_sync(&empty), 0);
	assert_int_equal(put_sync(&trailer), 0);
	close_disk();
	damage(&flipped, 99999, -1);
	damage(&torn, 0, 70000);
	damage(&empty, 0, 0);
	damage(&trailer, 0, 100000 + 3);

	conf.delay_ms = 0;
	open_mount();
	WAIT_FOR(metric("staging_damaged_blocks") == 4 && metric("staging_blocks") == 0);
	assert_true(object_exists(&good));
	assert_int_equal(faulty.n_keys, 1);
	assert_true(in_tree("rawstaging", &flipped) && in_tree("rawstaging", &torn));
	assert_true(read_block(&flipped) < 0 && read_block(&flipped) != -EILSEQ);
	assert_int_equal(cfs_stage_drain(store, LONG_MS), 0); /* does not wait for them */
	close_disk();
}

/* The tier that a block was stored with, -1: it was not. */
static int tier_of_put(const struct cfs_block *b)
{
	char key[CFS_BLOCK_KEY_MAX];
	int i;

	cfs_store_block_key(store, b, key);
	for (i = 0; i < faulty.n_keys; i++) {
		if (!strcmp(faulty.keys[i], key))
			return (int)faulty.tiers[i];
	}
	return -1;
}

/*
 * Files of JuiceFS without checksums, or with its footer: readable as long as they are staged, then
 * stored with their tier.
 */
static void test_other_clients_files(void **state)
{
	static const struct {
		bool checksums;
		int tier;
		const char *footer; /* behind magic and length */
		uint8_t len;
	} cases[] = {
		{false, 0, NULL, 0},
		{true, 1, "\x82\xa4tier\xcc\x01\xa3pad\xc4\x02\0\0", 16},
		{false, 2, "\x82\xa4tier\xcc\x02\xa3pad\xc4\x00", 14},
		{true, 3, "\x82\xa3pad\xc4\x03\0\0\0\xa4tier\x03", 16},
		{true, 0, "\x82\xa4tier\xcc\x04\xa3pad\xc4\x02\0\0",
		 16},			    /* there is no such tier */
		{true, 0, "\x81\xa4ti", 4}, /* torn */
		{true, 0, "\x82\xa3pad\xc4\xff\0\xa4tier\x02\0\0\0", 16},
		{true, 0, "\x8f\xbftie\0\0\0", 8},
	};
	struct cfs_block b[CFS_ARRAY_SIZE(cases)];
	size_t i;

	conf.delay_ms = 3600000;
	open_mount();
	for (i = 0; i < CFS_ARRAY_SIZE(cases); i++) {
		b[i] = block(11 + i, 5000);
		assert_int_equal(put_sync(&b[i]), 0);
	}
	close_disk();
	for (i = 0; i < CFS_ARRAY_SIZE(cases); i++) {
		const uint8_t head[] = {0x46, 0x53, 0, cases[i].len};
		char path[512];
		int fd;

		if (!cases[i].checksums)
			damage(&b[i], 0, 5000);
		path_in("rawstaging", &b[i], path);
		fd = open(path, O_WRONLY | O_APPEND);
		if (cases[i].footer) {
			assert_int_equal(write(fd, head, sizeof(head)), sizeof(head));
			assert_int_equal(write(fd, cases[i].footer, cases[i].len), cases[i].len);
		}
		close(fd);
	}
	open_mount();
	WAIT_FOR(metric("staging_blocks") == CFS_ARRAY_SIZE(cases));
	for (i = 0; i < CFS_ARRAY_SIZE(cases); i++)
		assert_int_equal(read_block(&b[i]), 0);
	close_disk();
	conf.delay_ms = 0;
	open_mount();
	WAIT_FOR(metric("staging_uploads_total") == CFS_ARRAY_SIZE(cases));
	for (i = 0; i < CFS_ARRAY_SIZE(cases); i++)
		assert_int_equal(tier_of_put(&b[i]), cases[i].tier);
	close_disk();
}

/* Over the cap, and blocks that the threshold leaves out, go straight to the object store. */
static void test_cap_and_threshold(void **state)
{
	struct cfs_block a = block(1, BLOCK), b = block(2, BLOCK), c = block(3, 4096);

	conf.size = BLOCK + 4096;
	conf.delay_ms = 3600000;
	open_mount();
	assert_int_equal(put_sync(&a), 0);
	assert_int_equal(put_sync(&b), 0);
	assert_int_equal(put_sync(&c), 0);
	assert_false(object_exists(&a) || object_exists(&c));
	assert_true(object_exists(&b));
	assert_int_equal(metric("staging_bypassed_total"), 1);
	assert_int_equal(metric("staging_bytes"), BLOCK + 4096);
	close_disk();

	conf.size = 0;
	conf.threshold = 5000;
	open_mount();
	WAIT_FOR(metric("staging_blocks") == 2);
	a = block(4, 5000);
	b = block(5, 4999);
	assert_int_equal(put_sync(&a), 0);
	assert_int_equal(put_sync(&b), 0);
	assert_true(object_exists(&a));
	assert_false(object_exists(&b));
	assert_int_equal(metric("staging_bypassed_total"), 0);
	close_disk();
}

/* A disk that keeps nothing free for us: writes go on without it, and it still caches. */
static void test_full_disk(void **state)
{
	struct cfs_block a = block(1, 4096);

	conf.free_ratio = 2.1;
	open_mount();
	assert_int_equal(put_sync(&a), 0);
	assert_true(object_exists(&a));
	assert_int_equal(metric("staging_bypassed_total"), 1);
	assert_int_equal(metric("disk_cache_directories_failed"), 0);
	close_disk();
}

/* The directory is gone: no write fails for it. */
static void test_directory_gone(void **state)
{
	struct cfs_block a = block(1, 4096), b = block(2, 4096);

	conf.delay_ms = 3600000;
	open_mount();
	assert_int_equal(put_sync(&a), 0);
	remove_cache();
	assert_int_equal(put_sync(&b), 0);
	assert_int_equal(read_block(&b), 0);
	cfs_stage_set_mode(store, CFS_STAGE_FLUSH);
	/* It was still in memory. */
	WAIT_FOR(metric("staging_blocks") == 0);
	assert_true(object_exists(&a));
	close_disk();
}

/* A block removed before its upload is not uploaded, and during it does not stay. */
static void test_removed(void **state)
{
	struct cfs_block a = block(1, 4096), b = block(2, 4096);

	conf.delay_ms = 3600000;
	open_mount();
	assert_int_equal(put_sync(&a), 0);
	assert_int_equal(put_sync(&b), 0);
	assert_int_equal(cfs_store_remove_slice(store, 1, 4096, soon()), 0);
	assert_int_equal(metric("staging_blocks"), 1);
	assert_false(in_tree("rawstaging", &a) || in_tree("raw", &a));
	assert_int_equal(read_block(&a), -ENOENT);

	hold(&faulty.hold_puts, 1);
	cfs_stage_set_mode(store, CFS_STAGE_FLUSH);
	wait_held(1);
	assert_int_equal(cfs_store_remove_slice(store, 2, 4096, soon()), 0);
	let_go();
	WAIT_FOR(metric("staging_blocks") == 0 && !object_exists(&b));
	WAIT_FOR(!in_tree("rawstaging", &b) && !in_tree("raw", &b));
	assert_int_equal(faulty.n_keys, 1);
	close_disk();
	assert_int_equal(faulty.n_keys, 1);
}

/* The end of a mount waits for the uploads, until it makes no sense or is told not to. */
static void test_drain(void **state)
{
	struct cfs_block a = block(1, 4096);

	conf.delay_ms = 3600000;
	open_mount();
	assert_int_equal(put_sync(&a), 0);
	faulty.put_error = -EIO;
	assert_int_equal(cfs_stage_drain(store, 100), 1);
	close_disk();
	assert_true(in_tree("rawstaging", &a));

	faulty.put_error = 0;
	open_mount();
	WAIT_FOR(metric("staging_blocks") == 1);
	cfs_stage_set_mode(store, CFS_STAGE_LEAVE);
	assert_int_equal(cfs_stage_drain(store, LONG_MS), 1);
	assert_false(object_exists(&a));
	close_disk();

	open_mount();
	WAIT_FOR(metric("staging_blocks") == 1);
	assert_int_equal(cfs_stage_drain(store, LONG_MS), 0);
	assert_true(object_exists(&a));
	close_disk();
}

/* A read-only mount changes nothing but reads what is there. */
static void test_hold(void **state)
{
	struct cfs_block a = block(1, 4096);

	conf.delay_ms = 3600000;
	open_mount();
	assert_int_equal(put_sync(&a), 0);
	close_disk();
	conf = (struct cfs_stage_conf){.read_only = true, .tick_ms = 10};
	open_mount();
	WAIT_FOR(metric("staging_blocks") == 1);
	assert_int_equal(read_block(&a), 0);
	assert_int_equal(cfs_stage_drain(store, LONG_MS), 0);
	close_disk();
	assert_true(in_tree("rawstaging", &a));
	assert_int_equal(faulty.n_keys, 0);
}

#define WRITERS 8
#define EACH	24

static void *write_many(void *arg)
{
	uint64_t first = (uintptr_t)arg;
	uint64_t i;

	for (i = 0; i < EACH; i++) {
		struct cfs_block b = block(first + i * 1000, 20000);

		if (put_sync(&b) < 0 || read_block(&b) < 0)
			return arg;
		if (i % 4 == 3 && cfs_store_remove_slice(store, b.slice, b.len, soon()) < 0)
			return arg;
	}
	return NULL;
}

/* Many at once, with failures between: everything arrives, the removed ones do not stay. */
static void test_many_writers(void **state)
{
	pthread_t threads[WRITERS];
	void *failed;
	uintptr_t i;
	uint64_t k;

	open_mount();
	for (i = 0; i < WRITERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, write_many, (void *)(i + 1)), 0);
	for (i = 0; i < 20; i++) {
		faulty.put_error = i % 2 ? -EIO : 0;
		cfs_backoff(0, 5, 5, soon());
	}
	faulty.put_error = 0;
	for (i = 0; i < WRITERS; i++) {
		pthread_join(threads[i], &failed);
		assert_null(failed);
	}
	assert_int_equal(cfs_stage_drain(store, LONG_MS), 0);
	for (i = 0; i < WRITERS; i++) {
		for (k = 0; k < EACH; k++) {
			struct cfs_block b = block(i + 1 + k * 1000, 20000);

			if (object_exists(&b) != (k % 4 != 3))
				fail_msg("slice %llu", (unsigned long long)b.slice);
		}
	}
	close_disk();
}

static int visit_some(void *arg, int fd, const char *name, const struct cfs_block *b, bool tmp)
{
	unsigned *left = arg;

	return --*left == 0;
}

/* A scan limited to the room there is reports that there is more. */
static void test_more_than_there_is_room_for(void **state)
{
	struct cfs_block b = block(1, 1000);
	unsigned left = 2;

	conf.delay_ms = 3600000;
	open_mount();
	for (; b.slice < 4000; b.slice += 1000)
		assert_int_equal(put_sync(&b), 0);
	assert_int_equal(cfs_cachedir_walk(&disk->set.v[0], CFS_CACHEDIR_STAGED, visit_some, &left),
			 1);
	assert_int_equal(left, 0);
	close_disk();
}

static unsigned faults(struct cache_dir *dir)
{
	unsigned n;

	pthread_mutex_lock(&dir->lock);
	n = dir->faults;
	pthread_mutex_unlock(&dir->lock);
	return n;
}

/* A disk that hangs with a block that was staged there while another was out is the one to blame.
 */
static void test_blame(void **state)
{
	struct cfs_block b = block(1, 1000);
	struct disk_dir *dir;
	char list[160];

	conf.delay_ms = 3600000;
	snprintf(list, sizeof(list), "%s/d1:%s/d2", top, top);
	disk_conf.dirs = list;
	open_mount();
	do {
		b.slice++;
		cfs_cachedir_fault(&disk->set.v[0], "test", -ENODEV, false);
		assert_int_equal(put_sync(&b), 0);
		WAIT_FOR(metric("disk_cache_directories_failed") == 0);
		dir = cfs_disk_staged_dir(disk, &b);
	} while (dir != &disk->dirs[1] || cfs_disk_dir_of_key(disk, &b) != &disk->dirs[0]);
	cfs_disk_tier.late(disk, &b);
	assert_int_equal(faults(&disk->set.v[0]), 0);
	assert_int_equal(faults(&disk->set.v[1]), 1);
	close_disk();
}

static void test_hours(void **state)
{
	int from, until;

	assert_int_equal(cfs_stage_parse_hours("22,6", &from, &until), 0);
	assert_true(from == 22 && until == 6);
	assert_int_equal(cfs_stage_parse_hours("0-24", &from, &until), 0);
	assert_true(from == 0 && until == 0);
	assert_int_equal(cfs_stage_parse_hours("25,6", &from, &until), -EINVAL);
	assert_int_equal(cfs_stage_parse_hours("2", &from, &until), -EINVAL);
	assert_int_equal(cfs_stage_parse_hours("2,6,7", &from, &until), -EINVAL);
	assert_int_equal(cfs_stage_parse_hours("-2,6", &from, &until), -EINVAL);
	assert_int_equal(cfs_stage_parse_hours("", &from, &until), -EINVAL);
}

/* Not within the hours: nothing is uploaded. */
static void test_wrong_hours(void **state)
{
	struct cfs_block a = block(1, 4096);
	time_t now = time(NULL);
	struct tm tm;

	localtime_r(&now, &tm);
	conf.hour_from = (tm.tm_hour + 2) % 24;
	conf.hour_until = (tm.tm_hour + 3) % 24;
	open_mount();
	assert_int_equal(put_sync(&a), 0);
	assert_int_equal(metric("staging_blocks"), 1);
	close_disk();
	assert_int_equal(faulty.n_keys, 0);
	conf.hour_from = tm.tm_hour;
	conf.hour_until = (tm.tm_hour + 2) % 24;
	open_mount();
	WAIT_FOR(metric("staging_uploads_total") == 1);
	close_disk();
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, set_up, disk_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_staged_then_uploaded),
		TEST(test_read_from_stage),
		TEST(test_found_at_start),
		TEST(test_damaged_is_not_uploaded),
		TEST(test_other_clients_files),
		TEST(test_cap_and_threshold),
		TEST(test_full_disk),
		TEST(test_directory_gone),
		TEST(test_removed),
		TEST(test_drain),
		TEST(test_hold),
		TEST(test_many_writers),
		TEST(test_more_than_there_is_room_for),
		TEST(test_blame),
		cmocka_unit_test(test_hours),
		TEST(test_wrong_hours),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
