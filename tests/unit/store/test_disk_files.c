/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of the disk cache. When these fail a reader gets bytes that a disk has changed, other
 * clients cannot use the directory, or a restart begins with an empty one.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "disk_fixture.h"

#define SEGMENT	 CFS_DISK_SEGMENT
#define SEGMENTS (BLOCK / SEGMENT)

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

	for (disk_conf.hash_prefix = false;; disk_conf.hash_prefix = true) {
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
		if (disk_conf.hash_prefix)
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
	/* It tidies empty directories away. */
	WAIT_FOR(metric("disk_cache_scans_total") == 1);
	snprintf(dir, sizeof(dir), "%s/" UUID "/raw/chunks", cache);
	mkdir(dir, 0755);
	strncat(dir, "/0", 3);
	mkdir(dir, 0755);
	strncat(dir, "/0", 3);
	mkdir(dir, 0755);
	fd = open(path_of(&b), O_WRONLY | O_CREAT, 0600);
	assert_int_equal(write(fd, text, 15), 15);
	close(fd);
	/* It is found without another scan. */
	assert_int_equal(cfs_disk_tier.get(disk, &b, 0, &iov, 1, false, soon()), 11);
	assert_memory_equal(buf, text, 11);
	assert_int_equal(metric("disk_cache_blocks"), 1);
	assert_int_equal(cfs_disk_pin(disk, &b, false, &pin), 0);
	assert_int_equal(pin.n_crcs, 1);
	assert_int_equal(pin.crcs[0], 0x8397B4E7);
	cfs_disk_unpin(&pin);
	close_disk();
}

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
			assert_int_equal(read_range(&b, at, 1, soon()), 0);
		else
			assert_int_equal(read_range(&b, 0, b.len, soon()), 0);
		assert_int_equal(metric("disk_cache_corrupt_total"), i + 1);
		/* A block that was fetched again as a whole is written again, behind its reader. */
		WAIT_FOR(metric("disk_cache_writes_total") == i + 1 + (i + 1) / 4 &&
			 metric("disk_cache_pending_bytes") == 0);
		WAIT_FOR((cfs_store_forget(store, &b), !file_exists(&b)));
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
	assert_int_equal(read_range(&b, 0, b.len, soon()), 0);
	WAIT_FOR(metric("disk_cache_writes_total") == 2);
	assert_int_equal(get(&b, 0, b.len), b.len);
	assert_int_equal(metric("disk_cache_corrupt_total"), 1);
	close_disk();
}

/* The guarantees of each level, and their limits. */
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

		disk_conf.verify = CFS_VERIFY_EXTEND;
		open_disk();
		for (k = 0; k < CFS_ARRAY_SIZE(range); k++) {
			store_block(&b);
			flip(&b, SEGMENT + 100);
			close_disk();
			disk_conf.verify = v[i].level;
			open_disk();
			iov.iov_len = range[k].len;
			assert_int_equal(
				cfs_disk_tier.get(disk, &b, range[k].off, &iov, 1, false, soon()),
				range[k].checked ? -ENOENT : (ssize_t)range[k].len);
			close_disk();
			disk_conf.verify = CFS_VERIFY_EXTEND;
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

	disk_conf.verify = CFS_VERIFY_NONE;
	open_disk();
	store_block(&b);
	assert_int_equal(stat(path_of(&b), &st), 0);
	assert_int_equal(st.st_size, b.len);
	assert_int_equal(get(&b, 5, 60000), 60000);
	close_disk();
	disk_conf.verify = CFS_VERIFY_EXTEND;
	open_disk();
	assert_int_equal(get(&b, 5, 60000), -ENOENT);
	assert_int_equal(metric("disk_cache_corrupt_total"), 0);
	store_block(&b);
	assert_int_equal(get(&b, 5, 60000), 60000);
	close_disk();
}

/* Blocks are found; torn and abandoned files go; foreign files stay. */
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
	WAIT_FOR(metric("disk_cache_scans_total") == 1);
	assert_int_equal(metric("disk_cache_blocks"), CFS_ARRAY_SIZE(v));
	assert_int_equal(metric("disk_cache_bytes"), BLOCK + 10 + 70000 + 3 * 4096);
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

static void tear(bool with_checksums)
{
	struct cfs_block b = {.slice = 102, .len = 100000};
	static const off_t sizes[] = {0, 1, 32768, 99999, 100000, 100001, 100015, 100017, 200000};
	size_t i;

	disk_conf.verify = with_checksums ? CFS_VERIFY_EXTEND : CFS_VERIFY_NONE;
	open_disk();
	for (i = 0; i < CFS_ARRAY_SIZE(sizes); i++) {
		bool whole = !with_checksums && sizes[i] == b.len;

		store_block(&b);
		assert_int_equal(truncate(path_of(&b), sizes[i]), 0);
		assert_int_equal(get(&b, 0, b.len), whole ? (ssize_t)b.len : -ENOENT);
		assert_int_equal(file_exists(&b), whole);
		cfs_disk_tier.forget(disk, &b);
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

/* A block cut short by a crash is a miss wherever it was cut, with checksums or without. */
static void torn_files(void **state)
{
	tear(true);
	tear(false);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		DISK_TEST(file_layout),	 DISK_TEST(file_of_another_client),
		DISK_TEST(flipped_bits), DISK_TEST(damage_is_repaired),
		DISK_TEST(levels),	 DISK_TEST(files_without_checksums),
		DISK_TEST(restart),	 DISK_TEST(torn_files),
		DISK_TEST(pins),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
