/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes of another mount between two operations of this one, which sends attributes seen
 * before (meta/engine/optimistic.h). A failure means that a caller gets, or removes, a forbidden
 * file, or that a file is lost or counted wrongly.
 */
#include "conformance.h"

/* rwx for the owner and for user 1001, nothing for others: in the kernel's form */
static const uint8_t rule[] = {
	2,    0, 0, 0,			       /* version */
	0x01, 0, 7, 0, 0xff, 0xff, 0xff, 0xff, /* user_obj */
	0x02, 0, 7, 0, 0xe9, 0x03, 0,	 0,    /* user 1001 */
	0x04, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, /* group_obj */
	0x10, 0, 7, 0, 0xff, 0xff, 0xff, 0xff, /* mask */
	0x20, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, /* other */
};

/* ---- the other mount, after this one has seen the inode ---- */

static void set_there(cfs_ino_t ino, uint32_t set, const struct cfs_attr *in)
{
	struct cfs_ctx c = as_root();
	struct cfs_attr after = attr_of(ino);

	OK(cfs_meta_setattr(vol.other, &c, ino, set, in, &after));
}

static void chmod_there(cfs_ino_t ino, uint16_t mode)
{
	set_there(ino, CFS_SET_MODE, &(struct cfs_attr){.mode = mode});
}

static void set_flags_there(cfs_ino_t ino, uint8_t flags)
{
	set_there(ino, CFS_SET_FLAGS, &(struct cfs_attr){.flags = flags});
}

static void set_rule_there(cfs_ino_t ino, const char *name)
{
	struct cfs_ctx c = as_root();

	attr_of(ino);
	OK(cfs_meta_setxattr(vol.other, &c, ino, name, rule, sizeof(rule), 0));
}

static void unlink_there(cfs_ino_t dir, const char *name)
{
	struct cfs_ctx c = as_root();
	struct cfs_removed r;

	OK(cfs_meta_unlink(vol.other, &c, dir, name, strlen(name), 0, &r));
}

static cfs_ino_t make_there(cfs_ino_t dir, const char *name)
{
	struct cfs_mknod req = {
		.parent = dir,
		.name = name,
		.name_len = strlen(name),
		.type = CFS_TYPE_FILE,
		.mode = 0644,
	};
	struct cfs_ctx c = as_root();
	struct cfs_entry e;

	OK(cfs_meta_mknod(vol.other, &c, &req, &e));
	return e.ino;
}

static void truncate_there(cfs_ino_t ino, uint64_t length)
{
	struct cfs_ctx c = as_root();
	struct cfs_attr after;

	OK(cfs_meta_truncate(vol.other, &c, ino, length, &after));
}

/* ---- this one ---- */

/* A directory in which this mount has made something just now. */
static cfs_ino_t cached_dir(const char *name)
{
	cfs_ino_t d = test_dir(name);

	make_file(d, "before");
	return d;
}

static int try_file(const struct cfs_ctx *ctx, cfs_ino_t dir, const char *name,
		    struct cfs_entry *ret)
{
	return try_make(ctx, dir, name, CFS_TYPE_FILE, 0664, ret);
}

/* ---- directories ---- */

static void test_rights(void **state)
{
	cfs_ino_t d = cached_dir("optimistic-rights");
	struct cfs_ctx user = as_user(5, 6);

	OK(try_file(&user, d, "a", NULL));
	chmod_there(d, 0755);
	assert_int_equal(try_file(&user, d, "b", NULL), -EACCES);
	assert_int_equal(try_unlink(&user, d, "a"), -EACCES);
	chmod_there(d, 0777);
	OK(try_file(&user, d, "b", NULL));
	chmod_there(d, 0770);
	assert_int_equal(try_unlink(&user, d, "b"), -EACCES);
	set_there(d, CFS_SET_GID, &(struct cfs_attr){.gid = 6});
	OK(try_file(&user, d, "c", NULL));
	OK(try_unlink(&user, d, "b"));
	set_there(d, CFS_SET_UID | CFS_SET_MODE, &(struct cfs_attr){.uid = 5, .mode = 0470});
	assert_int_equal(try_file(&user, d, "d", NULL), -EACCES);
}

static void test_flags_of_directory(void **state)
{
	cfs_ino_t d = cached_dir("optimistic-flags");
	struct cfs_ctx c = as_root();
	struct cfs_entry e = {0};

	for (int trash = 0; trash < 2; trash++) {
		if (trash)
			change_setting(trash_on);
		make_file(d, "a");
		set_flags_there(d, CFS_FLAG_APPEND);
		assert_int_equal(try_unlink(&c, d, "a"), -EPERM);
		set_flags_there(d, CFS_FLAG_IMMUTABLE);
		assert_int_equal(try_file(&c, d, "b", NULL), -EPERM);
		assert_int_equal(try_unlink(&c, d, "a"), -EPERM);
		set_flags_there(d, CFS_FLAG_SKIP_TRASH);
		OK(try_file(&c, d, "b", &e));
		assert_int_equal(e.attr.flags, CFS_FLAG_SKIP_TRASH);
		assert_int_equal(attr_of(e.ino).flags, CFS_FLAG_SKIP_TRASH);
		set_flags_there(d, 0);
		OK(try_unlink(&c, d, "a"));
		OK(try_unlink(&c, d, "b"));
	}
}

static void test_inherited(void **state)
{
	cfs_ino_t d = cached_dir("optimistic-inherited");
	struct cfs_ctx c = as_root(), named = as_user(1001, 1), user = as_user(3, 3);
	struct cfs_entry e = {0};

	set_there(d, CFS_SET_MODE | CFS_SET_GID, &(struct cfs_attr){.mode = 02777, .gid = 77});
	OK(try_file(&c, d, "a", &e));
	assert_int_equal(attr_of(e.ino).gid, 77);
	set_there(d, CFS_SET_GID, &(struct cfs_attr){.gid = 78});
	assert_int_equal(attr_of(make(d, "s", CFS_TYPE_SYMLINK)).gid, 78);
	set_rule_there(d, "system.posix_acl_access");
	assert_int_equal(try_file(&user, d, "b", NULL), -EACCES);
	OK(try_file(&named, d, "b", NULL));
	assert_int_equal(try_unlink(&user, d, "a"), -EACCES);
	OK(try_unlink(&named, d, "a"));
	set_rule_there(d, "system.posix_acl_default");
	for (int i = 0; i < 2; i++) {
		OK(try_file(&c, d, i ? "d" : "c", &e));
		assert_int_not_equal(e.attr.access_acl, 0);
		assert_int_equal(attr_of(e.ino).access_acl, e.attr.access_acl);
	}
}

static void test_directory_gone(void **state)
{
	cfs_ino_t d = test_dir("optimistic-gone"), sub = make_dir(d, "sub"), old;
	struct cfs_ctx c = as_root();
	struct cfs_removed r;

	make_file(sub, "f");
	unlink_there(sub, "f");
	OK(cfs_meta_rmdir(vol.other, &c, d, "sub", 3, 0, &r));
	assert_int_equal(try_file(&c, sub, "g", NULL), -ENOENT);
	assert_int_equal(try_unlink(&c, sub, "f"), -ENOENT);
	change_setting(trash_on);
	old = make_dir(d, "old");
	make_file(old, "f");
	unlink_there(old, "f");
	OK(cfs_meta_rmdir(vol.other, &c, d, "old", 3, 0, &r));
	assert_int_equal(r.outcome, CFS_REMOVED_TRASHED);
	assert_int_equal(try_file(&c, old, "g", NULL), -ENOENT);
}

/* ---- files ---- */

static void change_victims(cfs_ino_t d, enum cfs_removal_outcome outcome)
{
	struct cfs_ctx c = as_root(), user = as_user(5, 5);
	cfs_ino_t f = make_file(d, "linked");
	struct cfs_removed r;
	struct cfs_attr a;
	uint64_t id;

	OK(cfs_meta_link(vol.other, &c, f, d, "name", 4, &a));
	r = unlink_name(d, "linked");
	assert_int_equal(r.outcome, outcome == CFS_REMOVED_DELETED ? CFS_REMOVED_LINKED : outcome);
	assert_int_equal(attr_of(f).nlink, r.attr.nlink);
	unlink_there(d, "name");

	f = make_file(d, "longer");
	truncate_there(f, 5000);
	r = unlink_name(d, "longer");
	assert_int_equal(r.outcome, outcome);
	assert_int_equal(r.attr.length, 5000);
	f = make_file(d, "shorter");
	id = write_at(f, 0, 100);
	truncate_there(f, 0);
	r = unlink_name(d, "shorter");
	assert_int_equal(r.outcome, outcome);
	assert_int_equal(r.attr.length, 0);
	wait_deletions();
	assert_int_equal(slice_deleted(id), outcome == CFS_REMOVED_DELETED);

	make_file(d, "replaced");
	unlink_there(d, "replaced");
	f = make_there(d, "replaced");
	assert_int_equal(unlink_name(d, "replaced").ino, f);
	make_file(d, "gone");
	unlink_there(d, "gone");
	assert_int_equal(try_unlink(&c, d, "gone"), -ENOENT);

	f = make_file(d, "fixed");
	set_flags_there(f, CFS_FLAG_IMMUTABLE);
	assert_int_equal(try_unlink(&c, d, "fixed"), -EPERM);
	set_flags_there(f, 0);
	OK(try_unlink(&c, d, "fixed"));

	chmod_there(d, 01777);
	OK(try_file(&user, d, "mine", NULL));
	set_there(find(d, "mine"), CFS_SET_UID, &(struct cfs_attr){.uid = 6});
	assert_int_equal(try_unlink(&user, d, "mine"), -EACCES);
	set_there(find(d, "mine"), CFS_SET_UID, &(struct cfs_attr){.uid = 5});
	OK(try_unlink(&user, d, "mine"));
	OK(try_file(&user, d, "mode", NULL));
	chmod_there(find(d, "mode"), 0400);
	OK(try_unlink(&user, d, "mode"));
}

static void test_victim_changed(void **state)
{
	cfs_ino_t d = cached_dir("optimistic-victim");

	change_victims(d, CFS_REMOVED_DELETED);
	change_setting(trash_on);
	change_victims(d, CFS_REMOVED_TRASHED);
}

/* For every type of file: its name, attributes and data go, or all of it is in the trash. */
static void test_kinds_removed(void **state)
{
	static const uint64_t lengths[] = {0, 1, 4096, 4097, CFS_CHUNK_SIZE, CFS_CHUNK_SIZE + 1};
	cfs_ino_t d = cached_dir("optimistic-kinds"), f;
	struct cfs_ctx c = as_root();
	struct cfs_attr a;
	uint64_t id;

	for (int trash = 0; trash < 2; trash++) {
		enum cfs_removal_outcome outcome =
			trash ? CFS_REMOVED_TRASHED : CFS_REMOVED_DELETED;

		if (trash)
			change_setting(trash_on);
		for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
			f = make_file(d, "f");
			id = write_at(f, 0, 1);
			OK(cfs_meta_truncate(vol.m, &c, f, lengths[i], &a));
			OK(cfs_meta_setxattr(vol.m, &c, f, "user.x", "1", 1, 0));
			assert_int_equal(unlink_name(d, "f").outcome, outcome);
			wait_deletions();
			assert_int_equal(slice_deleted(id), !trash);
			assert_int_equal(try_getattr(f), trash ? 0 : -ENOENT);
		}
		f = make_file(d, "sparse");
		OK(cfs_meta_truncate(vol.m, &c, f, 1ULL << 40, &a));
		assert_int_equal(unlink_name(d, "sparse").outcome, outcome);
		f = make(d, "s", CFS_TYPE_SYMLINK);
		assert_int_equal(unlink_name(d, "s").outcome, outcome);
		f = make(d, "p", CFS_TYPE_FIFO);
		assert_int_equal(unlink_name(d, "p").outcome, outcome);
		f = make_file(d, "once");
		OK(try_rename(&c, d, "once", d, "twice", 0, NULL));
		assert_int_equal(unlink_name(d, "twice").ino, f);
		f = make_file(d, "first");
		OK(try_link(&c, f, d, "second"));
		unlink_name(d, "first");
		assert_int_equal(find(d, "second"), f);
		assert_int_equal(unlink_name(d, "second").outcome, outcome);
	}
	change_setting(trash_off);
	f = make_file(d, "one");
	OK(try_link(&c, f, d, "other"));
	assert_int_equal(unlink_name(d, "one").outcome, CFS_REMOVED_LINKED);
	change_setting(trash_on);
	assert_int_equal(find(d, "other"), f);
	assert_int_equal(unlink_name(d, "other").outcome, CFS_REMOVED_TRASHED);
	assert_int_equal(attr_of(f).parent, 0);
	f = make_file(d, "never");
	set_flags(f, CFS_FLAG_SKIP_TRASH);
	assert_int_equal(unlink_name(d, "never").outcome, CFS_REMOVED_DELETED);
}

static void test_opened_meanwhile(void **state)
{
	cfs_ino_t d = cached_dir("optimistic-open"), f = make_file(d, "f");
	struct cfs_ctx c = as_root();

	set_open(f, true);
	assert_int_equal(unlink_name(d, "f").outcome, CFS_REMOVED_SUSTAINED);
	assert_int_equal(attr_of(f).nlink, 0);
	set_open(f, false);
	OK(cfs_meta_close_ino(vol.m, &c, f));
	assert_int_equal(try_getattr(f), -ENOENT);
}

/* A directory without statistics does not get any by what comes and goes. */
static void test_no_statistics(void **state)
{
	cfs_ino_t d = cached_dir("optimistic-statistics");
	struct cfs_ctx c = as_root();
	struct cfs_dir_stat st;

	write_at(make_file(d, "f"), 0, 5000);
	OK(cfs_meta_clear_dir_stats(vol.other, &c));
	make_file(d, "g");
	assert_int_equal(cfs_meta_get_dir_stat(vol.m, &c, d, &st), -ENODATA);
	unlink_name(d, "f");
	assert_int_equal(cfs_meta_get_dir_stat(vol.m, &c, d, &st), -ENODATA);
	change_setting(trash_on);
	unlink_name(d, "g");
	assert_int_equal(cfs_meta_get_dir_stat(vol.m, &c, d, &st), -ENODATA);
}

TEST_LIST(optimistic, T(test_rights), T(test_flags_of_directory), T(test_inherited),
	  T(test_directory_gone), T(test_victim_changed), T(test_kinds_removed),
	  T(test_opened_meanwhile), T(test_no_statistics));
