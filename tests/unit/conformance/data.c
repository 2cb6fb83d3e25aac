/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunk lists. A failure means wrong bytes in files, here or when JuiceFS reads them:
 * records are compared byte for byte.
 */
#include <stdio.h>
#include <stdlib.h>

#include "conformance.h"

#define CHUNK ((uint64_t)CFS_CHUNK_SIZE)

static const char *hex(const struct cfs_slice *s, size_t n)
{
	static char text[16 * (CFS_SLICE_BYTES * 2 + 1) + 1];
	size_t i, used = 0;

	text[0] = '\0';
	for (i = 0; i < n; i++)
		used += (size_t)snprintf(
			text + used, sizeof(text) - used, "%s%08x%016llx%08x%08x%08x", i ? " " : "",
			s[i].pos, (unsigned long long)s[i].id, s[i].size, s[i].off, s[i].len);
	return text;
}

#define RECORDS(ino, indx, ...)                                                                    \
	do {                                                                                       \
		const struct cfs_slice want_[] = {__VA_ARGS__};                                    \
		assert_string_equal(records_hex(ino, indx),                                        \
				    hex(want_, sizeof(want_) / sizeof(want_[0])));                 \
	} while (0)

static int truncate_to(cfs_ino_t ino, uint64_t length, struct cfs_attr *ret)
{
	struct cfs_ctx c = as_root();
	struct cfs_attr a;

	return cfs_meta_truncate(vol.m, &c, ino, length, ret ? ret : &a);
}

static void test_commit(void **state)
{
	cfs_ino_t d = test_dir("commit"), f = make_file(d, "f");
	struct cfs_ctx t = at_time(6000, 9);
	struct cfs_slice s = {.pos = 100, .size = 50, .len = 50};
	struct cfs_attr a;
	uint64_t first;

	OK(cfs_meta_new_slice(vol.m, &t, &s.id));
	first = s.id;
	OK(commit_slice(vol.m, &t, f, 0, &s, (struct timespec){5999, 1001}, &a));
	assert_int_equal(a.length, 150);
	assert_int_equal(a.mtime.tv_sec, 5999);
	assert_int_equal(a.mtime.tv_nsec, 1001);
	assert_int_equal(a.ctime.tv_sec, 6000);
	assert_int_equal(attr_of(f).length, 150);
	assert_int_equal(attr_of(f).mtime.tv_nsec, 1001);
	s = (struct cfs_slice){.pos = 0, .size = 20, .len = 20};
	OK(cfs_meta_new_slice(vol.m, &t, &s.id));
	assert_int_equal(s.id, first + 1);
	OK(commit_slice(vol.m, &t, f, 0, &s, t.now, &a));
	assert_int_equal(a.length, 150);
	RECORDS(f, 0, {100, first, 50, 0, 50}, {0, first + 1, 20, 0, 20});
	assert_string_equal(records_hex(f, 1), "");
	write_at(f, 3 * CHUNK + 5, 1000);
	assert_int_equal(attr_of(f).length, 3 * CHUNK + 1005);
	assert_string_equal(records_hex(f, 2), "");
}

static struct cfs_attr commit_with(cfs_ino_t ino, uint64_t off, struct cfs_attr_change change)
{
	struct cfs_commit commit = {.ino = ino,
				    .indx = (uint32_t)(off >> CFS_CHUNK_BITS),
				    .slice = {.pos = off % CFS_CHUNK_SIZE, .size = 10, .len = 10},
				    .mtime = {7000, 3},
				    .attrs = &change};
	struct cfs_ctx c = at_time(8000, 4);

	OK(cfs_meta_new_slice(vol.m, &c, &commit.slice.id));
	OK(cfs_meta_commit(vol.m, &c, &commit));
	return commit.attr;
}

/* Attributes that are stored with a record: the answer has them, and so has the inode. */
static void test_commit_with_attributes(void **state)
{
	const struct cfs_attr_change all = {
		.set = CFS_SET_MODE | CFS_SET_UID | CFS_SET_GID | CFS_SET_ATIME,
		.mode = 04751,
		.uid = 11,
		.gid = 12,
		.atime = {6000, 5},
	};
	uint8_t got[CFS_ATTR_BYTES_MAX] = {0}, want[CFS_ATTR_BYTES_MAX] = {0};
	cfs_ino_t d = test_dir("commit-attrs"), f = make_file(d, "f"), two = make_file(d, "two");
	struct cfs_ctx c = as_root();
	struct cfs_attr a, before;

	(void)state;
	a = commit_with(f, 0, all);
	assert_int_equal(a.mode, 04751);
	assert_int_equal(a.uid, 11);
	assert_int_equal(a.gid, 12);
	assert_int_equal(a.atime.tv_sec, 6000);
	assert_int_equal(a.atime.tv_nsec, 5);
	assert_int_equal(a.mtime.tv_sec, 7000);
	assert_int_equal(a.ctime.tv_sec, 8000);
	assert_int_equal(a.length, 10);
	before = attr_of(f);
	assert_int_equal(cfs_attr_encode(&a, got), cfs_attr_encode(&before, want));
	assert_memory_equal(got, want, sizeof(want));
	/* one alone */
	a = commit_with(f, 10, (struct cfs_attr_change){.set = CFS_SET_GID, .gid = 13});
	assert_int_equal(a.mode, 04751);
	assert_int_equal(a.uid, 11);
	assert_int_equal(a.gid, 13);
	assert_int_equal(attr_of(f).gid, 13);
	a = commit_with(f, 10, (struct cfs_attr_change){.set = CFS_SET_MODE, .mode = 0});
	assert_int_equal(attr_of(f).mode, 0);
	assert_int_equal(attr_of(f).atime.tv_sec, 6000);
	/* a file with several names, which grows and does not */
	OK(try_link(&c, two, d, "too"));
	a = commit_with(two, CHUNK, all);
	assert_int_equal(a.mode, 04751);
	assert_int_equal(attr_of(two).uid, 11);
	a = commit_with(two, 0, (struct cfs_attr_change){.set = CFS_SET_UID, .uid = 14});
	assert_int_equal(attr_of(two).uid, 14);
	assert_int_equal(attr_of(two).mode, 04751);
	assert_int_equal(attr_of(two).length, CHUNK + 10);
}

/* Attributes and the records of the first chunk, as the two single questions answer. */
static void test_open_file(void **state)
{
	cfs_ino_t d = test_dir("open-with-records"), f = make_file(d, "f"),
		  far = make_file(d, "far");
	struct cfs_slice *recs = NULL;
	struct cfs_ctx c = as_root();
	uint8_t got[CFS_ATTR_BYTES_MAX] = {0}, want[CFS_ATTR_BYTES_MAX] = {0};
	struct cfs_attr a, stored;
	uint64_t first, second;
	ssize_t n;

	(void)state;
	OK(cfs_meta_open_file(vol.m, &c, f, &a, &recs, &n));
	assert_int_equal(n, 0);
	first = write_at(f, 0, 100);
	second = write_at(f, 50, 100);
	stored = attr_of(f);
	OK(cfs_meta_open_file(vol.m, &c, f, &a, &recs, &n));
	assert_int_equal(cfs_attr_encode(&a, got), cfs_attr_encode(&stored, want));
	assert_memory_equal(got, want, sizeof(want));
	assert_int_equal(n, 2);
	assert_int_equal(recs[0].id, first);
	assert_int_equal(recs[1].id, second);
	assert_int_equal(recs[1].pos, 50);
	free(recs);
	recs = NULL;
	write_at(far, CHUNK, 7);
	OK(cfs_meta_open_file(vol.m, &c, far, &a, &recs, &n));
	assert_int_equal(n, 0);
	assert_int_equal(a.length, CHUNK + 7);
	OK(cfs_meta_open_file(vol.m, &c, d, &a, &recs, &n));
	assert_int_equal(a.type, CFS_TYPE_DIR);
	assert_int_equal(n, 0);
	assert_int_equal(cfs_meta_open_file(vol.m, &c, 1ULL << 40, &a, &recs, &n), -ENOENT);
}

static void test_commit_errors(void **state)
{
	cfs_ino_t d = test_dir("commit-errors"), f = make_file(d, "f");
	struct cfs_slice s = {.pos = 0, .size = 10, .len = 10}, *list = NULL;
	struct cfs_ctx c = as_root();
	struct cfs_attr a;

	OK(cfs_meta_new_slice(vol.m, &c, &s.id));
	assert_int_equal(commit_slice(vol.m, &c, 1ULL << 40, 0, &s, c.now, &a), -ENOENT);
	assert_int_equal(commit_slice(vol.m, &c, d, 0, &s, c.now, &a), -EPERM);
	s.pos = (uint32_t)CHUNK - 9;
	assert_int_equal(commit_slice(vol.m, &c, f, 0, &s, c.now, &a), -EINVAL);
	s.pos = (uint32_t)CHUNK - 10;
	assert_int_equal(commit_slice(vol.m, &c, f, (1u << 31) - 1, &s, c.now, &a), -EFBIG);
	s.pos--;
	OK(commit_slice(vol.m, &c, f, (1u << 31) - 1, &s, c.now, &a));
	assert_int_equal(a.length, CFS_FILE_MAX - 1);
	assert_int_equal(cfs_meta_read_chunk(vol.m, &c, 1ULL << 40, 0, &list), -ENOENT);
	OK(truncate_to(f, 0, NULL));
}

/* volume-format section 6, /trunc-extend */
static void test_truncate(void **state)
{
	cfs_ino_t d = test_dir("truncate"), f = make_file(d, "f");
	uint64_t id = write_at(f, 0, 307200);
	struct cfs_ctx t = at_time(6100, 1);
	struct cfs_attr a;

	OK(cfs_meta_truncate(vol.m, &t, f, 307200, &a));
	assert_int_not_equal(a.mtime.tv_sec, 6100);
	OK(cfs_meta_truncate(vol.m, &t, f, 102401, &a));
	assert_int_equal(a.length, 102401);
	assert_int_equal(a.mtime.tv_sec, 6100);
	assert_int_equal(a.ctime.tv_sec, 6100);
	OK(truncate_to(f, 204800, NULL));
	RECORDS(f, 0, {0, id, 307200, 0, 307200}, {0x19001, 0, 0, 0, 0x31fff},
		{0x19001, 0, 0, 0, 0x18fff});
	assert_int_equal(truncate_to(d, 5, NULL), -EISDIR);
	assert_int_equal(truncate_to(make(d, "fifo", CFS_TYPE_FIFO), 5, NULL), -EINVAL);
	assert_int_equal(truncate_to(1ULL << 40, 5, NULL), -ENOENT);
	assert_int_equal(truncate_to(f, CFS_FILE_MAX, NULL), -EFBIG);
}

static void test_truncate_chunks(void **state)
{
	cfs_ino_t d = test_dir("truncate-chunks"), f = make_file(d, "f");
	uint64_t a = write_at(f, 0, 100), b = write_at(f, 2 * CHUNK, 100);

	write_at(f, 5 * CHUNK, 10);
	OK(truncate_to(f, 50, NULL));
	RECORDS(f, 0, {0, a, 100, 0, 100}, {50, 0, 0, 0, (uint32_t)CHUNK - 50});
	assert_string_equal(records_hex(f, 1), "");
	RECORDS(f, 2, {0, b, 100, 0, 100}, {0, 0, 0, 0, (uint32_t)CHUNK});
	assert_string_equal(records_hex(f, 3), "");
	OK(truncate_to(f, 3 * CHUNK + 7, NULL));
	RECORDS(f, 2, {0, b, 100, 0, 100}, {0, 0, 0, 0, (uint32_t)CHUNK},
		{0, 0, 0, 0, (uint32_t)CHUNK});
	RECORDS(f, 3, {0, 0, 0, 0, 7});
}

/* Sparse files of any size cost nothing to cut. */
static void test_truncate_huge(void **state)
{
	cfs_ino_t d = test_dir("truncate-huge"), f = make_file(d, "f");
	cfs_deadline_t end = cfs_deadline_in(5000);

	OK(truncate_to(f, CFS_FILE_MAX - 1, NULL));
	OK(truncate_to(f, 1, NULL));
	assert_false(cfs_deadline_passed(end));
}

static void test_fallocate(void **state)
{
	cfs_ino_t d = test_dir("fallocate"), f = make_file(d, "f");
	const unsigned keep = CFS_FALLOC_KEEP_SIZE, punch = CFS_FALLOC_PUNCH_HOLE;
	uint64_t id = write_at(f, 0, 1000);
	struct cfs_ctx c = as_root();
	struct cfs_attr a;

	OK(cfs_meta_fallocate(vol.m, &c, f, 0, 500, 1000, &a));
	assert_int_equal(a.length, 1500);
	OK(cfs_meta_fallocate(vol.m, &c, f, keep, 5000, 1000, &a));
	assert_int_equal(a.length, 1500);
	RECORDS(f, 0, {0, id, 1000, 0, 1000});
	OK(cfs_meta_fallocate(vol.m, &c, f, punch | keep, 100, 50, &a));
	RECORDS(f, 0, {0, id, 1000, 0, 1000}, {100, 0, 0, 0, 50});
	OK(cfs_meta_fallocate(vol.m, &c, f, CFS_FALLOC_ZERO_RANGE, 1400, 200, &a));
	assert_int_equal(a.length, 1600);
	OK(cfs_meta_fallocate(vol.m, &c, f, punch | keep, 1550, CHUNK, &a));
	assert_int_equal(a.length, 1600);
	RECORDS(f, 0, {0, id, 1000, 0, 1000}, {100, 0, 0, 0, 50}, {1400, 0, 0, 0, 100},
		{1550, 0, 0, 0, 50});
	assert_int_equal(cfs_meta_fallocate(vol.m, &c, f, punch, 0, 5, &a), -EINVAL);
	assert_int_equal(cfs_meta_fallocate(vol.m, &c, f, 0, 0, 0, &a), -EINVAL);
	assert_int_equal(cfs_meta_fallocate(vol.m, &c, f, 0x08, 0, 5, &a), -EOPNOTSUPP);
	assert_int_equal(cfs_meta_fallocate(vol.m, &c, f, 0, CFS_FILE_MAX - 5, 5, &a), -EFBIG);
	assert_int_equal(cfs_meta_fallocate(vol.m, &c, d, 0, 0, 5, &a), -EISDIR);
}

static int copy(cfs_ino_t src, uint64_t src_off, cfs_ino_t dst, uint64_t dst_off, uint64_t len,
		uint64_t *ret)
{
	struct cfs_copy_range req = {src, dst, src_off, dst_off, len};
	struct cfs_ctx c = as_root();
	struct cfs_attr a;

	return cfs_meta_copy_range(vol.m, &c, &req, ret, &a);
}

/* volume-format section 6, /cfr */
static void test_copy_range(void **state)
{
	cfs_ino_t d = test_dir("cfr"), src = make_file(d, "src"), dst = make_file(d, "dst");
	const unsigned keep = CFS_FALLOC_KEEP_SIZE, punch = CFS_FALLOC_PUNCH_HOLE;
	uint64_t id = write_at(src, 0, 0x40000), copied = 0;
	struct cfs_ctx c = as_root();
	struct cfs_attr a;

	OK(cfs_meta_fallocate(vol.m, &c, src, punch | keep, 0x10000, 0x11170, &a));
	OK(copy(src, 30000, dst, 5000, 200000, &copied));
	assert_int_equal(copied, 200000);
	RECORDS(dst, 0, {0x1388, id, 0x40000, 0x7530, 0x8ad0}, {0x9e58, 0, 0, 0, 0x11170},
		{0x1afc8, id, 0x40000, 0x21170, 0x17100});
	assert_int_equal(attr_of(dst).length, 205000);
	/* It ends where the source ends. */
	OK(copy(src, 0x40000 - 10, dst, 0, 100, &copied));
	assert_int_equal(copied, 10);
	OK(copy(src, 0x40000, dst, 0, 100, &copied));
	assert_int_equal(copied, 0);
	assert_int_equal(copy(src, 0, src, 50, 100, &copied), -EINVAL);
	OK(copy(src, 0, src, 0x40000, 100, &copied));
	assert_int_equal(copy(src, 0, d, 0, 100, &copied), -EISDIR);
	assert_int_equal(copy(1ULL << 40, 0, dst, 0, 100, &copied), -ENOENT);
	assert_int_equal(copy(src, 0, dst, CFS_FILE_MAX - 5, 100, &copied), -EFBIG);
}

static void test_copy_chunks(void **state)
{
	cfs_ino_t d = test_dir("cfr-chunks"), src = make_file(d, "src"), dst = make_file(d, "dst");
	uint64_t id = write_at(src, CHUNK - 100, 100), id2 = write_at(src, CHUNK, 50), copied = 0;

	OK(copy(src, CHUNK - 100, dst, CHUNK - 30, 150, &copied));
	assert_int_equal(copied, 150);
	RECORDS(dst, 0, {(uint32_t)CHUNK - 30, id, 100, 0, 30});
	RECORDS(dst, 1, {0, id, 100, 30, 70}, {70, id2, 50, 0, 50});
	/* A shared slice lives until its last user is gone. */
	unlink_name(d, "src");
	wait_deletions();
	assert_false(slice_deleted(id));
	unlink_name(d, "dst");
	wait_deletions();
	assert_true(slice_deleted(id));
	assert_true(slice_deleted(id2));
}

static uint64_t chunk_round_trips(void)
{
	struct cfs_meta_stats st;

	cfs_meta_stats(vol.m, &st);
	return st.op[CFS_META_OP_read_chunk].round_trips;
}

/* Directory read-ahead opens files by what it is told here. */
static void test_heads(void **state)
{
	cfs_ino_t d = test_dir("heads"), other = test_dir("heads-other"), f = make_file(d, "f");
	cfs_ino_t empty = make_file(d, "empty"), late = make_file(d, "late"), tied, moved;
	struct cfs_head v[CFS_HEADS_MAX + 1] = {0};
	struct cfs_ctx c = as_root();
	struct cfs_attr a;
	uint64_t id, trips;
	size_t i;

	id = write_at(f, 10, 20);
	write_at(f, CHUNK, 5);
	write_at(late, CHUNK, 5);
	tied = make_file(d, "tied");
	OK(cfs_meta_link(vol.m, &c, tied, other, "tie", 3, &a));
	v[0].ino = d; /* prepares the statement */
	OK(cfs_meta_read_heads(vol.m, &c, v, 1));
	moved = make_file(d, "moved");
	v[0] = (struct cfs_head){.ino = f, .parent = d, .name = "f", .name_len = 1};
	v[1] = (struct cfs_head){.ino = 1ULL << 40, .parent = d, .name = "f", .name_len = 1};
	v[2] = (struct cfs_head){.ino = empty, .parent = d, .name = "emptx", .name_len = 5};
	v[3] = (struct cfs_head){.ino = late};
	v[4] = (struct cfs_head){.ino = tied};
	v[5] = (struct cfs_head){.ino = moved, .parent = other, .name = "moved", .name_len = 5};
	v[6] = v[0];
	trips = chunk_round_trips();
	OK(cfs_meta_read_heads(vol.m, &c, v, 7));
	assert_int_equal(chunk_round_trips(), trips + 1);
	for (i = 0; i < 7; i += 6) {
		const struct cfs_slice want = {10, id, 20, 0, 20};

		assert_int_equal(v[i].err, 0);
		assert_true(v[i].named);
		assert_int_equal(v[i].attr.length, CHUNK + 5);
		assert_int_equal(v[i].attr.parent, d);
		assert_string_equal(hex(v[i].records, v[i].n_records), hex(&want, 1));
		free(v[i].records);
	}
	assert_int_equal(v[1].err, -ENOENT);
	for (i = 2; i < 6; i++) {
		assert_int_equal(v[i].err, 0);
		assert_false(v[i].named);
		assert_int_equal(v[i].n_records, 0);
		assert_null(v[i].records);
	}
	assert_int_equal(v[3].attr.length, CHUNK + 5);
	assert_int_equal(v[4].attr.nlink, 2);
	for (i = 0; i <= CFS_HEADS_MAX; i++)
		v[i] = (struct cfs_head){.ino = i % 2 ? f : empty};
	trips = chunk_round_trips();
	OK(cfs_meta_read_heads(vol.m, &c, v, CFS_HEADS_MAX));
	assert_int_equal(chunk_round_trips(), trips + 1);
	for (i = 0; i < CFS_HEADS_MAX; i++) {
		assert_int_equal(v[i].n_records, i % 2);
		free(v[i].records);
	}
	assert_int_equal(cfs_meta_read_heads(vol.m, &c, v, CFS_HEADS_MAX + 1), -EINVAL);
	OK(cfs_meta_read_heads(vol.m, &c, v, 0));
}

static void test_two_writers(void **state)
{
	cfs_ino_t d = test_dir("two-writers"), f = make_file(d, "f");
	struct cfs_slice s = {.size = 10, .len = 10};
	uint64_t mine = write_at(f, 0, 10);
	struct cfs_ctx c = as_root();
	struct cfs_attr a;

	OK(cfs_meta_new_slice(vol.other, &c, &s.id));
	assert_int_not_equal(s.id, mine);
	assert_int_not_equal(s.id, mine + 1);
	s.pos = 10;
	OK(commit_slice(vol.other, &c, f, 0, &s, c.now, &a));
	RECORDS(f, 0, {0, mine, 10, 0, 10}, {10, s.id, 10, 0, 10});
	assert_int_equal(attr_of(f).length, 20);
}

TEST_LIST(data, T(test_commit), T(test_open_file), T(test_commit_with_attributes),
	  T(test_commit_errors), T(test_truncate), T(test_truncate_chunks), T(test_truncate_huge),
	  T(test_fallocate), T(test_copy_range), T(test_copy_chunks), T(test_heads),
	  T(test_two_writers));
