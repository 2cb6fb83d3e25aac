/* SPDX-License-Identifier: Apache-2.0 */
/* Extended attributes and ACLs. A failure means that rsync -AX or a backup loses rights. */
#include <sys/xattr.h>

#include "conformance.h"
#include "meta/engine/rules.h"

static int set(cfs_ino_t ino, const char *name, const void *value, size_t size, int flags)
{
	struct cfs_ctx c = as_root();

	return cfs_meta_setxattr(vol.m, &c, ino, name, value, size, flags);
}

static ssize_t get(cfs_ino_t ino, const char *name, void *buf, size_t size)
{
	struct cfs_ctx c = as_root();

	return cfs_meta_getxattr(vol.m, &c, ino, name, buf, size);
}

static int drop(cfs_ino_t ino, const char *name)
{
	struct cfs_ctx c = as_root();

	return cfs_meta_removexattr(vol.m, &c, ino, name);
}

static void test_values(void **state)
{
	cfs_ino_t d = test_dir("xattr"), f = make_file(d, "f");
	struct timespec ctime = attr_of(f).ctime;
	static char big[CFS_XATTR_VALUE_MAX + 1];
	struct cfs_ctx c = as_root();
	char buf[64];

	assert_int_equal(get(f, "user.a", buf, sizeof(buf)), -ENODATA);
	assert_int_equal(set(f, "user.a", "x", 1, XATTR_REPLACE), -ENODATA);
	OK(set(f, "user.a", "one\0two", 7, XATTR_CREATE));
	assert_int_equal(set(f, "user.a", "x", 1, XATTR_CREATE), -EEXIST);
	assert_int_equal(get(f, "user.a", buf, sizeof(buf)), 7);
	assert_memory_equal(buf, "one\0two", 7);
	assert_int_equal(get(f, "user.a", NULL, 0), 7);
	assert_int_equal(get(f, "user.a", buf, 6), -ERANGE);
	OK(set(f, "user.a", "three", 5, XATTR_REPLACE));
	OK(set(f, "user.empty", "", 0, 0));
	assert_int_equal(get(f, "user.empty", buf, sizeof(buf)), 0);
	assert_int_equal(cfs_meta_listxattr(vol.m, &c, f, NULL, 0), 18);
	assert_int_equal(cfs_meta_listxattr(vol.m, &c, f, buf, sizeof(buf)), 18);
	assert_int_equal(cfs_meta_listxattr(vol.m, &c, f, buf, 17), -ERANGE);
	assert_true(memcmp(buf, "user.a\0user.empty", 18) == 0 ||
		    memcmp(buf, "user.empty\0user.a", 18) == 0);
	OK(drop(f, "user.a"));
	assert_int_equal(drop(f, "user.a"), -ENODATA);
	assert_int_equal(set(f, "user.big", big, sizeof(big), 0), -ERANGE);
	OK(set(f, "user.big", big, 65535, 0));
	assert_int_equal(get(f, "user.big", NULL, 0), 65535);
	assert_int_equal(set(f, "", "x", 1, 0), -ERANGE);
	assert_int_equal(set(f, "user.a", "x", 1, 8), -EINVAL);
	assert_int_equal(set(1ULL << 40, "user.a", "x", 1, 0), -ENOENT);
	/* Setting one does not change ctime (volume-format 11). */
	assert_int_equal(attr_of(f).ctime.tv_nsec, ctime.tv_nsec);
}

static void test_gone_with_file(void **state)
{
	cfs_ino_t d = test_dir("xattr-gone"), f = make_file(d, "f");
	char buf[8];

	OK(set(f, "user.a", "x", 1, 0));
	unlink_name(d, "f");
	assert_true(get(f, "user.a", buf, sizeof(buf)) < 0);
}

/* u::rw- u:1001:rw- g::r-- g:2002:r-- m::rw- o::--- in the kernel's form */
static const uint8_t kernel_acl[] = {
	2,    0, 0, 0,			       /* version */
	0x01, 0, 6, 0, 0xff, 0xff, 0xff, 0xff, /* user_obj */
	0x02, 0, 6, 0, 0xe9, 0x03, 0,	 0,    /* user 1001 */
	0x04, 0, 4, 0, 0xff, 0xff, 0xff, 0xff, /* group_obj */
	0x08, 0, 4, 0, 0xd2, 0x07, 0,	 0,    /* group 2002 */
	0x10, 0, 6, 0, 0xff, 0xff, 0xff, 0xff, /* mask */
	0x20, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, /* other */
};
static const uint8_t minimal_acl[] = {
	2, 0, 0,    0,	  0x01, 0,    7,    0, 0xff, 0xff, 0xff, 0xff, 0x04, 0,
	5, 0, 0xff, 0xff, 0xff, 0xff, 0x20, 0, 1,    0,	   0xff, 0xff, 0xff, 0xff,
};
static const char access_acl[] = "system.posix_acl_access";
static const char default_acl[] = "system.posix_acl_default";

static void test_acl(void **state)
{
	cfs_ino_t d = test_dir("acl"), f = make_file(d, "f"), g = make_file(d, "g");
	struct cfs_ctx c = as_root(), user = as_user(1001, 1), other = as_user(3, 3);
	uint8_t back[256];
	struct cfs_attr a;
	struct cfs_acl rule;

	assert_int_equal(get(f, access_acl, back, sizeof(back)), -ENODATA);
	OK(set(f, access_acl, kernel_acl, sizeof(kernel_acl), 0));
	a = attr_of(f);
	assert_int_not_equal(a.access_acl, 0);
	assert_int_equal(a.mode, 0660);
	assert_int_equal(get(f, access_acl, back, sizeof(back)), sizeof(kernel_acl));
	assert_memory_equal(back, kernel_acl, sizeof(kernel_acl));
	assert_int_equal(cfs_meta_listxattr(vol.m, &c, f, (char *)back, sizeof(back)),
			 sizeof(access_acl));
	assert_string_equal((char *)back, access_acl);
	/* as stored (volume-format 10) */
	OK(vol.m->eng->ops->get_acl(vol.m->eng, &c, a.access_acl, &rule));
	assert_int_equal(rule.owner << 12 | rule.group << 8 | rule.mask << 4 | rule.other, 0x6460);
	assert_int_equal(rule.n_users, 1);
	assert_int_equal(rule.users[0].id, 1001);
	assert_int_equal(rule.groups[0].id, 2002);
	cfs_acl_release(&rule);
	/* equal rules share an id */
	OK(set(g, access_acl, kernel_acl, sizeof(kernel_acl), 0));
	assert_int_equal(attr_of(g).access_acl, a.access_acl);
	/* enforced */
	OK(cfs_meta_access(vol.m, &user, f, 6, NULL));
	assert_int_equal(cfs_meta_access(vol.m, &other, f, 4, NULL), -EACCES);
	/* chmod changes owner, mask, other */
	OK(cfs_meta_setattr(vol.m, &c, f, CFS_SET_MODE, &(struct cfs_attr){.mode = 0641}, &a));
	assert_int_equal(a.mode, 0641);
	assert_int_equal(get(f, access_acl, back, sizeof(back)), sizeof(kernel_acl));
	assert_int_equal(back[4 + 4 * 8 + 2], 4); /* mask */
	assert_int_equal(back[4 + 5 * 8 + 2], 1); /* other */
	assert_int_equal(back[4 + 2 * 8 + 2], 4); /* group_obj stays */
	assert_int_equal(cfs_meta_access(vol.m, &user, f, 2, NULL), -EACCES);
	/* a minimal one is only a mode */
	OK(set(f, access_acl, minimal_acl, sizeof(minimal_acl), 0));
	a = attr_of(f);
	assert_int_equal(a.access_acl, 0);
	assert_int_equal(a.mode, 0751);
	OK(drop(g, access_acl));
	assert_int_equal(attr_of(g).access_acl, 0);
}

/* A mode that is stored with data changes the rule, as chmod(2) does. */
static void test_acl_of_a_commit(void **state)
{
	cfs_ino_t d = test_dir("acl-commit"), f = make_file(d, "f"), g = make_file(d, "g");
	const struct cfs_attr_change change = {.set = CFS_SET_MODE, .mode = 0604};
	struct cfs_attr in = {.mode = 0604}, a;
	struct cfs_commit commit = {.ino = f, .slice = {.size = 10, .len = 10}, .attrs = &change};
	struct cfs_ctx c = as_root();

	(void)state;
	OK(set(f, access_acl, kernel_acl, sizeof(kernel_acl), 0));
	OK(set(g, access_acl, kernel_acl, sizeof(kernel_acl), 0));
	OK(cfs_meta_setattr(vol.m, &c, g, CFS_SET_MODE, &in, &a));
	commit.mtime = c.now;
	OK(cfs_meta_new_slice(vol.m, &c, &commit.slice.id));
	OK(cfs_meta_commit(vol.m, &c, &commit));
	assert_int_equal(commit.attr.mode, 0604);
	assert_int_equal(commit.attr.access_acl, a.access_acl);
	assert_int_equal(attr_of(f).access_acl, a.access_acl);
	/* So it is not kept back in the first place. */
	a = attr_of(f);
	assert_int_equal(cfs_meta_keep_setattr(vol.m, &c, CFS_SET_MODE, &in, &a), -EAGAIN);
}

static void test_acl_inheritance(void **state)
{
	cfs_ino_t d = test_dir("acl-inherit"), sub;
	struct cfs_ctx c = as_root();
	struct cfs_mknod req = {.parent = d,
				.name = "f",
				.name_len = 1,
				.type = CFS_TYPE_FILE,
				.mode = 0640,
				.umask = 077};
	struct cfs_entry e = {0};
	uint8_t back[256];

	OK(set(d, default_acl, kernel_acl, sizeof(kernel_acl), 0));
	assert_int_not_equal(attr_of(d).default_acl, 0);
	assert_int_equal(attr_of(d).mode, 0777);
	OK(cfs_meta_mknod(vol.m, &c, &req, &e));
	assert_int_equal(e.attr.mode, 0640); /* umask is ignored */
	assert_int_equal(attr_of(e.ino).default_acl, 0);
	assert_int_equal(get(e.ino, access_acl, back, sizeof(back)), sizeof(kernel_acl));
	assert_int_equal(back[4 + 4 * 8 + 2], 4); /* mask AND group bits of the mode */
	assert_int_equal(back[4 + 3 * 8 + 2], 4); /* named group copied */
	sub = make_dir(d, "sub");
	assert_int_equal(attr_of(sub).default_acl, attr_of(d).default_acl);
	assert_int_not_equal(attr_of(sub).access_acl, 0);
	assert_int_equal(attr_of(make(d, "s", CFS_TYPE_SYMLINK)).access_acl, 0);
	/* a minimal default limits the mode */
	OK(set(sub, default_acl, minimal_acl, sizeof(minimal_acl), 0));
	assert_int_equal(attr_of(make_file(sub, "g")).mode, 0640);
	OK(drop(sub, default_acl));
	assert_int_equal(attr_of(sub).default_acl, 0);
}

static void test_acl_errors(void **state)
{
	cfs_ino_t d = test_dir("acl-errors"), f = make_file(d, "f");
	struct cfs_ctx user = as_user(5, 5);
	uint8_t bad[sizeof(kernel_acl)];

	assert_int_equal(set(f, default_acl, kernel_acl, sizeof(kernel_acl), 0), -EACCES);
	assert_int_equal(set(f, access_acl, kernel_acl, sizeof(kernel_acl) - 1, 0), -EINVAL);
	memcpy(bad, kernel_acl, sizeof(bad));
	bad[0] = 1;
	assert_int_equal(set(f, access_acl, bad, sizeof(bad), 0), -EOPNOTSUPP);
	memcpy(bad, kernel_acl, sizeof(bad));
	bad[4 + 2] = 8;
	assert_int_equal(set(f, access_acl, bad, sizeof(bad), 0), -EINVAL);
	/* named entries need a mask */
	assert_int_equal(set(f, access_acl, kernel_acl, 4 + 4 * 8, 0), -EINVAL);
	assert_int_equal(
		cfs_meta_setxattr(vol.m, &user, f, access_acl, kernel_acl, sizeof(kernel_acl), 0),
		-EPERM);
	OK(set(f, access_acl, NULL, 0, 0));
}

TEST_LIST(xattr, T(test_values), T(test_gone_with_file), T(test_acl), T(test_acl_of_a_commit),
	  T(test_acl_inheritance), T(test_acl_errors));
