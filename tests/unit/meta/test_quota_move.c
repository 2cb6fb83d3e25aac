/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The usage of a tree that moves below a directory with a limit. When these fail, a rename fails
 * though its source exists, or passes a limit.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "meta/quota/quota.h"

enum { LIMITED = 10, TREE = 20, SUBDIR = 21, FILE_INO = 22, MAX_INODES = 3 };

/* The result of reading the subdirectory of the tree: 1, or an error. */
static int subdir_read;

static int get_counters(struct cfs_engine *e, const struct cfs_ctx *ctx, int64_t *ret_space,
			int64_t *ret_inodes)
{
	*ret_space = *ret_inodes = 0;
	return 0;
}

static int each_quota(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_engine_quota_fn fn,
		      void *arg)
{
	struct cfs_quota q = {
		.kind = CFS_QUOTA_DIR, .key = LIMITED, .max_space = -1, .max_inodes = MAX_INODES};

	return fn(arg, &q);
}

static int get_node(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
		    struct cfs_attr *ret)
{
	*ret = (struct cfs_attr){.type = CFS_TYPE_DIR, .parent = CFS_ROOT_INO};
	return 0;
}

/* The tree has a subdirectory, which has a file. */
static int list(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t dir, bool attrs,
		size_t limit, struct cfs_cursor *cursor, cfs_dirent_fn fn, void *arg)
{
	struct cfs_dirent d = {.name = "x", .name_len = 1};

	if (dir == SUBDIR && subdir_read < 0)
		return subdir_read;
	d.type = d.entry.attr.type = dir == TREE ? CFS_TYPE_DIR : CFS_TYPE_FILE;
	d.entry.ino = dir == TREE ? SUBDIR : FILE_INO;
	assert_int_equal(fn(arg, &d), 0);
	return 1;
}

static const struct cfs_engine_ops ops = {
	.get_counters = get_counters,
	.each_quota = each_quota,
	.getattr = get_node,
	.readdir = list,
};

static int check_move(int64_t *ret_inodes)
{
	const struct cfs_ctx ctx = {.deadline = cfs_deadline_in(10000)};
	struct cfs_engine engine = {.ops = &ops};
	struct cfs_entry entry = {.ino = TREE, .attr.type = CFS_TYPE_DIR};
	struct cfs_tree_move move = {0};
	struct cfs_quotas *q;
	int rc;

	assert_int_equal(cfs_quotas_create(&q), 0);
	cfs_quotas_attach(q, &engine);
	assert_int_equal(cfs_quotas_load(q, &ctx), 0);
	rc = cfs_quotas_check_move(q, &ctx, &entry, CFS_ROOT_INO, LIMITED, &move);
	*ret_inodes = move.inodes;
	cfs_quotas_destroy(q);
	return rc;
}

static void test_counts_the_tree(void **state)
{
	int64_t inodes;

	subdir_read = 1;
	assert_int_equal(check_move(&inodes), 0);
	assert_int_equal(inodes, 2);
}

static void test_subdirectory_removed_meanwhile(void **state)
{
	int64_t inodes;

	subdir_read = -ENOENT;
	assert_int_equal(check_move(&inodes), 0);
	assert_int_equal(inodes, 1);
}

static void test_subdirectory_cannot_be_read(void **state)
{
	int64_t inodes;

	subdir_read = -EIO;
	assert_int_equal(check_move(&inodes), -EIO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_counts_the_tree),
		cmocka_unit_test(test_subdirectory_removed_meanwhile),
		cmocka_unit_test(test_subdirectory_cannot_be_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
