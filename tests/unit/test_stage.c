/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When these fail writeback loses what it has said is safe, uploads bytes that nobody wrote,
 * uploads what was removed, or goes on when there is no room for it.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include <cachefs/stage.h>

#include "base/bytes.h"

#define MIB	((uint64_t)1 << 20)
#define BLOCK	((uint32_t)(4 * MIB))
#define UUID	"5ad22e7b-6d15-4b2b-8b6e-4c1ad4a9c0de"
#define LONG_MS 20000

static cfs_deadline_t soon(void)
{
	return cfs_deadline_in(LONG_MS);
}

/* ---- an object store that fails on demand, around a mem store ---- */

static struct faulty {
	struct cfs_object_store base;
	struct cfs_object_store *inner;
	_Atomic int put_error, syncs, n_keys;
	_Atomic bool hold, held;	   /* puts hang while `hold` */
	char keys[256][CFS_BLOCK_KEY_MAX]; /* in order of arrival */
} faulty;

static int faulty_put(struct cfs_object_store *o, const char *key, const struct iovec *src,
		      int n_src, cfs_deadline_t deadline)
{
	int i;

	while (faulty.hold && !cfs_deadline_passed(deadline)) {
		faulty.held = true;
		cfs_backoff(0, 1, 1, deadline);
	}
	if (faulty.put_error)
		return faulty.put_error;
	i = faulty.n_keys++;
	if (i < (int)CFS_ARRAY_SIZE(faulty.keys))
		snprintf(faulty.keys[i], sizeof(faulty.keys[i]), "%s", key);
	return faulty.inner->ops->put(faulty.inner, key, src, n_src, deadline);
}

static ssize_t faulty_get(struct cfs_object_store *o, const char *key, uint64_t off,
			  const struct iovec *dst, int n_dst, cfs_deadline_t deadline)
{
	return faulty.inner->ops->get(faulty.inner, key, off, dst, n_dst, deadline);
}

static int faulty_del(struct cfs_object_store *o, const char *key, cfs_deadline_t deadline)
{
	return faulty.inner->ops->del(faulty.inner, key, deadline);
}

static int faulty_head(struct cfs_object_store *o, const char *key, struct cfs_object_info *ret,
		       cfs_deadline_t deadline)
{
	return faulty.inner->ops->head(faulty.inner, key, ret, deadline);
}

static int faulty_sync(struct cfs_object_store *o, cfs_deadline_t deadline)
{
	faulty.syncs++;
	return 0;
}

static struct cfs_object_ops faulty_ops = {
	.name = "faulty",
	.get = faulty_get,
	.put = faulty_put,
	.del = faulty_del,
	.head = faulty_head,
	.sync = faulty_sync,
};

/* ---- fixture: a mount's store over it, with a cache directory that outlives it ---- */

static char top[64], cache[128];
static struct cfs_pool *pool;
static struct cfs_store *store;
static struct cfs_disk *disk;
static struct cfs_disk_conf disk_conf;
static struct cfs_stage_conf conf;

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

static void open_store(void)
{
	struct cfs_store_conf s = {
		.object = &faulty.base,
		.volume = "vol",
		.block_size = BLOCK,
		.max_downloads = 4,
		.max_uploads = 4,
		.get_timeout_ms = LONG_MS,
		.put_timeout_ms = LONG_MS,
	};
	char err[256];

	assert_int_equal(cfs_pool_create(64 * MIB, &pool), 0);
	s.pool = disk_conf.pool = pool;
	assert_int_equal(cfs_store_create(&s, &store), 0);
	if (cfs_disk_create(&disk_conf, &disk, err) < 0)
		fail_msg("%s", err);
	assert_int_equal(cfs_store_add_tier(store, &cfs_disk_tier, disk), 0);
	assert_int_equal(cfs_stage_start(store, disk, &conf), 0);
}

static void close_store(void)
{
	struct cfs_pool_stats st;
	int i;

	cfs_store_destroy(store);
	cfs_disk_destroy(disk);
	cfs_pool_stats(pool, &st);
	for (i = 0; i < CFS_USE_COUNT; i++)
		assert_int_equal(st.used[i], 0);
	cfs_pool_destroy(pool);
}

static int set_up(void **state)
{
	struct cfs_object_conf object = {.storage = "mem", .bucket = "stage"};
	char err[256];

	memset(&faulty, 0, sizeof(faulty));
	faulty.base.ops = &faulty_ops;
	assert_int_equal(cfs_object_open(&object, &faulty.inner, err), 0);
	snprintf(top, sizeof(top), "/tmp/cachefs-stage.XXXXXX");
	assert_non_null(mkdtemp(top));
	snprintf(cache, sizeof(cache), "%s/cache", top);
	disk_conf = (struct cfs_disk_conf){
		.dirs = cache,
		.uuid = UUID,
		.block_size = BLOCK,
		.size = 1024 * MIB,
		.verify = CFS_VERIFY_EXTEND,
		.tick_ms = 20,
		.retry_ms = 40,
	};
	conf = (struct cfs_stage_conf){.writeback = true, .max_uploads = 2, .tick_ms = 10};
	return 0;
}

static int tear_down(void **state)
{
	cfs_object_close(faulty.inner);
	nftw(top, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
	return 0;
}

static struct cfs_store_stats stats(void)
{
	struct cfs_store_stats st;

	cfs_store_stats(store, &st);
	return st;
}

#define WAIT_FOR(condition)                                                                        \
	do {                                                                                       \
		cfs_deadline_t until_ = soon();                                                    \
		while (!(condition)) {                                                             \
			assert_false(cfs_deadline_passed(until_));                                 \
			cfs_backoff(0, 1, 1, until_);                                              \
		}                                                                                  \
	} while (0)

static struct cfs_block block(uint64_t slice, uint32_t len)
{
	return (struct cfs_block){.slice = slice, .len = len};
}

static uint8_t byte_at(const struct cfs_block *b, uint32_t pos)
{
	return (uint8_t)((b->slice * 1000003 + pos / 8) * 0x9E3779B97F4A7C15ULL >> 56);
}

static int put(const struct cfs_block *b)
{
	struct cfs_segs data;
	struct cfs_page *page;
	uint32_t at, i, n;
	int r;

	cfs_segs_init(&data);
	for (at = 0; at < b->len; at += n) {
		n = CFS_MIN(CFS_PAGE_LARGE, b->len - at);
		assert_int_equal(cfs_page_get(pool, n, CFS_USE_WRITE, soon(), &page), 0);
		for (i = 0; i < n; i++)
			page->data[i] = byte_at(b, at + i);
		assert_int_equal(cfs_segs_add(&data, page, 0, n), 0);
	}
	r = cfs_store_put_sync(store, b, &data, soon());
	cfs_segs_release(&data);
	return r;
}

static int get(const struct cfs_block *b)
{
	struct cfs_segs s;
	uint8_t *bytes = malloc(b->len);
	uint32_t i;
	int r;

	cfs_segs_init(&s);
	r = cfs_store_read(store, b, 0, b->len, soon(), &s);
	if (r == 0)
		cfs_segs_copy_out(&s, 0, bytes, b->len);
	for (i = 0; i < b->len && r == 0; i++)
		r = bytes[i] == byte_at(b, i) ? 0 : -EILSEQ;
	cfs_segs_release(&s);
	free(bytes);
	return r;
}

static bool is_object(const struct cfs_block *b)
{
	struct cfs_object_info info;
	char key[CFS_BLOCK_KEY_MAX];

	cfs_store_block_key(store, b, key);
	return faulty.inner->ops->head(faulty.inner, key, &info, soon()) == 0 &&
	       info.size == b->len;
}

static void path_in(const char *tree, const struct cfs_block *b, char path[300])
{
	snprintf(path, 300, "%s/" UUID "/%s/chunks/0/%llu/%llu_0_%u", cache, tree,
		 (unsigned long long)b->slice / 1000, (unsigned long long)b->slice, b->len);
}

static bool in_tree(const char *tree, const struct cfs_block *b)
{
	char path[300];

	path_in(tree, b, path);
	return access(path, F_OK) == 0;
}

/* ---- tests ---- */

/* What was written is on disk, readable, and uploaded when that works; then nothing is left. */
static void test_staged_then_uploaded(void **state)
{
	struct cfs_block a = block(1001, BLOCK), b = block(1002, 100001);
	struct stat st;
	char path[300];

	faulty.put_error = -EIO;
	open_store();
	assert_int_equal(put(&a), 0);
	assert_int_equal(put(&b), 0);
	assert_int_equal(stats().staged_blocks, 2);
	assert_int_equal(stats().staged_bytes, BLOCK + 100001);
	assert_true(in_tree("rawstaging", &a) && in_tree("rawstaging", &b));
	/* As other clients have it: the name in raw is a link, checksums follow the data. */
	path_in("raw", &b, path);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_nlink, 2);
	assert_int_equal(st.st_size, 100001 + 4 * 4);
	assert_int_equal(st.st_mode & 07777, 0600);
	WAIT_FOR(stats().stage_upload_errors >= 3);
	assert_false(is_object(&a) || is_object(&b));
	assert_int_equal(get(&a), 0);

	faulty.put_error = 0;
	WAIT_FOR(stats().staged_blocks == 0);
	assert_true(is_object(&a) && is_object(&b));
	assert_false(in_tree("rawstaging", &a) || in_tree("rawstaging", &b));
	assert_true(in_tree("raw", &a) && in_tree("raw", &b));
	assert_int_equal(stats().stage_uploads, 2);
	assert_int_equal(stats().staged_bytes, 0);
	/* The file may go only when the object lasts. */
	assert_true(faulty.syncs >= 1);
	assert_int_equal(get(&b), 0);
	close_store();
}

/* Read from disk alone, also when the cache has dropped its name of the block. */
static void test_read_from_stage(void **state)
{
	struct cfs_block a = block(7, BLOCK), b = block(8, 4096);
	char path[300];

	conf.delay_ms = 3600000;
	open_store();
	assert_int_equal(put(&a), 0);
	assert_int_equal(put(&b), 0);
	close_store();
	open_store();
	WAIT_FOR(stats().staged_blocks == 2);
	assert_int_equal(get(&a), 0);
	cfs_store_forget(store, &a);
	cfs_store_forget(store, &b);
	path_in("raw", &a, path);
	assert_int_equal(access(path, F_OK), -1);
	assert_int_equal(get(&a), 0);
	assert_int_equal(get(&b), 0);
	assert_false(is_object(&a));
	close_store();
}

/* A mount that ends without uploading, and one without writeback after it. */
static void test_found_at_start(void **state)
{
	struct cfs_block b[5];
	char key[CFS_BLOCK_KEY_MAX];
	int i;

	conf.delay_ms = 3600000;
	open_store();
	for (i = 0; i < 5; i++) {
		char path[300];
		struct timespec times[2] = {{.tv_sec = 1700000000 + 100 * i},
					    {.tv_sec = 1700000000 + 100 * i}};

		b[i] = block((uint64_t)(77 * (i + 1) % 5 + 1), 1000);
		assert_int_equal(put(&b[i]), 0);
		path_in("rawstaging", &b[i], path);
		assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
	}
	close_store();
	assert_int_equal(faulty.n_keys, 0);

	conf = (struct cfs_stage_conf){.max_uploads = 1, .tick_ms = 10};
	open_store();
	WAIT_FOR(stats().stage_uploads == 5);
	for (i = 0; i < 5; i++) {
		cfs_store_block_key(store, &b[i], key);
		assert_string_equal(faulty.keys[i], key); /* oldest first */
		assert_true(is_object(&b[i]));
		assert_int_equal(get(&b[i]), 0);
	}
	/* Without the option blocks are not staged. */
	faulty.put_error = -EIO;
	b[0] = block(99, 1000);
	assert_int_equal(put(&b[0]), -EIO);
	assert_int_equal(stats().stage_bypassed, 0);
	close_store();
}

static void damage(const struct cfs_block *b, off_t at, off_t size)
{
	char path[300], byte;
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
	open_store();
	assert_int_equal(put(&good), 0);
	assert_int_equal(put(&flipped), 0);
	assert_int_equal(put(&torn), 0);
	assert_int_equal(put(&empty), 0);
	assert_int_equal(put(&trailer), 0);
	close_store();
	damage(&flipped, 99999, -1);
	damage(&torn, 0, 70000);
	damage(&empty, 0, 0);
	damage(&trailer, 0, 100000 + 3);

	conf.delay_ms = 0;
	open_store();
	WAIT_FOR(stats().staged_damaged == 4 && stats().staged_blocks == 0);
	assert_true(is_object(&good));
	assert_int_equal(faulty.n_keys, 1);
	assert_true(in_tree("rawstaging", &flipped) && in_tree("rawstaging", &torn));
	assert_true(get(&flipped) < 0 && get(&flipped) != -EILSEQ);
	assert_int_equal(cfs_stage_drain(store, LONG_MS), 0); /* does not wait for them */
	close_store();
}

/* Files of the other client without checksums, or with its footer. */
static void test_other_clients_files(void **state)
{
	struct cfs_block plain = block(11, 5000), tiered = block(12, 5000);
	static const uint8_t footer[] = {0x46, 0x53, 0, 4, 0x81, 0xA4, 't', 'i'};
	char path[300];
	int fd;

	conf.delay_ms = 3600000;
	open_store();
	assert_int_equal(put(&plain), 0);
	assert_int_equal(put(&tiered), 0);
	close_store();
	damage(&plain, 0, 5000);
	path_in("rawstaging", &tiered, path);
	fd = open(path, O_WRONLY | O_APPEND);
	assert_int_equal(write(fd, footer, sizeof(footer)), sizeof(footer));
	close(fd);
	conf.delay_ms = 0;
	open_store();
	WAIT_FOR(stats().stage_uploads == 2);
	assert_true(is_object(&plain) && is_object(&tiered));
	close_store();
}

/* Over the cap, and blocks that the threshold leaves out, go straight to the object store. */
static void test_cap_and_threshold(void **state)
{
	struct cfs_block a = block(1, BLOCK), b = block(2, BLOCK), c = block(3, 4096);

	conf.size = BLOCK + 4096;
	conf.delay_ms = 3600000;
	open_store();
	assert_int_equal(put(&a), 0);
	assert_int_equal(put(&b), 0);
	assert_int_equal(put(&c), 0);
	assert_false(is_object(&a) || is_object(&c));
	assert_true(is_object(&b));
	assert_int_equal(stats().stage_bypassed, 1);
	assert_int_equal(stats().staged_bytes, BLOCK + 4096);
	close_store();

	conf.size = 0;
	conf.threshold = 5000;
	open_store();
	WAIT_FOR(stats().staged_blocks == 2);
	a = block(4, 5000);
	b = block(5, 4999);
	assert_int_equal(put(&a), 0);
	assert_int_equal(put(&b), 0);
	assert_true(is_object(&a));
	assert_false(is_object(&b));
	assert_int_equal(stats().stage_bypassed, 0);
	close_store();
}

/* A disk that keeps nothing free for us: writes go on without it. */
static void test_full_disk(void **state)
{
	struct cfs_block a = block(1, 4096);

	conf.free_ratio = 2.1;
	open_store();
	assert_int_equal(put(&a), 0);
	assert_true(is_object(&a));
	assert_int_equal(stats().stage_bypassed, 1);
	close_store();
}

/* The directory is gone: no write fails for it. */
static void test_directory_gone(void **state)
{
	struct cfs_block a = block(1, 4096), b = block(2, 4096);
	cfs_deadline_t until = soon();

	conf.delay_ms = 3600000;
	open_store();
	assert_int_equal(put(&a), 0);
	/* Until nobody puts anything in it any more. */
	do {
		nftw(cache, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
	} while (access(cache, F_OK) == 0 && !cfs_deadline_passed(until));
	assert_int_equal(put(&b), 0);
	assert_int_equal(get(&b), 0);
	cfs_stage_set_mode(store, CFS_STAGE_FLUSH);
	/* It was still in memory. */
	WAIT_FOR(stats().staged_blocks == 0);
	assert_true(is_object(&a));
	close_store();
}

/* What is removed before its upload is not uploaded, and during it does not stay. */
static void test_removed(void **state)
{
	struct cfs_block a = block(1, 4096), b = block(2, 4096);

	conf.delay_ms = 3600000;
	open_store();
	assert_int_equal(put(&a), 0);
	assert_int_equal(put(&b), 0);
	assert_int_equal(cfs_store_remove_slice(store, 1, 4096, soon()), 0);
	assert_int_equal(stats().staged_blocks, 1);
	assert_false(in_tree("rawstaging", &a) || in_tree("raw", &a));
	assert_int_equal(get(&a), -ENOENT);

	faulty.hold = true;
	cfs_stage_set_mode(store, CFS_STAGE_FLUSH);
	WAIT_FOR(faulty.held);
	assert_int_equal(cfs_store_remove_slice(store, 2, 4096, soon()), 0);
	faulty.hold = false;
	WAIT_FOR(stats().staged_blocks == 0 && !is_object(&b));
	WAIT_FOR(!in_tree("rawstaging", &b) && !in_tree("raw", &b));
	assert_int_equal(faulty.n_keys, 1);
	close_store();
	assert_int_equal(faulty.n_keys, 1);
}

/* The end of a mount waits for the uploads, until it makes no sense or is told not to. */
static void test_drain(void **state)
{
	struct cfs_block a = block(1, 4096);

	conf.delay_ms = 3600000;
	open_store();
	assert_int_equal(put(&a), 0);
	faulty.put_error = -EIO;
	assert_int_equal(cfs_stage_drain(store, 100), 1);
	close_store();
	assert_true(in_tree("rawstaging", &a));

	faulty.put_error = 0;
	open_store();
	WAIT_FOR(stats().staged_blocks == 1);
	cfs_stage_set_mode(store, CFS_STAGE_LEAVE);
	assert_int_equal(cfs_stage_drain(store, LONG_MS), 1);
	assert_false(is_object(&a));
	close_store();

	open_store();
	WAIT_FOR(stats().staged_blocks == 1);
	assert_int_equal(cfs_stage_drain(store, LONG_MS), 0);
	assert_true(is_object(&a));
	close_store();
}

/* A read-only mount changes nothing but reads what is there. */
static void test_hold(void **state)
{
	struct cfs_block a = block(1, 4096);

	conf.delay_ms = 3600000;
	open_store();
	assert_int_equal(put(&a), 0);
	close_store();
	conf = (struct cfs_stage_conf){.hold = true, .tick_ms = 10};
	open_store();
	WAIT_FOR(stats().staged_blocks == 1);
	assert_int_equal(get(&a), 0);
	assert_int_equal(cfs_stage_drain(store, LONG_MS), 0);
	close_store();
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

		if (put(&b) < 0 || get(&b) < 0)
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

	open_store();
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

			if (is_object(&b) != (k % 4 != 3))
				fail_msg("slice %llu", (unsigned long long)b.slice);
		}
	}
	close_store();
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
	open_store();
	assert_int_equal(put(&a), 0);
	assert_int_equal(stats().staged_blocks, 1);
	close_store();
	assert_int_equal(faulty.n_keys, 0);
	conf.hour_from = tm.tm_hour;
	conf.hour_until = (tm.tm_hour + 2) % 24;
	open_store();
	WAIT_FOR(stats().stage_uploads == 1);
	close_store();
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)

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
		cmocka_unit_test(test_hours),
		TEST(test_wrong_hours),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
