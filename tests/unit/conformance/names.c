/* SPDX-License-Identifier: Apache-2.0 */
/* Creating, finding, linking and removing names. A failure means that a path shows the wrong file.
 */
#include "conformance.h"

static void test_kinds(void **state)
{
	cfs_ino_t d = test_dir("kinds");
	struct cfs_attr before = attr_of(d), a;
	struct cfs_ctx c = as_root();
	struct cfs_mknod dev = {
		.parent = d,
		.name = "dev",
		.name_len = 3,
		.type = CFS_TYPE_BLOCK,
		.mode = 0660,
		.rdev = 0x811,
	};
	char target[CFS_SYMLINK_MAX + 1];
	struct cfs_entry e;

	a = attr_of(make_file(d, "file"));
	assert_int_equal(a.nlink, 1);
	assert_int_equal(a.length, 0);
	assert_int_equal(a.parent, d);
	assert_int_equal(a.mode, 0644);
	a = attr_of(make_dir(d, "dir"));
	assert_int_equal(a.nlink, 2);
	assert_int_equal(a.length, 4096);
	assert_int_equal(a.parent, d);
	e.ino = make(d, "link", CFS_TYPE_SYMLINK);
	a = attr_of(e.ino);
	assert_int_equal(a.length, 6);
	assert_int_equal(a.mode, 0777);
	OK(cfs_meta_readlink(vol.m, &c, e.ino, target));
	assert_string_equal(target, "target");
	make(d, "fifo", CFS_TYPE_FIFO);
	make(d, "socket", CFS_TYPE_SOCKET);
	OK(cfs_meta_mknod(vol.m, &c, &dev, &e));
	a = attr_of(e.ino);
	assert_int_equal(a.rdev, 0x811);
	assert_int_equal(a.type, CFS_TYPE_BLOCK);
	assert_int_equal(attr_of(d).nlink, before.nlink + 1);
	assert_int_equal(find(d, "dev"), e.ino);
}

static void test_create_errors(void **state)
{
	struct cfs_ctx c = as_root(), user = as_user(5, 5);
	cfs_ino_t d = test_dir("create-errors"), f = make_file(d, "file");
	char name[CFS_NAME_MAX + 2];
	struct cfs_entry e = {0};

	assert_int_equal(try_make(&c, d, "file", CFS_TYPE_FILE, 0644, &e), -EEXIST);
	assert_int_equal(e.ino, f);
	assert_int_equal(e.attr.type, CFS_TYPE_FILE);
	assert_int_equal(try_make(&c, d, "file", CFS_TYPE_DIR, 0755, NULL), -EEXIST);
	assert_int_equal(try_make(&c, f, "x", CFS_TYPE_FILE, 0644, NULL), -ENOTDIR);
	assert_int_equal(try_make(&c, 1ULL << 40, "x", CFS_TYPE_FILE, 0644, NULL), -ENOENT);
	assert_int_equal(try_make(&c, d, "", CFS_TYPE_FILE, 0644, NULL), -EINVAL);
	assert_int_equal(try_make(&c, d, "a/b", CFS_TYPE_FILE, 0644, NULL), -EINVAL);
	assert_int_equal(try_make(&c, d, ".", CFS_TYPE_DIR, 0755, NULL), -EEXIST);
	assert_int_equal(try_make(&c, d, "..", CFS_TYPE_DIR, 0755, NULL), -EEXIST);
	assert_int_equal(try_make(&c, d, "x", 0, 0644, NULL), -EINVAL);
	assert_int_equal(try_make(&c, d, "x", 8, 0644, NULL), -EINVAL);
	memset(name, 'n', sizeof(name));
	name[CFS_NAME_MAX + 1] = '\0';
	assert_int_equal(try_make(&c, d, name, CFS_TYPE_FILE, 0644, NULL), -ENAMETOOLONG);
	name[CFS_NAME_MAX] = '\0';
	OK(try_make(&c, d, name, CFS_TYPE_FILE, 0644, NULL));
	OK(try_lookup(d, name));
	assert_int_equal(try_make(&user, CFS_ROOT_INO, ".stats", CFS_TYPE_FILE, 0644, NULL),
			 -EEXIST);
	assert_int_equal(try_make(&c, CFS_ROOT_INO, ".jfs.control", CFS_TYPE_FILE, 0644, NULL),
			 -EEXIST);
	OK(try_make(&c, d, ".stats", CFS_TYPE_FILE, 0644, NULL));
	set_flags(d, CFS_FLAG_IMMUTABLE);
	assert_int_equal(try_make(&c, d, "y", CFS_TYPE_FILE, 0644, NULL), -EPERM);
	set_flags(d, CFS_FLAG_APPEND);
	OK(try_make(&c, d, "y", CFS_TYPE_FILE, 0644, NULL));
	set_flags(d, 0);
}

static void test_create_denied(void **state)
{
	struct cfs_attr in = {.mode = 0755}, after;
	struct cfs_ctx c = as_root(), user = as_user(5, 5);
	cfs_ino_t d = test_dir("create-denied");

	OK(cfs_meta_setattr(vol.m, &c, d, CFS_SET_MODE, &in, &after));
	assert_int_equal(try_make(&user, d, "x", CFS_TYPE_FILE, 0644, NULL), -EACCES);
	assert_int_equal(try_unlink(&user, d, "x"), -ENOENT);
	make_file(d, "x");
	assert_int_equal(try_unlink(&user, d, "x"), -EACCES);
	in.mode = 0700;
	OK(cfs_meta_setattr(vol.m, &c, d, CFS_SET_MODE, &in, &after));
	{
		struct cfs_entry e;

		assert_int_equal(cfs_meta_lookup(vol.m, &user, d, "x", 1, &e), -EACCES);
	}
}

static void test_symlink_targets(void **state)
{
	cfs_ino_t d = test_dir("targets");
	char target[CFS_SYMLINK_MAX + 2], back[CFS_SYMLINK_MAX + 1];
	struct cfs_mknod req = {
		.parent = d,
		.name = "s",
		.name_len = 1,
		.type = CFS_TYPE_SYMLINK,
		.target = target,
		.target_len = CFS_SYMLINK_MAX + 1,
	};
	struct cfs_ctx c = as_root();
	struct cfs_entry e;

	memset(target, '\xff', sizeof(target));
	assert_int_equal(cfs_meta_mknod(vol.m, &c, &req, &e), -ENAMETOOLONG);
	req.target_len = 0;
	assert_int_equal(cfs_meta_mknod(vol.m, &c, &req, &e), -EINVAL);
	req.target_len = CFS_SYMLINK_MAX;
	OK(cfs_meta_mknod(vol.m, &c, &req, &e));
	OK(cfs_meta_readlink(vol.m, &c, e.ino, back));
	assert_int_equal(strlen(back), CFS_SYMLINK_MAX);
	assert_memory_equal(back, target, CFS_SYMLINK_MAX);
	assert_int_equal(cfs_meta_readlink(vol.m, &c, d, back), -EINVAL);
	assert_int_equal(cfs_meta_readlink(vol.m, &c, 1ULL << 40, back), -ENOENT);
}

/* Names are bytes: no quoting, no encoding, no folding. */
static void test_odd_names(void **state)
{
	static const char *const names[] = {
		"'; DROP TABLE jfs_node; --",
		"\"",
		"\\",
		"%s%n",
		"a b",
		" ",
		"\n",
		"\x01\x7f",
		"\xff\xfe\x80",
		"\xc3\xa9",
		"e\xcc\x81",
		"A",
		"a",
		"a ",
		"A.",
		"\xe2\x80\xae",
	};
	const size_t n = sizeof(names) / sizeof(names[0]);
	cfs_ino_t d = test_dir("odd-names"), inos[sizeof(names) / sizeof(names[0])];
	struct cfs_ctx c = as_root();
	size_t i;

	for (i = 0; i < n; i++)
		inos[i] = make_file(d, names[i]);
	for (i = 0; i < n; i++)
		assert_int_equal(find(d, names[i]), inos[i]);
	for (i = 0; i < n; i++) {
		OK(try_rename(&c, d, names[i], d, "moved", 0, NULL));
		assert_int_equal(find(d, "moved"), inos[i]);
		assert_int_equal(try_lookup(d, names[i]), -ENOENT);
		assert_int_equal(unlink_name(d, "moved").ino, inos[i]);
	}
}

static void test_lookup(void **state)
{
	cfs_ino_t d = test_dir("lookup"), sub = make_dir(d, "sub"), f = make_file(sub, "f");

	assert_int_equal(find(sub, "."), sub);
	assert_int_equal(find(sub, ".."), d);
	assert_int_equal(find(CFS_ROOT_INO, ".."), CFS_ROOT_INO);
	assert_int_equal(find(sub, "f"), f);
	assert_int_equal(try_lookup(sub, "g"), -ENOENT);
	assert_int_equal(try_lookup(f, "x"), -ENOENT);
	assert_int_equal(try_lookup(f, "."), -ENOTDIR);
	assert_int_equal(try_getattr(1ULL << 40), -ENOENT);
	/* Another mount sees it at once. */
	{
		struct cfs_ctx c = as_root();
		struct cfs_entry e;

		OK(cfs_meta_lookup(vol.other, &c, sub, "f", 1, &e));
		assert_int_equal(e.ino, f);
	}
}

static void test_unlink(void **state)
{
	struct cfs_ctx c = as_root();
	cfs_ino_t d = test_dir("unlink"), f = make_file(d, "f");
	struct cfs_removed r;

	make_dir(d, "dir");
	assert_int_equal(try_unlink(&c, d, "dir"), -EISDIR);
	assert_int_equal(try_unlink(&c, d, "none"), -ENOENT);
	assert_true(try_unlink(&c, f, "none") < 0);
	assert_int_equal(try_unlink(&c, 1ULL << 40, "none"), -ENOENT);
	assert_int_equal(try_unlink(&c, CFS_ROOT_INO, ".trash"), -EPERM);
	r = unlink_name(d, "f");
	assert_int_equal(r.outcome, CFS_REMOVED_DELETED);
	assert_int_equal(r.ino, f);
	assert_int_equal(try_lookup(d, "f"), -ENOENT);
	assert_int_equal(try_getattr(f), -ENOENT);
}

static void test_rmdir(void **state)
{
	struct cfs_ctx c = as_root();
	cfs_ino_t d = test_dir("rmdir"), sub = make_dir(d, "sub");

	make_file(sub, "f");
	make_file(d, "file");
	assert_int_equal(try_rmdir(&c, d, "sub"), -ENOTEMPTY);
	assert_int_equal(try_rmdir(&c, d, "file"), -ENOTDIR);
	assert_int_equal(try_rmdir(&c, d, "none"), -ENOENT);
	assert_int_equal(try_rmdir(&c, d, "."), -EINVAL);
	assert_int_equal(try_rmdir(&c, d, ".."), -ENOTEMPTY);
	unlink_name(sub, "f");
	assert_int_equal(attr_of(d).nlink, 3);
	assert_int_equal(rmdir_name(d, "sub").outcome, CFS_REMOVED_DELETED);
	assert_int_equal(attr_of(d).nlink, 2);
	assert_int_equal(try_getattr(sub), -ENOENT);
	assert_int_equal(try_make(&c, sub, "x", CFS_TYPE_FILE, 0644, NULL), -ENOENT);
}

static void test_links(void **state)
{
	struct cfs_ctx c = as_root();
	cfs_ino_t d = test_dir("links"), d2 = make_dir(d, "d2"), f = make_file(d, "f");
	struct cfs_removed r;
	struct cfs_attr a;

	assert_int_equal(attr_of(f).parent, d);
	OK(cfs_meta_link(vol.m, &c, f, d2, "g", 1, &a));
	assert_int_equal(a.nlink, 2);
	assert_int_equal(a.parent, 0);
	assert_int_equal(find(d2, "g"), f);
	assert_int_equal(try_link(&c, f, d, "f"), -EEXIST);
	assert_int_equal(try_link(&c, d2, d, "x"), -EPERM);
	assert_int_equal(try_link(&c, 1ULL << 40, d, "x"), -ENOENT);
	assert_int_equal(try_link(&c, f, 1ULL << 40, "x"), -ENOENT);
	assert_int_equal(try_link(&c, f, f, "x"), -ENOTDIR);
	assert_int_equal(try_link(&c, f, d, ""), -EINVAL);
	r = unlink_name(d, "f");
	assert_int_equal(r.outcome, CFS_REMOVED_LINKED);
	assert_int_equal(r.attr.nlink, 1);
	/* Once hard linked, the parent stays unknown (volume-format 5). */
	assert_int_equal(attr_of(f).parent, 0);
	OK(try_rename(&c, d2, "g", d, "h", 0, NULL));
	assert_int_equal(attr_of(f).parent, 0);
	set_flags(f, CFS_FLAG_IMMUTABLE);
	assert_int_equal(try_link(&c, f, d, "x"), -EPERM);
	assert_int_equal(try_unlink(&c, d, "h"), -EPERM);
	set_flags(f, CFS_FLAG_APPEND);
	assert_int_equal(try_link(&c, f, d, "x"), -EPERM);
	assert_int_equal(try_unlink(&c, d, "h"), -EPERM);
	set_flags(f, 0);
	assert_int_equal(unlink_name(d, "h").outcome, CFS_REMOVED_DELETED);
}

static void test_sticky(void **state)
{
	struct cfs_attr in = {.mode = 01777}, after;
	struct cfs_ctx c = as_root(), a = as_user(5, 5), b = as_user(6, 6);
	cfs_ino_t d = test_dir("sticky");

	OK(cfs_meta_setattr(vol.m, &c, d, CFS_SET_MODE, &in, &after));
	OK(try_make(&a, d, "f", CFS_TYPE_FILE, 0666, NULL));
	OK(try_make(&a, d, "dir", CFS_TYPE_DIR, 0777, NULL));
	assert_int_equal(try_unlink(&b, d, "f"), -EACCES);
	assert_int_equal(try_rmdir(&b, d, "dir"), -EACCES);
	assert_int_equal(try_rename(&b, d, "f", d, "g", 0, NULL), -EACCES);
	OK(try_make(&b, d, "h", CFS_TYPE_FILE, 0666, NULL));
	assert_int_equal(try_rename(&b, d, "h", d, "f", 0, NULL), -EACCES);
	b.check = false; /* also when the kernel checks permissions */
	assert_int_equal(try_unlink(&b, d, "f"), -EACCES);
	OK(try_unlink(&a, d, "f"));
	OK(try_unlink(&c, d, "h"));
}

static void test_setgid_dir(void **state)
{
	struct cfs_attr in = {.mode = 02777, .gid = 77}, after;
	struct cfs_ctx c = as_root(), user = as_user(5, 6);
	cfs_ino_t d = test_dir("setgid");
	struct cfs_entry e = {0};

	OK(cfs_meta_setattr(vol.m, &c, d, CFS_SET_MODE | CFS_SET_GID, &in, &after));
	OK(try_make(&user, d, "f", CFS_TYPE_FILE, 0664, &e));
	assert_int_equal(e.attr.gid, 77);
	assert_int_equal(e.attr.uid, 5);
	assert_int_equal(e.attr.mode, 0664);
	OK(try_make(&user, d, "sub", CFS_TYPE_DIR, 0755, &e));
	assert_int_equal(e.attr.gid, 77);
	assert_int_equal(e.attr.mode, 02755);
}

static void test_times(void **state)
{
	struct cfs_ctx t1 = at_time(1000, 1), t2 = at_time(2000, 123456789), t3 = at_time(3000, 3);
	struct cfs_entry e = {0};
	cfs_ino_t d;
	struct cfs_attr a;

	OK(try_make(&t1, CFS_ROOT_INO, "times", CFS_TYPE_DIR, 0777, &e));
	d = e.ino;
	OK(try_make(&t2, d, "f", CFS_TYPE_FILE, 0644, &e));
	a = attr_of(e.ino);
	assert_int_equal(a.atime.tv_sec, 2000);
	assert_int_equal(a.mtime.tv_nsec, 123456789);
	assert_int_equal(a.ctime.tv_nsec, 123456789);
	a = attr_of(d);
	assert_int_equal(a.mtime.tv_sec, 2000);
	assert_int_equal(a.mtime.tv_nsec, 123456789);
	assert_int_equal(a.ctime.tv_sec, 2000);
	assert_int_equal(a.atime.tv_sec, 1000);
	OK(try_link(&t3, e.ino, d, "g"));
	assert_int_equal(attr_of(e.ino).ctime.tv_sec, 3000);
	assert_int_equal(attr_of(e.ino).mtime.tv_sec, 2000);
	assert_int_equal(attr_of(d).mtime.tv_sec, 3000);
	t3.now.tv_sec = 4000;
	OK(try_unlink(&t3, d, "g"));
	assert_int_equal(attr_of(e.ino).ctime.tv_sec, 4000);
	assert_int_equal(attr_of(d).ctime.tv_sec, 4000);
}

static uint64_t trips(enum cfs_meta_op op)
{
	struct cfs_meta_stats s;

	cfs_meta_stats(vol.m, &s);
	return s.op[op].round_trips;
}

struct cost {
	enum cfs_meta_op op;
	uint64_t last, least;
};

static void add_trips(struct cost *c)
{
	uint64_t now = trips(c->op);

	c->least = c->least < now - c->last ? c->least : now - c->last;
	c->last = now;
}

/*
 * A lookup and a stat are one round trip each, and inode numbers come in batches. A connection that the
 * flusher of the counters left to this thread may have to prepare the statement: the least counts.
 */
static void test_round_trips(void **state)
{
	struct cost look = {CFS_META_OP_lookup, trips(CFS_META_OP_lookup), UINT64_MAX};
	struct cost get = {CFS_META_OP_getattr, trips(CFS_META_OP_getattr), UINT64_MAX};
	uint64_t ids = trips(CFS_META_OP_counter);
	cfs_ino_t d = test_dir("trips");
	int i;

	for (i = 0; i < 10; i++) {
		char name[16];

		snprintf(name, sizeof(name), "g%d", i);
		make_file(d, name);
		find(d, name);
		add_trips(&look);
		attr_of(d);
		add_trips(&get);
	}
	assert_int_equal(look.least, 1);
	assert_int_equal(get.least, 1);
	assert_true(trips(CFS_META_OP_counter) - ids < 10);
}

static int note_path(void *arg, const char *path)
{
	char **all = arg;
	char *joined;

	if (asprintf(&joined, "%s%s;", *all ? *all : "", path) < 0)
		return -ENOMEM;
	free(*all);
	*all = joined;
	return 0;
}

static void test_paths(void **state)
{
	cfs_ino_t d = test_dir("paths"), sub = make_dir(d, "sub"), f = make_file(sub, "f");
	struct cfs_ctx c = as_root();
	char *paths = NULL;

	OK(cfs_meta_each_path(vol.m, &c, f, note_path, &paths));
	assert_string_equal(paths, "/paths/sub/f;");
	OK(try_link(&c, f, d, "g"));
	free(paths);
	paths = NULL;
	OK(cfs_meta_each_path(vol.m, &c, f, note_path, &paths));
	assert_non_null(strstr(paths, "/paths/sub/f;"));
	assert_non_null(strstr(paths, "/paths/g;"));
	free(paths);
}

/* A command that looks for many paths may have read the directory before it changed. */
static void test_paths_that_change(void **state)
{
	cfs_ino_t d = test_dir("moving"), f = make_file(d, "f"), g = make_file(d, "g");
	struct cfs_meta *m = open_third(&(struct cfs_meta_conf){0});
	struct cfs_ctx c = as_root();
	struct cfs_renamed renamed;
	char *paths = NULL;
	int i;

	OK(cfs_meta_each_path(m, &c, f, note_path, &paths));
	OK(cfs_meta_each_path(m, &c, g, note_path, &paths));
	for (i = 0; i < 2; i++) {
		OK(try_rename(&c, d, "f", d, "h", 0, &renamed));
		OK(try_rename(&c, d, "g", d, "f", 0, &renamed));
		OK(try_rename(&c, d, "h", d, "g", 0, &renamed));
		OK(cfs_meta_each_path(m, &c, f, note_path, &paths));
		OK(cfs_meta_each_path(m, &c, g, note_path, &paths));
	}
	assert_string_equal(paths, "/moving/f;/moving/g;/moving/g;/moving/f;/moving/f;/moving/g;");
	OK(try_unlink(&c, d, "f"));
	cfs_meta_each_path(m, &c, f, note_path, &paths);
	OK(cfs_meta_each_path(m, &c, g, note_path, &paths));
	assert_non_null(strstr(paths, "/moving/g;/moving/g;"));
	free(paths);
	cfs_meta_close(m);
}

TEST_LIST(name, T(test_kinds), T(test_create_errors), T(test_create_denied),
	  T(test_symlink_targets), T(test_odd_names), T(test_lookup), T(test_unlink), T(test_rmdir),
	  T(test_links), T(test_sticky), T(test_setgid_dir), T(test_times), T(test_round_trips),
	  T(test_paths), T(test_paths_that_change));
