/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When these fail a reader gets bytes that a disk has changed, a mount stops because a cache disk
 * does, the cache fills the disk, or a restart begins with an empty one.
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
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include <cachefs/disk.h>

#include "base/bytes.h"

#define MIB	 ((uint64_t)1 << 20)
#define BLOCK	 ((uint32_t)(4 * MIB))
#define SEGMENT	 CFS_DISK_SEGMENT
#define SEGMENTS (BLOCK / SEGMENT)
#define UUID	 "5ad22e7b-6d15-4b2b-8b6e-4c1ad4a9c0de"
#define LONG_MS	 20000

static cfs_deadline_t soon(void)
{
	return cfs_deadline_in(LONG_MS);
}

/* ---- fixture: a scratch directory, a store over a mem object store, the disk cache as a tier ----
 */

static char top[64], cache[128];
static struct cfs_pool *pool;
static struct cfs_object_store *objects;
static struct cfs_store *store;
static struct cfs_disk *disk;
static struct cfs_disk_conf conf;

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

static void remove_tree(const char *path)
{
	nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* Until nobody puts anything in it any more. */
static void remove_cache(void)
{
	cfs_deadline_t until = soon();

	do {
		remove_tree(cache);
	} while (access(cache, F_OK) == 0 && !cfs_deadline_passed(until));
}

static void open_disk(void)
{
	struct cfs_object_conf object = {.storage = "mem", .bucket = "disk"};
	struct cfs_store_conf s = {
		.volume = "vol",
		.block_size = BLOCK,
		.hash_prefix = conf.hash_prefix,
		.max_downloads = 4,
		.max_uploads = 4,
		.get_timeout_ms = LONG_MS,
		.put_timeout_ms = LONG_MS,
	};
	char err[256];

	assert_int_equal(cfs_object_open(&object, &objects, err), 0);
	assert_int_equal(cfs_pool_create(64 * MIB, &pool), 0);
	s.object = objects;
	s.pool = pool;
	assert_int_equal(cfs_store_create(&s, &store), 0);
	conf.pool = pool;
	if (cfs_disk_create(&conf, &disk, err) < 0)
		fail_msg("%s", err);
	assert_int_equal(cfs_store_add_tier(store, &cfs_disk_tier, disk), 0);
}

static void close_disk(void)
{
	struct cfs_pool_stats st;
	int i;

	cfs_store_destroy(store);
	cfs_disk_destroy(disk);
	cfs_pool_stats(pool, &st);
	for (i = 0; i < CFS_USE_COUNT; i++)
		assert_int_equal(st.used[i], 0);
	cfs_pool_destroy(pool);
	cfs_object_close(objects);
}

static void reopen(void)
{
	close_disk();
	open_disk();
}

static int set_up(void **state)
{
	snprintf(top, sizeof(top), "/tmp/cachefs-disk.XXXXXX");
	assert_non_null(mkdtemp(top));
	snprintf(cache, sizeof(cache), "%s/cache", top);
	conf = (struct cfs_disk_conf){
		.dirs = cache,
		.uuid = UUID,
		.block_size = BLOCK,
		.size = 1024 * MIB,
		.verify = CFS_VERIFY_EXTEND,
		.tick_ms = 20,
		.retry_ms = 40,
		.pending_max = 1024 * MIB,
	};
	return 0;
}

static int tear_down(void **state)
{
	umount2(cache, MNT_DETACH);
	remove_tree(top);
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
			if (cfs_deadline_passed(until_))                                           \
				fail_msg("not in time: %s", #condition);                           \
			cfs_backoff(0, 1, 1, until_);                                              \
		}                                                                                  \
	} while (0)

static uint8_t byte_at(const struct cfs_block *b, uint32_t pos)
{
	uint64_t h = (b->slice * 1000003 + b->index * 7919 + pos / 8) * 0x9E3779B97F4A7C15ULL;

	return (uint8_t)(h >> (56 - pos % 8 * 4));
}

static uint8_t *content(const struct cfs_block *b)
{
	uint8_t *data = malloc(b->len);
	uint32_t i;

	for (i = 0; i < b->len; i++)
		data[i] = byte_at(b, i);
	return data;
}

static void put_object(const struct cfs_block *b)
{
	uint8_t *data = content(b);
	struct iovec iov = {data, b->len};
	char key[CFS_BLOCK_KEY_MAX];

	cfs_store_block_key(store, b, key);
	assert_int_equal(objects->ops->put(objects, key, &iov, 1, soon()), 0);
	free(data);
}

/* Pages of odd sizes: a checksum must not care where they end. */
static void offer(const struct cfs_block *b)
{
	uint8_t *data = content(b);
	struct cfs_page *page;
	struct cfs_segs segs;
	uint32_t at, n;

	cfs_segs_init(&segs);
	for (at = 0; at < b->len; at += n) {
		n = CFS_MIN(CFS_PAGE_LARGE - (at % 3 ? 5 : 0), b->len - at);
		assert_int_equal(cfs_page_get(pool, CFS_PAGE_LARGE, CFS_USE_READ, soon(), &page),
				 0);
		memcpy(page->data, data + at, n);
		assert_int_equal(cfs_segs_add(&segs, page, 0, n), 0);
	}
	cfs_disk_tier.offer(disk, b, &segs);
	cfs_segs_release(&segs);
	free(data);
}

static void store_block(const struct cfs_block *b)
{
	uint64_t before = stats().disk_writes;

	offer(b);
	WAIT_FOR(stats().disk_writes == before + 1 && stats().disk_pending_bytes == 0);
}

/* -EILSEQ when the bytes are wrong. */
static ssize_t get(const struct cfs_block *b, uint32_t off, uint32_t len)
{
	uint8_t *dst = malloc(len);
	/* Two pieces, cut at an odd place. */
	uint32_t cut = len / 3, i;
	struct iovec iov[] = {{dst, cut}, {dst + cut, len - cut}};
	ssize_t n = cfs_disk_tier.get(disk, b, off, iov + !cut, 2 - !cut, false, soon());

	for (i = 0; n > 0 && i < len; i++) {
		if (dst[i] != byte_at(b, off + i))
			n = -EILSEQ;
	}
	free(dst);
	return n;
}

static int read_store(const struct cfs_block *b, uint32_t off, uint32_t len)
{
	struct cfs_segs s;
	uint32_t at = off, j;
	size_t i;
	int r;

	cfs_segs_init(&s);
	r = cfs_store_read(store, b, off, len, soon(), &s);
	if (r == 0 && s.len != len)
		r = -EILSEQ;
	for (i = 0; r == 0 && i < s.n; i++) {
		for (j = 0; j < s.v[i].len; j++) {
			if (s.v[i].page->data[s.v[i].off + j] != byte_at(b, at++))
				r = -EILSEQ;
		}
	}
	cfs_segs_release(&s);
	return r;
}

static char *path_of(const struct cfs_block *b)
{
	static char path[512];
	unsigned long long s = b->slice;

	if (conf.hash_prefix)
		snprintf(path, sizeof(path), "%s/" UUID "/raw/chunks/%02X/%llu/%llu_%u_%u", cache,
			 (unsigned)(s % 256), s / 1000000, s, b->index, b->len);
	else
		snprintf(path, sizeof(path), "%s/" UUID "/raw/chunks/%llu/%llu/%llu_%u_%u", cache,
			 s / 1000000, s / 1000, s, b->index, b->len);
	return path;
}

static bool file_exists(const struct cfs_block *b)
{
	return access(path_of(b), F_OK) == 0;
}

static void flip(const struct cfs_block *b, uint32_t pos)
{
	int fd = open(path_of(b), O_RDWR);
	uint8_t c;

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &c, 1, pos), 1);
	c ^= 1 << pos % 8;
	assert_int_equal(pwrite(fd, &c, 1, pos), 1);
	close(fd);
}

/* CRC-32C bit by bit. */
static uint32_t slow_crc(const uint8_t *p, size_t len)
{
	uint32_t crc = ~0u;
	unsigned k;

	for (; len > 0; len--) {
		crc ^= *p++;
		for (k = 0; k < 8; k++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
	}
	return ~crc;
}

static uint8_t *read_file(const char *path, size_t *ret_len)
{
	int fd = open(path, O_RDONLY);
	struct stat st;
	uint8_t *data;

	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &st), 0);
	data = malloc((size_t)st.st_size + 1);
	assert_int_equal(read(fd, data, (size_t)st.st_size), st.st_size);
	close(fd);
	*ret_len = (size_t)st.st_size;
	return data;
}

/* ---- the format ---- */

/* Byte for byte what volume-format section 8 says, or no other client can use the directory. */
static void file_layout(void **state)
{
	struct cfs_block v[] = {
		{.slice = 1234567, .index = 3, .len = 102400},
		{.slice = 7, .index = 0, .len = BLOCK},
		{.slice = 8, .index = 0, .len = 1},
	};
	struct stat st;
	uint8_t *data, *want;
	size_t i, len, k, n;

	for (conf.hash_prefix = false;; conf.hash_prefix = true) {
		open_disk();
		for (i = 0; i < CFS_ARRAY_SIZE(v); i++) {
			store_block(&v[i]);
			data = read_file(path_of(&v[i]), &len);
			want = content(&v[i]);
			n = (v[i].len + SEGMENT - 1) / SEGMENT;
			assert_int_equal(len, v[i].len + 4 * n);
			assert_memory_equal(data, want, v[i].len);
			for (k = 0; k < n; k++) {
				size_t piece = CFS_MIN(SEGMENT, v[i].len - k * SEGMENT);

				assert_int_equal(cfs_get_be32(data + v[i].len + 4 * k),
						 slow_crc(want + k * SEGMENT, piece));
			}
			assert_int_equal(stat(path_of(&v[i]), &st), 0);
			assert_int_equal(st.st_mode, S_IFREG | 0600);
			free(data);
			free(want);
		}
		close_disk();
		if (conf.hash_prefix)
			break;
	}
}

/* A file that another client wrote, with the checksum that it was seen to write. */
static void file_of_another_client(void **state)
{
	static const char text[] = "sgid child\n\x83\x97\xb4\xe7";
	struct cfs_block b = {.slice = 42, .index = 0, .len = 11};
	struct cfs_disk_pin pin;
	char dir[256], buf[11];
	struct iovec iov = {buf, sizeof(buf)};
	int fd;

	open_disk();
	snprintf(dir, sizeof(dir), "%s/" UUID "/raw/chunks", cache);
	mkdir(dir, 0755);
	strncat(dir, "/0", 3);
	mkdir(dir, 0755);
	strncat(dir, "/0", 3);
	mkdir(dir, 0755);
	fd = open(path_of(&b), O_WRONLY | O_CREAT, 0600);
	assert_int_equal(write(fd, text, 15), 15);
	close(fd);
	/* While we run, without a scan. */
	assert_int_equal(cfs_disk_tier.get(disk, &b, 0, &iov, 1, false, soon()), 11);
	assert_memory_equal(buf, text, 11);
	assert_int_equal(stats().disk_blocks, 1);
	assert_int_equal(cfs_disk_pin(disk, &b, false, &pin), 0);
	assert_int_equal(pin.n_crcs, 1);
	assert_int_equal(pin.crcs[0], 0x8397B4E7);
	cfs_disk_unpin(&pin);
	close_disk();
}

/* ---- verification ---- */

/* One flipped bit in each segment in turn, and in each checksum: never seen, dropped, counted. */
static void flipped_bits(void **state)
{
	struct cfs_block b = {.slice = 3, .index = 1, .len = BLOCK - 1000};
	uint32_t i, at;

	open_disk();
	put_object(&b);
	for (i = 0; i < 2 * SEGMENTS; i++) {
		store_block(&b);
		at = CFS_MIN(i % SEGMENTS * SEGMENT + i * 251 % SEGMENT, b.len - 1);
		if (i < SEGMENTS) {
			/* The file stays open from this read. */
			assert_int_equal(get(&b, at, 1), 1);
			flip(&b, at);
		} else {
			flip(&b, b.len + i % SEGMENTS * 4 + i % 4);
		}
		if (i % 4 == 0)
			assert_int_equal(get(&b, 0, b.len), -ENOENT);
		else if (i % 4 == 1)
			assert_int_equal(get(&b, at, 1), -ENOENT);
		else if (i % 4 == 2)
			assert_int_equal(read_store(&b, at, 1), 0);
		else
			assert_int_equal(read_store(&b, 0, b.len), 0);
		assert_int_equal(stats().disk_corrupt, i + 1);
		WAIT_FOR(stats().disk_pending_bytes == 0);
		cfs_store_forget(store, &b);
		assert_false(file_exists(&b));
	}
	close_disk();
}

/* A block that was damaged is fetched from the object store and kept again. */
static void damage_is_repaired(void **state)
{
	struct cfs_block b = {.slice = 4, .len = BLOCK};

	open_disk();
	put_object(&b);
	store_block(&b);
	flip(&b, 12345);
	assert_int_equal(read_store(&b, 0, b.len), 0);
	WAIT_FOR(stats().disk_writes == 2);
	assert_int_equal(get(&b, 0, b.len), b.len);
	assert_int_equal(stats().disk_corrupt, 1);
	close_disk();
}

/* What each level promises, and does not. */
static void levels(void **state)
{
	struct cfs_block b = {.slice = 5, .len = 4 * SEGMENT};
	static const struct {
		enum cfs_disk_verify level;
		bool whole, inner, part;
	} v[] = {
		{CFS_VERIFY_NONE, false, false, false},
		{CFS_VERIFY_FULL, true, false, false},
		{CFS_VERIFY_SHRINK, true, true, false},
		{CFS_VERIFY_EXTEND, true, true, true},
	};
	uint8_t *dst = malloc(b.len);
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(v); i++) {
		struct iovec iov = {dst, 0};
		struct {
			uint32_t off, len;
			bool checked;
		} range[] = {
			{SEGMENT + 50, 100, v[i].part},
			{10, 3 * SEGMENT, v[i].inner},
			{0, b.len, v[i].whole},
			/* Other segments are not looked at. */
			{0, 100, false},
			{2 * SEGMENT, SEGMENT, false},
		};
		size_t k;

		conf.verify = CFS_VERIFY_EXTEND;
		open_disk();
		for (k = 0; k < CFS_ARRAY_SIZE(range); k++) {
			store_block(&b);
			flip(&b, SEGMENT + 100);
			close_disk();
			conf.verify = v[i].level;
			open_disk();
			iov.iov_len = range[k].len;
			assert_int_equal(
				cfs_disk_tier.get(disk, &b, range[k].off, &iov, 1, false, soon()),
				range[k].checked ? -ENOENT : (ssize_t)range[k].len);
			close_disk();
			conf.verify = CFS_VERIFY_EXTEND;
			open_disk();
			cfs_disk_tier.forget(disk, &b);
		}
		close_disk();
	}
	free(dst);
}

/* Level none writes no checksums; where they are wanted such a file is worth nothing. */
static void files_without_checksums(void **state)
{
	struct cfs_block b = {.slice = 6, .len = 70000};
	struct stat st;

	conf.verify = CFS_VERIFY_NONE;
	open_disk();
	store_block(&b);
	assert_int_equal(stat(path_of(&b), &st), 0);
	assert_int_equal(st.st_size, b.len);
	assert_int_equal(get(&b, 5, 60000), 60000);
	close_disk();
	conf.verify = CFS_VERIFY_EXTEND;
	open_disk();
	assert_int_equal(get(&b, 5, 60000), -ENOENT);
	assert_int_equal(stats().disk_corrupt, 0);
	store_block(&b);
	assert_int_equal(get(&b, 5, 60000), 60000);
	close_disk();
}

/* ---- the store above it ---- */

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
			assert_int_equal(read_store(&b, at[i], at[k] - at[i]), 0);
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
		assert_int_equal(read_store(&b, off, len), 0);
	}
	assert_int_equal(stats().memory_bytes, 0);
	assert_int_equal(stats().disk_hits, 200);
	assert_int_equal(stats().gets, 0);
	/* Read ahead: into the kernel's cache. */
	assert_true(cfs_store_prefetch(store, &b, 0, b.len, 0));
	assert_int_equal(read_store(&b, 0, CFS_MIN(b.len, (uint32_t)MIB)), 0);
	assert_int_equal(stats().memory_bytes, 0);
	close_disk();
}

/* A small read takes no 128 KiB of memory for itself, and no object request. */
static void small_reads(void **state)
{
	struct cfs_block b = {.slice = 10, .len = BLOCK}, c = {.slice = 11, .len = BLOCK};

	open_disk();
	store_block(&b);
	assert_int_equal(read_store(&b, 100 * 4096, 4096), 0);
	assert_int_equal(stats().memory_bytes, 0);
	assert_int_equal(stats().disk_hits, 1);
	assert_int_equal(stats().gets, 0);
	/* What is not there comes from the object store, once. */
	put_object(&c);
	assert_int_equal(read_store(&c, 100 * 4096, 4096), 0);
	assert_int_equal(stats().gets, 1);
	assert_int_equal(read_store(&b, 0, b.len), 0);
	assert_int_equal(stats().gets, 1);
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
		assert_int_equal(stats().disk_writes, 0);
		assert_int_equal(read_store(&b, at, CFS_PAGE_LARGE), 0);
	}
	WAIT_FOR(stats().disk_writes == 1);
	assert_int_equal(get(&b, 0, b.len), b.len);
	close_disk();
}

/* What is written is kept when it is small, or when large blocks are wanted too. */
static void uploads(void **state)
{
	struct cfs_block small = {.slice = 13, .len = 5000}, large = {.slice = 13, .len = BLOCK};
	struct cfs_segs segs;
	struct cfs_page *page;
	uint32_t at;

	open_disk();
	cfs_segs_init(&segs);
	assert_int_equal(cfs_page_get(pool, small.len, CFS_USE_WRITE, soon(), &page), 0);
	for (at = 0; at < small.len; at++)
		page->data[at] = byte_at(&small, at);
	assert_int_equal(cfs_segs_add(&segs, page, 0, small.len), 0);
	assert_int_equal(cfs_store_put_sync(store, &small, &segs, soon()), 0);
	cfs_segs_release(&segs);
	WAIT_FOR(stats().disk_writes == 1);
	assert_int_equal(get(&small, 0, small.len), small.len);

	assert_int_equal(cfs_segs_add_zeros(&segs, BLOCK), 0);
	assert_int_equal(cfs_store_put_sync(store, &large, &segs, soon()), 0);
	cfs_segs_release(&segs);
	assert_int_equal(stats().disk_pending_bytes, 0);
	assert_int_equal(stats().disk_writes, 1);
	close_disk();
}

static void partial_only(void **state)
{
	struct cfs_block small = {.slice = 14, .len = 5000}, large = {.slice = 15, .len = BLOCK};

	conf.partial_only = true;
	open_disk();
	offer(&large);
	store_block(&small);
	assert_true(file_exists(&small));
	assert_false(file_exists(&large));
	close_disk();
}

/* ---- restart ---- */

static void touch(const char *path, size_t len, time_t age_s)
{
	struct timespec t[2] = {{time(NULL) - age_s, 0}, {time(NULL) - age_s, 0}};
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)len), 0);
	assert_int_equal(futimens(fd, t), 0);
	close(fd);
}

/* What was there is found; torn and abandoned files go; what is not ours stays. */
static void restart(void **state)
{
	struct cfs_block v[] = {
		{.slice = 100, .len = BLOCK},
		{.slice = 100, .index = 1, .len = 10},
		{.slice = 5000000000ULL, .len = 70000},
	};
	struct cfs_block torn = {.slice = 101, .len = 1000};
	char path[600], foreign[600], fresh[600], lock[256];
	uint8_t *id, *id_after;
	size_t i, len;

	open_disk();
	for (i = 0; i < CFS_ARRAY_SIZE(v); i++)
		store_block(&v[i]);
	close_disk();
	snprintf(lock, sizeof(lock), "%s/" UUID "/.lock", cache);
	id = read_file(lock, &len);
	assert_int_equal(len, 36);

	touch(path_of(&torn), 999, 3600);
	snprintf(path, sizeof(path), "%s.tmp", path_of(&v[0]));
	touch(path, 5, 3600);
	snprintf(fresh, sizeof(fresh), "%s.tmp", path_of(&v[1]));
	touch(fresh, 5, 0);
	snprintf(foreign, sizeof(foreign), "%s.txt", path_of(&v[0]));
	touch(foreign, 5, 3600);

	open_disk();
	WAIT_FOR(stats().disk_scans == 1);
	assert_int_equal(stats().disk_blocks, CFS_ARRAY_SIZE(v));
	assert_int_equal(stats().disk_bytes, BLOCK + 10 + 70000 + 3 * 4096);
	for (i = 0; i < CFS_ARRAY_SIZE(v); i++)
		assert_int_equal(get(&v[i], 0, v[i].len), v[i].len);
	assert_false(file_exists(&torn));
	assert_int_equal(access(path, F_OK), -1);
	assert_int_equal(access(foreign, F_OK), 0);
	assert_int_equal(access(fresh, F_OK), 0);
	close_disk();
	id_after = read_file(lock, &len);
	assert_memory_equal(id, id_after, 36);
	free(id);
	free(id_after);
}

/* A block cut short by a crash is a miss wherever it was cut. */
static void torn_files(void **state)
{
	struct cfs_block b = {.slice = 102, .len = 100000};
	static const off_t sizes[] = {0, 1, 32768, 99999, 100000, 100001, 100015, 100017, 200000};
	size_t i;

	open_disk();
	for (i = 0; i < CFS_ARRAY_SIZE(sizes); i++) {
		store_block(&b);
		assert_int_equal(truncate(path_of(&b), sizes[i]), 0);
		assert_int_equal(get(&b, 0, b.len), -ENOENT);
		assert_false(file_exists(&b));
		/* The same under an open file. */
		store_block(&b);
		assert_int_equal(get(&b, 0, b.len), b.len);
		assert_int_equal(truncate(path_of(&b), sizes[i]), 0);
		/* Data and checksums are known already when only the trailer is cut. */
		assert_int_equal(get(&b, 0, b.len), sizes[i] < b.len ? -ENOENT : (ssize_t)b.len);
		cfs_disk_tier.forget(disk, &b);
	}
	close_disk();
}

/* ---- size ---- */

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

	conf.size = 3 * MIB;
	for (i = 0; i < CFS_ARRAY_SIZE(policies); i++) {
		conf.eviction = policies[i];
		open_disk();
		for (k = 0; k < 40; k++) {
			struct cfs_block b = {.slice = 200 + k, .len = 256 << 10};

			offer(&b);
			WAIT_FOR(stats().disk_pending_bytes == 0);
			assert_true(bytes_on_disk() <= conf.size);
			assert_true(stats().disk_bytes <= conf.size);
		}
		assert_true(bytes_on_disk() >= conf.size * 8 / 10);
		assert_int_equal(stats().disk_evictions, policies[i] == CFS_EVICT_NONE ? 0 : 29);
		close_disk();
		/* A smaller size after a restart. */
		conf.size = 1 * MIB;
		open_disk();
		if (policies[i] != CFS_EVICT_NONE)
			WAIT_FOR(stats().disk_scans == 1 && bytes_on_disk() <= conf.size);
		close_disk();
		conf.size = 3 * MIB;
		remove_tree(cache);
	}
}

static void items_are_bounded(void **state)
{
	uint32_t k;

	conf.items = 10;
	open_disk();
	for (k = 0; k < 50; k++) {
		struct cfs_block b = {.slice = 300 + k, .len = 100};

		store_block(&b);
		assert_true(stats().disk_blocks <= 10);
	}
	assert_int_equal(stats().disk_evictions, 40);
	close_disk();
}

static void old_blocks_expire(void **state)
{
	struct cfs_block b = {.slice = 310, .len = 100};

	open_disk();
	store_block(&b);
	close_disk();
	touch(path_of(&b), 104, 7200);
	conf.expire_s = 3600;
	open_disk();
	WAIT_FOR(stats().disk_expired == 1);
	assert_false(file_exists(&b));
	store_block(&b);
	WAIT_FOR(stats().disk_scans == 1);
	assert_true(file_exists(&b));
	close_disk();
}

/* A second link is another client's block that it has not uploaded: removing it frees nothing. */
static void staged_blocks_stay(void **state)
{
	struct cfs_block b = {.slice = 320, .len = 256 << 10}, c;
	char other[256];
	uint32_t k;

	conf.size = 1 * MIB;
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
	WAIT_FOR(stats().disk_writes + stats().disk_drops == 12);
	while (n > 0)
		cfs_page_unref(pages[--n]);
	close_disk();
}

static void waiting_blocks_are_bounded(void **state)
{
	struct cfs_block b;
	uint32_t k;

	conf.pending_max = 2 * BLOCK;
	open_disk();
	for (k = 0; k < 12; k++) {
		b = (struct cfs_block){.slice = 420 + k, .len = BLOCK};
		offer(&b);
		assert_true(stats().disk_pending_bytes <= conf.pending_max);
	}
	WAIT_FOR(stats().disk_writes + stats().disk_drops == 12);
	close_disk();
}

/* A block that a peer is being sent outlives its eviction. */
static void pins(void **state)
{
	struct cfs_block b = {.slice = 450, .len = 100000};
	uint8_t *want = content(&b), *data = malloc(b.len);
	struct cfs_disk_pin pin;
	uint32_t k;

	open_disk();
	assert_int_equal(cfs_disk_pin(disk, &b, false, &pin), -ENOENT);
	store_block(&b);
	assert_int_equal(cfs_disk_pin(disk, &b, true, &pin), 0);
	cfs_disk_tier.forget(disk, &b);
	assert_false(file_exists(&b));
	assert_int_equal(pin.len, b.len);
	assert_int_equal(pread(pin.fd, data, b.len, 0), b.len);
	assert_memory_equal(data, want, b.len);
	assert_int_equal(pin.n_crcs, 4);
	for (k = 0; k < 4; k++)
		assert_int_equal(pin.crcs[k], slow_crc(data + k * SEGMENT,
						       CFS_MIN(SEGMENT, b.len - k * SEGMENT)));
	cfs_disk_unpin(&pin);
	assert_int_equal(cfs_disk_pin(disk, &b, false, &pin), -ENOENT);
	free(want);
	free(data);
	close_disk();
}

/* ---- failing directories ---- */

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
	conf.dirs = list;
	open_disk();
	assert_int_equal(stats().disk_dirs, 2);
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
	WAIT_FOR(stats().disk_dir_failures >= 1);
	for (k = 0; k < 200; k++) {
		struct cfs_block b = {.slice = 500 + k, .len = 100};

		put_object(&b);
		assert_int_equal(read_store(&b, 0, b.len), 0);
	}
	close_disk();
}

static void bad_settings(void **state)
{
	static const char *const bad[] = {"relative", "", ":", "/x:y"};
	struct cfs_disk *d;
	char err[256];
	size_t i;

	assert_int_equal(cfs_pool_create(8 * MIB, &pool), 0);
	conf.pool = pool;
	for (i = 0; i < CFS_ARRAY_SIZE(bad); i++) {
		err[0] = '\0';
		conf.dirs = bad[i];
		assert_true(cfs_disk_create(&conf, &d, err) < 0);
		assert_true(err[0]);
	}
	conf.dirs = "/nonexistent*/x";
	assert_int_equal(cfs_disk_create(&conf, &d, err), -ENOENT);
	conf.dirs = cache;
	conf.mode = 07777;
	assert_int_equal(cfs_disk_create(&conf, &d, err), -EINVAL);
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
	assert_int_equal(read_store(&b, 0, b.len), 0);
	WAIT_FOR(stats().disk_dir_failures == 1);
	WAIT_FOR(stats().disk_dirs_bad == 0);
	assert_int_equal(stats().disk_bytes, 0);
	store_block(&c);
	assert_int_equal(get(&c, 0, c.len), c.len);

	/* Only what is in it: no failure at all. */
	snprintf(raw, sizeof(raw), "%s/" UUID "/raw", cache);
	remove_tree(raw);
	WAIT_FOR(get(&c, 0, c.len) == -ENOENT);
	store_block(&c);
	assert_int_equal(get(&c, 0, c.len), c.len);
	assert_int_equal(stats().disk_dir_failures, 1);
	close_disk();
}

/* A directory that cannot be used at start is used once it can be. */
static void directory_that_comes_late(void **state)
{
	struct cfs_block b = {.slice = 610, .len = 5000};

	touch(cache, 5, 0);
	open_disk();
	assert_int_equal(stats().disk_dirs_bad, 1);
	put_object(&b);
	assert_int_equal(read_store(&b, 0, b.len), 0);
	cfs_store_forget(store, &b);
	assert_int_equal(unlink(cache), 0);
	WAIT_FOR(stats().disk_dirs_bad == 0);
	store_block(&b);
	assert_int_equal(get(&b, 0, b.len), b.len);
	close_disk();
}

static void mount_tmpfs(const char *options)
{
	mkdir(cache, 0700);
	if (mount("tmpfs", cache, "tmpfs", 0, options) < 0)
		skip();
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
		WAIT_FOR(stats().disk_pending_bytes == 0);
	}
	assert_true(stats().disk_writes >= 15);
	assert_true(stats().disk_evictions >= 8);
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
	assert_int_equal(read_store(&b, 0, b.len), 0);
	WAIT_FOR(stats().disk_dirs_bad == 1);
	assert_int_equal(stats().disk_blocks, 0);
	cfs_store_forget(store, &b);
	assert_int_equal(read_store(&b, 0, b.len), 0);
	close(fd);
	unlink(filler);
	free(filler);
	WAIT_FOR(stats().disk_dirs_bad == 0);
	store_block(&b);
	close_disk();
}

/* free-space-ratio: blocks leave before the file system is full. */
static void free_space_is_kept(void **state)
{
	struct cfs_block b;
	uint32_t k;

	mount_tmpfs("size=16m");
	conf.free_ratio = 0.5;
	open_disk();
	for (k = 0; k < 30; k++) {
		b = (struct cfs_block){.slice = 740 + k, .len = 1 << 20};
		offer(&b);
		WAIT_FOR(stats().disk_pending_bytes == 0);
		assert_true(bytes_on_disk() <= 8 * MIB);
	}
	assert_true(bytes_on_disk() >= 6 * MIB);
	assert_int_equal(stats().disk_dirs_bad, 0);
	close_disk();
}

/* The same for inodes. */
static void free_inodes_are_kept(void **state)
{
	struct cfs_block b;
	uint32_t k;

	mount_tmpfs("size=64m,nr_inodes=40");
	conf.free_ratio = 0.25;
	open_disk();
	for (k = 0; k < 60; k++) {
		b = (struct cfs_block){.slice = 780 + k, .len = 100};
		offer(&b);
		WAIT_FOR(stats().disk_pending_bytes == 0);
	}
	assert_true(stats().disk_evictions > 20);
	assert_in_range(stats().disk_blocks, 15, 30);
	assert_int_equal(stats().disk_dirs_bad, 0);
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
	assert_int_equal(read_store(&c, 0, c.len), 0);
	WAIT_FOR(stats().disk_dirs_bad == 1);
	assert_int_equal(get(&b, 0, b.len), b.len);
	assert_int_equal(stats().disk_dir_failures, 1);
	assert_int_equal(mount(NULL, cache, NULL, MS_REMOUNT, NULL), 0);
	WAIT_FOR(stats().disk_dirs_bad == 0);
	store_block(&c);
	close_disk();
}

/* ---- all at once ---- */

static _Atomic bool stop;
static _Atomic int wrong;

static void *read_all_the_time(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg;

	while (!atomic_load(&stop)) {
		struct cfs_block b = {.slice = 900 + rand_r(&seed) % 20, .len = 300000};
		uint32_t off = (uint32_t)rand_r(&seed) % b.len;
		uint32_t len = 1 + (uint32_t)rand_r(&seed) % CFS_MIN(b.len - off, 70000);

		if (read_store(&b, off, len) != 0)
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

	conf.size = 4 * MIB;
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
		assert_true(stats().disk_bytes <= conf.size);
		cfs_backoff(0, 2, 2, soon());
	}
	stop = true;
	for (k = 0; k < 4; k++)
		pthread_join(threads[k], NULL);
	assert_int_equal(wrong, 0);
	WAIT_FOR(stats().disk_dirs_bad == 0);
	close_disk();
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(file_layout),
		TEST(file_of_another_client),
		TEST(flipped_bits),
		TEST(damage_is_repaired),
		TEST(levels),
		TEST(files_without_checksums),
		TEST(ranges),
		TEST(large_reads),
		TEST(small_reads),
		TEST(parts_add_up),
		TEST(uploads),
		TEST(partial_only),
		TEST(restart),
		TEST(torn_files),
		TEST(size_is_kept),
		TEST(items_are_bounded),
		TEST(old_blocks_expire),
		TEST(staged_blocks_stay),
		TEST(waiting_blocks_give_way),
		TEST(waiting_blocks_are_bounded),
		TEST(pins),
		TEST(several_directories),
		TEST(bad_settings),
		TEST(removed_directory),
		TEST(directory_that_comes_late),
		TEST(full_file_system),
		TEST(free_space_is_kept),
		TEST(free_inodes_are_kept),
		TEST(read_only_file_system),
		TEST(under_load),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
