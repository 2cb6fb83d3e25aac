/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of volume-format section 5 without a database. When these fail, permissions, times,
 * holes or locks of a file are wrong on every engine.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "meta/engine/rules.h"

#define CHUNK ((uint64_t)CFS_CHUNK_SIZE)

static const struct cfs_ctx root = {.now = {1000, 5}};

static struct cfs_attr file_attr(uint16_t mode, uint32_t uid, uint32_t gid)
{
	return (struct cfs_attr){.type = CFS_TYPE_FILE,
				 .mode = mode,
				 .uid = uid,
				 .gid = gid,
				 .nlink = 1,
				 .parent = 1};
}

static struct cfs_attr dir_attr(uint16_t mode, uint32_t uid, uint32_t gid)
{
	struct cfs_attr a = file_attr(mode, uid, gid);

	a.type = CFS_TYPE_DIR;
	a.nlink = 2;
	return a;
}

static void test_access(void **state)
{
	static const gid_t groups[] = {7, 200};
	struct cfs_ctx user = {.uid = 10, .gid = 20, .groups = groups, .n_groups = 2};
	struct cfs_attr a = file_attr(0640, 10, 30);

	assert_int_equal(cfs_rules_access(&user, &a, 6), 0);
	assert_int_equal(cfs_rules_access(&user, &a, 1), -EACCES);
	a.uid = 11;
	assert_int_equal(cfs_rules_access(&user, &a, 4), -EACCES);
	a.gid = 200;
	assert_int_equal(cfs_rules_access(&user, &a, 4), 0);
	assert_int_equal(cfs_rules_access(&user, &a, 2), -EACCES);
	/* The owner's class counts even when a later one would allow more. */
	a = file_attr(0077, 10, 20);
	assert_int_equal(cfs_rules_access(&user, &a, 4), -EACCES);
	assert_int_equal(cfs_rules_access(&root, &a, 7), 0);
	a.mode = 0666;
	assert_int_equal(cfs_rules_access(&root, &a, 1), -EACCES);
}

static void test_acl_access(void **state)
{
	struct cfs_acl_entry users[] = {{50, 7}}, groups[] = {{60, 4}, {61, 2}};
	struct cfs_acl rule = {
		.owner = 6,
		.group = 0,
		.mask = 6,
		.other = 1,
		.users = users,
		.n_users = 1,
		.groups = groups,
		.n_groups = 2,
	};
	struct cfs_attr a = file_attr(0661, 10, 20);
	struct cfs_ctx named = {.uid = 50, .gid = 1}, grouped = {.uid = 51, .gid = 61};
	struct cfs_ctx own_group = {.uid = 52, .gid = 20}, other = {.uid = 53, .gid = 1};

	assert_int_equal(cfs_acl_access(&named, &a, &rule, 6), 0);
	assert_int_equal(cfs_acl_access(&named, &a, &rule, 1), -EACCES); /* masked */
	assert_int_equal(cfs_acl_access(&grouped, &a, &rule, 2), 0);
	assert_int_equal(cfs_acl_access(&grouped, &a, &rule, 4), -EACCES);
	assert_int_equal(cfs_acl_access(&own_group, &a, &rule, 1), -EACCES);
	assert_int_equal(cfs_acl_access(&other, &a, &rule, 1), 0);
}

static void test_acl_inherit(void **state)
{
	struct cfs_acl_entry users[] = {{50, 7}};
	struct cfs_acl def = {
		.owner = 7, .group = 5, .mask = 7, .other = 5, .users = users, .n_users = 1};
	struct cfs_acl child;
	uint16_t mode;

	assert_int_equal(cfs_acl_inherit(&def, 0640, &mode, &child), 1);
	assert_int_equal(mode, 0640);
	assert_int_equal(child.group, 5);
	assert_int_equal(child.mask, 4);
	assert_int_equal(child.n_users, 1);
	cfs_acl_chmod(&child, 0751);
	assert_int_equal(child.owner << 8 | child.mask << 4 | child.other, 0x751);
	cfs_acl_release(&child);

	def = (struct cfs_acl){.owner = 7, .group = 5, .mask = CFS_ACL_UNSET, .other = 0};
	assert_int_equal(cfs_acl_inherit(&def, 02666, &mode, &child), 0);
	assert_int_equal(mode, 02640);
}

static void test_acl_pack(void **state)
{
	static const uint8_t row[] = {0, 0, 0x03, 0xe9, 0, 6, 0, 0, 0x07, 0xd2, 0, 4};
	struct cfs_acl_entry *v;
	uint8_t out[sizeof(row)];
	uint32_t n;

	assert_int_equal(cfs_acl_unpack(row, sizeof(row), &v, &n), 0);
	assert_int_equal(n, 2);
	assert_int_equal(v[0].id, 1001);
	assert_int_equal(v[1].perm, 4);
	cfs_acl_pack(v, n, out);
	assert_memory_equal(out, row, sizeof(row));
	free(v);
	assert_int_equal(cfs_acl_unpack(row, 5, &v, &n), -EINVAL);
	assert_int_equal(cfs_acl_unpack(NULL, 0, &v, &n), 0);
	assert_null(v);
}

static void test_entries(void **state)
{
	struct cfs_ctx user = {.uid = 10, .gid = 10, .check = true};
	struct cfs_attr dir = dir_attr(0777, 1, 1), victim = file_attr(0644, 2, 2);

	assert_int_equal(cfs_rules_add_entry(&user, 5, &dir), 0);
	assert_int_equal(cfs_rules_remove_entry(&user, 5, &dir, &victim), 0);
	dir.mode = 01777;
	assert_int_equal(cfs_rules_remove_entry(&user, 5, &dir, &victim), -EACCES);
	victim.uid = 10;
	assert_int_equal(cfs_rules_remove_entry(&user, 5, &dir, &victim), 0);
	victim.flags = CFS_FLAG_APPEND;
	assert_int_equal(cfs_rules_remove_entry(&root, 5, &dir, &victim), -EPERM);
	victim.flags = 0;
	dir.flags = CFS_FLAG_APPEND;
	assert_int_equal(cfs_rules_add_entry(&root, 5, &dir), 0);
	assert_int_equal(cfs_rules_remove_entry(&root, 5, &dir, &victim), -EPERM);
	dir.flags = CFS_FLAG_IMMUTABLE;
	assert_int_equal(cfs_rules_add_entry(&root, 5, &dir), -EPERM);
	dir = dir_attr(0755, 1, 1);
	assert_int_equal(cfs_rules_add_entry(&user, 5, &dir), -EACCES);
	assert_int_equal(cfs_rules_add_entry(&root, 5, &victim), -ENOTDIR);
	dir.parent = CFS_TRASH_INO + 1;
	assert_int_equal(cfs_rules_add_entry(&root, 5, &dir), -ENOENT);
	dir.mode = 0777;
	assert_int_equal(cfs_rules_remove_entry(&user, 5, &dir, &victim), -EPERM);
}

static void test_new_inode(void **state)
{
	struct cfs_ctx user = {.uid = 10, .gid = 11, .now = {77, 8}};
	struct cfs_attr parent = dir_attr(02775, 1, 99), a;
	struct cfs_mknod req = {.parent = 5, .type = CFS_TYPE_DIR, .mode = 0777, .umask = 022};

	parent.flags = CFS_FLAG_SKIP_TRASH | CFS_FLAG_APPEND;
	parent.tier = 2;
	cfs_rules_new_inode(&user, &req, &parent, &a);
	assert_int_equal(a.mode, 02755);
	assert_int_equal(a.gid, 99);
	assert_int_equal(a.nlink, 2);
	assert_int_equal(a.length, 4096);
	assert_int_equal(a.flags, CFS_FLAG_SKIP_TRASH);
	assert_int_equal(a.tier, 2);
	assert_int_equal(a.parent, 5);
	assert_int_equal(a.ctime.tv_sec, 77);
	req = (struct cfs_mknod){.type = CFS_TYPE_SYMLINK,
				 .name = "l",
				 .name_len = 1,
				 .target = "ab",
				 .target_len = 2};
	parent.mode = 0755;
	cfs_rules_new_inode(&user, &req, &parent, &a);
	assert_int_equal(a.mode, 0777);
	assert_int_equal(a.length, 2);
	assert_int_equal(a.gid, 11);
	assert_int_equal(a.nlink, 1);
	req = (struct cfs_mknod){.type = CFS_TYPE_FILE}; /* without a name, O_TMPFILE */
	cfs_rules_new_inode(&user, &req, &parent, &a);
	assert_int_equal(a.nlink, 0);
}

static uint16_t mode_after(const struct cfs_ctx *ctx, uint16_t mode, uint32_t set)
{
	struct cfs_attr a = file_attr(mode, 10, 10), in = {.uid = 11, .gid = 11, .mode = 0};

	assert_true(cfs_rules_setattr(ctx, set, &in, &a) >= 0);
	return a.mode;
}

static void test_setattr(void **state)
{
	struct cfs_ctx user = {.uid = 10, .gid = 10, .check = true, .now = {50, 0}};
	struct cfs_attr a = file_attr(0644, 10, 10), in = {.mode = 02755, .gid = 12};

	/* set-id bits do not survive a new owner, nor a write */
	assert_int_equal(mode_after(&root, 06755, CFS_SET_UID), 0755);
	assert_int_equal(mode_after(&root, 06745, CFS_SET_GID), 02745);
	assert_int_equal(mode_after(&root, 06755, CFS_SET_KILL_SUID), 0755);
	assert_int_equal(mode_after(&root, 06745, CFS_SET_KILL_SUID), 02745);
	assert_int_equal(mode_after(&root, 06745, CFS_SET_KILL_SUID | CFS_SET_KILL_SGID), 0745);

	assert_int_equal(cfs_rules_setattr(&user, CFS_SET_MODE, &in, &a), 1);
	assert_int_equal(a.mode, 02755);
	assert_int_equal(a.ctime.tv_sec, 50);
	a.gid = 77; /* the caller is not in this group */
	assert_int_equal(cfs_rules_setattr(&user, CFS_SET_MODE, &in, &a), 1);
	assert_int_equal(a.mode, 0755);
	assert_int_equal(cfs_rules_setattr(&user, CFS_SET_GID, &in, &a), -EPERM);
	a.uid = 99;
	assert_int_equal(cfs_rules_setattr(&user, CFS_SET_MODE, &in, &a), -EPERM);
	assert_int_equal(cfs_rules_setattr(&user, CFS_SET_ATIME, &in, &a), -EPERM);
	assert_int_equal(cfs_rules_setattr(&user, CFS_SET_ATIME_NOW, &in, &a), -EACCES);
	a.ctime.tv_sec = 3;
	assert_int_equal(cfs_rules_setattr(&root, CFS_SET_KILL_SUID, &in, &a), 0);
	assert_int_equal(a.ctime.tv_sec, 3);
}

static void test_setattr_flags(void **state)
{
	struct cfs_attr a = file_attr(0644, 10, 10), in = {.mode = 0600};

	a.flags = CFS_FLAG_IMMUTABLE;
	assert_int_equal(cfs_rules_setattr(&root, CFS_SET_MODE, &in, &a), -EPERM);
	assert_int_equal(cfs_rules_setattr(&root, CFS_SET_MTIME_NOW, &in, &a), -EPERM);
	assert_int_equal(cfs_rules_setattr(&root, CFS_SET_FLAGS, &in, &a), 1);
	assert_int_equal(a.flags, 0);
	a.flags = CFS_FLAG_APPEND;
	assert_int_equal(cfs_rules_setattr(&root, CFS_SET_MTIME_NOW, &in, &a), 1);
	assert_int_equal(cfs_rules_setattr(&root, CFS_SET_MTIME, &in, &a), -EPERM);
	assert_int_equal(cfs_rules_write(&root, &a, false), -EPERM);
	assert_int_equal(cfs_rules_write(&root, &a, true), 0);
	a = file_attr(0644, 10, 10);
	a.parent = CFS_TRASH_INO + 1;
	assert_int_equal(cfs_rules_setattr(&root, CFS_SET_MODE, &in, &a), -EPERM);
	/* open here when it was unlinked */
	assert_int_equal(cfs_rules_setattr(&root, CFS_SET_MODE | CFS_SET_IS_OPEN, &in, &a), 1);
}

static void test_trash_name(void **state)
{
	char out[CFS_NAME_MAX + 1], name[CFS_NAME_MAX];

	assert_int_equal(cfs_rules_trash_name(1, 61, "gone-file", 9, out), 14);
	assert_string_equal(out, "1-61-gone-file");
	memset(name, 'g', sizeof(name));
	assert_int_equal(cfs_rules_trash_name(41, 66, name, sizeof(name), out), 255);
	assert_memory_equal(out, "41-66-ggg", 9);
}

/* ---- zero records ---- */

struct zeros {
	struct cfs_zero v[8];
	size_t n;
};

static int keep_zero(void *arg, const struct cfs_zero *z)
{
	struct zeros *all = arg;

	assert_true(all->n < 8);
	all->v[all->n++] = *z;
	return 0;
}

static void expect_zero(const struct cfs_zero *z, uint32_t indx, uint32_t last, uint64_t pos,
			uint64_t len, bool only_existing)
{
	assert_int_equal(z->indx, indx);
	assert_int_equal(z->last, last);
	assert_int_equal(z->pos, pos);
	assert_int_equal(z->len, len);
	assert_int_equal(z->only_existing, only_existing);
}

/* Data cut off by a truncate must not come back when the file grows again. */
static void test_truncate_zeros(void **state)
{
	struct zeros z = {0};

	cfs_rules_truncate_zeros(5, 5, keep_zero, &z);
	assert_int_equal(z.n, 0);
	cfs_rules_truncate_zeros(307200, 102401, keep_zero, &z);
	assert_int_equal(z.n, 1);
	expect_zero(&z.v[0], 0, 0, 102401, 204799, false);
	z.n = 0;
	cfs_rules_truncate_zeros(10, 5 * CHUNK + 7, keep_zero, &z);
	assert_int_equal(z.n, 3);
	expect_zero(&z.v[0], 0, 0, 10, CHUNK - 10, false);
	expect_zero(&z.v[1], 1, 4, 0, CHUNK, true);
	expect_zero(&z.v[2], 5, 5, 0, 7, false);
	z.n = 0;
	cfs_rules_truncate_zeros(2 * CHUNK, CHUNK, keep_zero, &z);
	assert_int_equal(z.n, 1);
	expect_zero(&z.v[0], 1, 1, 0, CHUNK, false);
	z.n = 0;
	cfs_rules_truncate_zeros(0, CFS_FILE_MAX - 1, keep_zero, &z);
	assert_int_equal(z.n, 3); /* and not 2^31 */
}

static void test_hole_zeros(void **state)
{
	struct zeros z = {0};

	cfs_rules_hole_zeros(100, 50, keep_zero, &z);
	assert_int_equal(z.n, 1);
	expect_zero(&z.v[0], 0, 0, 100, 50, true);
	z.n = 0;
	cfs_rules_hole_zeros(0, 2 * CHUNK, keep_zero, &z);
	assert_int_equal(z.n, 1);
	expect_zero(&z.v[0], 0, 1, 0, CHUNK, true);
	z.n = 0;
	cfs_rules_hole_zeros(CHUNK - 1, CHUNK + 2, keep_zero, &z);
	assert_int_equal(z.n, 3);
	expect_zero(&z.v[0], 0, 0, CHUNK - 1, 1, true);
	expect_zero(&z.v[1], 1, 1, 0, CHUNK, true);
	expect_zero(&z.v[2], 2, 2, 0, 1, true);
}

/* ---- POSIX locks ---- */

#define PAGES 64

/* Applies random locks to a list and to an array of bytes: both must say the same. */
static void test_plocks_random(void **state)
{
	uint8_t bytes[PAGES];
	struct cfs_plock *list = NULL;
	ssize_t n = 0, i;
	unsigned round;

	memset(bytes, CFS_LOCK_NONE, sizeof(bytes));
	srand(7);
	for (round = 0; round < 20000; round++) {
		uint64_t a = (uint64_t)rand() % PAGES, b = (uint64_t)rand() % PAGES, k;
		struct cfs_plock l = {(uint32_t)rand() % 3, 1, a < b ? a : b, a < b ? b : a};
		struct cfs_plock *next;

		n = cfs_rules_plock_apply(list, (size_t)n, &l, &next);
		assert_true(n >= 0);
		free(list);
		list = next;
		memset(bytes + l.start, (int)l.type, l.end - l.start + 1);
		for (i = 0, k = 0; i < n; i++) {
			assert_true(list[i].start >= k && list[i].start <= list[i].end);
			for (; k < list[i].start; k++)
				assert_int_equal(bytes[k], CFS_LOCK_NONE);
			for (; k <= list[i].end; k++)
				assert_int_equal(bytes[k], list[i].type);
			if (i + 1 < n && list[i + 1].start == list[i].end + 1)
				assert_int_not_equal(list[i].type, list[i + 1].type);
		}
		for (; k < PAGES; k++)
			assert_int_equal(bytes[k], CFS_LOCK_NONE);
	}
	free(list);
}

static void test_plock_conflict(void **state)
{
	struct cfs_plock list[] = {{CFS_LOCK_READ, 1, 0, 9}, {CFS_LOCK_WRITE, 1, 20, INT64_MAX}};
	struct cfs_plock read = {CFS_LOCK_READ, 2, 5, 15}, write = {CFS_LOCK_WRITE, 2, 9, 9};
	struct cfs_plock far = {CFS_LOCK_READ, 2, INT64_MAX, INT64_MAX};
	struct cfs_plock none = {CFS_LOCK_NONE, 2, 0, INT64_MAX};

	assert_null(cfs_rules_plock_conflict(list, 2, &read));
	assert_ptr_equal(cfs_rules_plock_conflict(list, 2, &write), &list[0]);
	assert_ptr_equal(cfs_rules_plock_conflict(list, 2, &far), &list[1]);
	assert_null(cfs_rules_plock_conflict(list, 2, &none));
}

static void test_slice_bytes(void **state)
{
	static const uint8_t row[CFS_SLICE_BYTES] = {0x00, 0x10, 0x00, 0x7b, 0,	   0,	 0,    0, 0,
						     0,	   0,	 8,    0x00, 0x01, 0x18, 0x07, 0, 0,
						     0,	   0,	 0x00, 0x01, 0x18, 0x07};
	uint8_t out[CFS_SLICE_BYTES];
	struct cfs_slice s;

	cfs_slice_decode(row, &s);
	assert_int_equal(s.pos, (1 << 20) + 123);
	assert_int_equal(s.id, 8);
	assert_int_equal(s.size, 71687);
	assert_int_equal(s.off, 0);
	assert_int_equal(s.len, 71687);
	cfs_slice_encode(&s, out);
	assert_memory_equal(out, row, sizeof(row));
}

/* ---- copies by reference ---- */

enum { COPY_BYTES = 200 };

/* The bytes of a copy, each as its slice and the offset in it; slice 0: a hole. */
struct copied {
	uint64_t at; /* of the next piece */
	uint32_t offs[COPY_BYTES];
	uint64_t ids[COPY_BYTES];
	size_t n;
};

static int take_piece(void *arg, uint32_t indx, const struct cfs_slice *s)
{
	struct copied *c = arg;
	uint64_t at = ((uint64_t)indx << CFS_CHUNK_BITS) + s->pos;

	assert_true(s->len > 0 && at == c->at);
	c->at += s->len;
	for (uint32_t i = 0; i < s->len && c->n < COPY_BYTES; i++, c->n++) {
		c->ids[c->n] = s->id;
		c->offs[c->n] = s->id ? s->off + i : 0;
	}
	return 0;
}

static void random_record(struct cfs_slice *s, uint64_t id)
{
	s->pos = (uint32_t)random() % (COPY_BYTES - 20);
	s->len = (uint32_t)random() % 20;
	s->id = random() % 5 ? id : 0;
	s->size = 100;
	s->off = (uint32_t)random() % 50;
}

/* Each byte of a copy is that of the newest record, at any list, range, and place in the target. */
static void test_copy_pieces(void **state)
{
	const uint64_t targets[] = {0, CHUNK - 50, 3 * CHUNK + 7};
	struct cfs_slice v[30];

	srandom(1);
	for (int round = 0; round < 3000; round++) {
		uint32_t pos = (uint32_t)random() % COPY_BYTES, end = pos, i, k;
		struct copied got = {.at = targets[round % 3]};
		size_t n = (size_t)random() % 31;

		end += (uint32_t)random() % (COPY_BYTES + 1 - pos);
		for (i = 0; i < n; i++)
			random_record(&v[i], i + 1);
		assert_int_equal(cfs_rules_copy_pieces(v, n, pos, end, got.at, take_piece, &got),
				 0);
		assert_int_equal(got.n, end - pos);
		for (i = pos; i < end; i++) {
			for (k = (uint32_t)n; k > 0; k--)
				if (v[k - 1].pos <= i && i < v[k - 1].pos + v[k - 1].len)
					break;
			assert_int_equal(got.ids[i - pos], k ? v[k - 1].id : 0);
			if (k && v[k - 1].id)
				assert_int_equal(got.offs[i - pos],
						 v[k - 1].off + (i - v[k - 1].pos));
		}
	}
}

static int count_piece(void *arg, uint32_t indx, const struct cfs_slice *s)
{
	size_t *n = arg;

	++*n;
	return 0;
}

/* A file of 100 000 small writes that no compaction has reached: a minute, if it were quadratic. */
static void test_copy_of_a_long_list(void **state)
{
	enum { N = 100000 };
	struct cfs_slice *v = calloc(N, sizeof(*v));
	size_t n = 0;

	assert_non_null(v);
	for (uint32_t i = 0; i < N; i++)
		v[i] = (struct cfs_slice){
			.pos = (uint32_t)random() % (CFS_CHUNK_SIZE - 512),
			.id = i + 1,
			.size = 512,
			.len = 512,
		};
	assert_int_equal(cfs_rules_copy_pieces(v, N, 0, CFS_CHUNK_SIZE, 0, count_piece, &n), 0);
	assert_true(n > N / 2);
	free(v);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_access),	       cmocka_unit_test(test_acl_access),
		cmocka_unit_test(test_acl_inherit),    cmocka_unit_test(test_acl_pack),
		cmocka_unit_test(test_entries),	       cmocka_unit_test(test_new_inode),
		cmocka_unit_test(test_setattr),	       cmocka_unit_test(test_setattr_flags),
		cmocka_unit_test(test_trash_name),     cmocka_unit_test(test_truncate_zeros),
		cmocka_unit_test(test_hole_zeros),     cmocka_unit_test(test_plocks_random),
		cmocka_unit_test(test_plock_conflict), cmocka_unit_test(test_slice_bytes),
		cmocka_unit_test(test_copy_pieces),    cmocka_unit_test(test_copy_of_a_long_list),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
