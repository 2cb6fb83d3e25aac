/* SPDX-License-Identifier: Apache-2.0 */
/* Renames. A failure means that a file or a whole tree is lost or in two places. */
#include <pthread.h>
#include <stdatomic.h>

#include "conformance.h"

static void test_plain(void **state)
{
	struct cfs_ctx c = as_root();
	cfs_ino_t d = test_dir("rename"), d2 = make_dir(d, "d2"), f = make_file(d, "f");
	cfs_ino_t sub = make_dir(d, "sub");
	struct cfs_renamed r;

	OK(try_rename(&c, d, "f", d, "g", 0, &r));
	assert_int_equal(r.moved.ino, f);
	assert_int_equal(r.victim.outcome, CFS_REMOVED_NONE);
	assert_int_equal(find(d, "g"), f);
	assert_int_equal(try_lookup(d, "f"), -ENOENT);
	OK(try_rename(&c, d, "g", d2, "g", 0, &r));
	assert_int_equal(attr_of(f).parent, d2);
	assert_int_equal(attr_of(d).nlink, 4);
	assert_int_equal(attr_of(d2).nlink, 2);
	OK(try_rename(&c, d, "sub", d2, "sub", 0, &r));
	assert_int_equal(attr_of(d).nlink, 3);
	assert_int_equal(attr_of(d2).nlink, 3);
	assert_int_equal(attr_of(sub).parent, d2);
	assert_int_equal(find(sub, ".."), d2);
	OK(try_rename(&c, d2, "g", d2, "g", 0, &r));
	assert_int_equal(find(d2, "g"), f);
}

static void test_replace(void **state)
{
	struct cfs_ctx c = as_root();
	cfs_ino_t d = test_dir("replace"), a = make_file(d, "a"), b = make_file(d, "b");
	cfs_ino_t e1 = make_dir(d, "e1"), e2 = make_dir(d, "e2");
	struct cfs_renamed r;

	OK(try_rename(&c, d, "a", d, "b", 0, &r));
	assert_int_equal(r.victim.outcome, CFS_REMOVED_DELETED);
	assert_int_equal(r.victim.ino, b);
	assert_int_equal(find(d, "b"), a);
	assert_int_equal(try_getattr(b), -ENOENT);
	OK(try_rename(&c, d, "e1", d, "e2", 0, &r));
	assert_int_equal(find(d, "e2"), e1);
	assert_int_equal(try_getattr(e2), -ENOENT);
	assert_int_equal(attr_of(d).nlink, 3);
}

static void test_errors(void **state)
{
	struct cfs_ctx c = as_root();
	cfs_ino_t d = test_dir("rename-errors"), dir = make_dir(d, "dir"),
		  full = make_dir(d, "full");
	cfs_ino_t f = make_file(d, "f");

	make_file(full, "x");
	assert_int_equal(try_rename(&c, d, "none", d, "y", 0, NULL), -ENOENT);
	assert_int_equal(try_rename(&c, d, "f", d, "dir", 0, NULL), -EISDIR);
	assert_int_equal(try_rename(&c, d, "dir", d, "f", 0, NULL), -ENOTDIR);
	assert_int_equal(try_rename(&c, d, "dir", d, "full", 0, NULL), -ENOTEMPTY);
	assert_int_equal(try_rename(&c, d, "f", f, "y", 0, NULL), -ENOTDIR);
	assert_int_equal(try_rename(&c, f, "y", d, "y", 0, NULL), -ENOTDIR);
	assert_int_equal(try_rename(&c, d, "f", 1ULL << 40, "y", 0, NULL), -ENOENT);
	assert_int_equal(try_rename(&c, d, "dir", dir, "y", 0, NULL), -EINVAL);
	assert_int_equal(try_rename(&c, d, "f", d, "", 0, NULL), -EINVAL);
	assert_int_equal(try_rename(&c, d, ".", d, "y", 0, NULL), -EBUSY);
	assert_int_equal(try_rename(&c, d, "f", d, "..", 0, NULL), -EBUSY);
	assert_int_equal(try_rename(&c, d, "f", CFS_ROOT_INO, ".stats", 0, NULL), -EPERM);
	assert_int_equal(try_rename(&c, d, "f", d, "y", 1 << 2, NULL), -EOPNOTSUPP);
	assert_int_equal(try_rename(&c, d, "f", d, "y", 1 << 9, NULL), -EINVAL);
	assert_int_equal(
		try_rename(&c, d, "f", d, "y", CFS_RENAME_NOREPLACE | CFS_RENAME_EXCHANGE, NULL),
		-EINVAL);
	set_flags(f, CFS_FLAG_IMMUTABLE);
	assert_int_equal(try_rename(&c, d, "f", d, "y", 0, NULL), -EPERM);
	make_file(d, "over");
	assert_int_equal(try_rename(&c, d, "over", d, "f", 0, NULL), -EPERM);
	set_flags(f, 0);
	set_flags(d, CFS_FLAG_APPEND);
	assert_int_equal(try_rename(&c, d, "f", d, "y", 0, NULL), -EPERM);
	set_flags(d, 0);
	assert_int_equal(find(d, "f"), f);
}

static void test_noreplace(void **state)
{
	struct cfs_ctx c = as_root();
	cfs_ino_t d = test_dir("noreplace"), a = make_file(d, "a"), b = make_file(d, "b");

	assert_int_equal(try_rename(&c, d, "a", d, "b", CFS_RENAME_NOREPLACE, NULL), -EEXIST);
	OK(try_rename(&c, d, "a", d, "x", CFS_RENAME_NOREPLACE, NULL));
	assert_int_equal(find(d, "x"), a);
	assert_int_equal(find(d, "b"), b);
}

static void test_exchange(void **state)
{
	struct cfs_ctx c = as_root();
	cfs_ino_t d = test_dir("exchange"), d2 = make_dir(d, "d2"), f = make_file(d, "f");
	cfs_ino_t sub = make_dir(d2, "sub");
	struct cfs_renamed r;

	assert_int_equal(try_rename(&c, d, "f", d2, "none", CFS_RENAME_EXCHANGE, NULL), -ENOENT);
	OK(try_rename(&c, d, "f", d2, "sub", CFS_RENAME_EXCHANGE, &r));
	assert_int_equal(find(d, "f"), sub);
	assert_int_equal(find(d2, "sub"), f);
	assert_int_equal(attr_of(sub).parent, d);
	assert_int_equal(attr_of(f).parent, d2);
	assert_int_equal(attr_of(d).nlink, 4);
	assert_int_equal(attr_of(d2).nlink, 2);
	assert_int_equal(r.victim.ino, sub);
	assert_int_equal(r.victim.outcome, CFS_REMOVED_LINKED);
	assert_int_equal(try_rename(&c, d, "d2", d2, "sub", CFS_RENAME_EXCHANGE, NULL), -EINVAL);
}

/* Two names of one file: POSIX says nothing happens. */
static void test_same_inode(void **state)
{
	struct cfs_ctx c = as_root();
	cfs_ino_t d = test_dir("same-inode"), f = make_file(d, "a");

	OK(try_link(&c, f, d, "b"));
	OK(try_rename(&c, d, "a", d, "b", 0, NULL));
	assert_int_equal(find(d, "a"), f);
	assert_int_equal(find(d, "b"), f);
	assert_int_equal(attr_of(f).nlink, 2);
}

static void test_victim_linked(void **state)
{
	struct cfs_ctx c = as_root();
	cfs_ino_t d = test_dir("victim-linked"), a = make_file(d, "a"), b = make_file(d, "b");
	struct cfs_renamed r;

	OK(try_link(&c, b, d, "b2"));
	OK(try_rename(&c, d, "a", d, "b", 0, &r));
	assert_int_equal(r.victim.outcome, CFS_REMOVED_LINKED);
	assert_int_equal(r.victim.attr.nlink, 1);
	assert_int_equal(find(d, "b"), a);
	assert_int_equal(find(d, "b2"), b);
}

static void test_times(void **state)
{
	const int64_t later_s = 4102444800; /* than the directories were made */
	struct cfs_ctx t = at_time(later_s, 7);
	cfs_ino_t d = test_dir("rename-times"), d2 = make_dir(d, "d2"), f = make_file(d, "f");
	int64_t mtime_s = attr_of(f).mtime.tv_sec;

	OK(try_rename(&t, d, "f", d2, "f", 0, NULL));
	assert_int_equal(attr_of(f).ctime.tv_sec, later_s);
	assert_int_equal(attr_of(f).mtime.tv_sec, mtime_s);
	assert_int_equal(attr_of(d).mtime.tv_sec, later_s);
	assert_int_equal(attr_of(d2).ctime.tv_sec, later_s);
}

static void test_move_between_mounts(void **state)
{
	struct cfs_ctx c = as_root();
	cfs_ino_t d = test_dir("two-mounts"), f = make_file(d, "f");
	struct cfs_rename req = {.src_parent = d,
				 .dst_parent = d,
				 .src_name = "f",
				 .dst_name = "g",
				 .src_len = 1,
				 .dst_len = 1};
	struct cfs_renamed r;

	OK(cfs_meta_rename(vol.other, &c, &req, &r));
	assert_int_equal(find(d, "g"), f);
	assert_int_equal(cfs_meta_rename(vol.m, &c, &req, &r), -ENOENT);
}

/* The asking kernel has not seen another mount's move: the engine refuses. */
static void test_below_itself(void **state)
{
	struct cfs_ctx c = as_root();
	cfs_ino_t d = test_dir("rename-below"), a = make_dir(d, "a"), b = make_dir(a, "b");
	cfs_ino_t low = make_dir(b, "low"), f = make_file(low, "f"), e = make_dir(d, "e");

	assert_int_equal(try_rename(&c, d, "a", low, "x", 0, NULL), -EINVAL);
	assert_int_equal(try_rename(&c, d, "a", a, "x", 0, NULL), -EINVAL);
	assert_int_equal(try_rename(&c, d, "a", b, "low", CFS_RENAME_EXCHANGE, NULL), -EINVAL);
	assert_int_equal(try_rename(&c, b, "low", d, "a", CFS_RENAME_EXCHANGE, NULL), -EINVAL);
	assert_int_equal(try_rename(&c, d, "a", low, "f", CFS_RENAME_EXCHANGE, NULL), -EINVAL);
	assert_int_equal(find(low, "f"), f);
	OK(try_rename(&c, b, "low", e, "low", 0, NULL));
	OK(try_rename(&c, d, "a", low, "a", 0, NULL));
	assert_int_equal(find(low, "a"), a);
}

#define CROSSINGS 60

struct crossing {
	pthread_t thread;
	pthread_barrier_t *begin;
	struct cfs_meta *m;
	cfs_ino_t from, to;
	const char *name;
	_Atomic int r;
};

static void *cross(void *arg)
{
	struct crossing *x = arg;
	struct cfs_ctx c = as_root();
	struct cfs_renamed r;
	struct cfs_rename q = {
		.src_parent = x->from,
		.src_name = x->name,
		.src_len = strlen(x->name),
		.dst_parent = x->to,
		.dst_name = x->name,
		.dst_len = strlen(x->name),
	};

	pthread_barrier_wait(x->begin);
	x->r = cfs_meta_rename(x->m, &c, &q, &r);
	return NULL;
}

/* Two mounts move two directories into each other: one of them is too late. */
static void test_into_each_other(void **state)
{
	cfs_ino_t d = test_dir("rename-crossing"), l = make_dir(d, "l"), r = make_dir(d, "r");
	pthread_barrier_t begin;

	pthread_barrier_init(&begin, NULL, 2);
	for (int i = 0; i < CROSSINGS; i++) {
		/* No directory is changed by both. */
		cfs_ino_t p = make_dir(l, "p"), q = make_dir(r, "q");
		cfs_ino_t below_p = make_dir(p, "below"), below_q = make_dir(q, "below");
		struct crossing x[2] = {
			{.begin = &begin, .m = vol.m, .from = l, .to = below_q, .name = "p"},
			{.begin = &begin, .m = vol.other, .from = r, .to = below_p, .name = "q"},
		};

		for (int k = 0; k < 2; k++)
			OK(pthread_create(&x[k].thread, NULL, cross, &x[k]));
		for (int k = 0; k < 2; k++)
			OK(pthread_join(x[k].thread, NULL));
		assert_true((x[0].r == 0 && x[1].r == -EINVAL) ||
			    (x[0].r == -EINVAL && x[1].r == 0));
		rmdir_name(x[0].r ? q : p, "below");
		rmdir_name(x[0].r ? below_p : below_q, x[0].r ? "q" : "p");
		rmdir_name(x[0].r ? p : q, "below");
		rmdir_name(x[0].r ? l : r, x[0].r ? "p" : "q");
	}
	pthread_barrier_destroy(&begin);
}

TEST_LIST(rename, T(test_plain), T(test_replace), T(test_errors), T(test_noreplace),
	  T(test_exchange), T(test_same_inode), T(test_victim_linked), T(test_times),
	  T(test_move_between_mounts), T(test_below_itself), T(test_into_each_other));
