/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Group commit. A failure means that a file which its program has closed lacks its bytes, has them
 * twice, or has the attributes of another one.
 */
#include <stdio.h>

#include "conformance.h"
#include "meta/quota/quota-internal.h"

enum { CHUNK = CFS_CHUNK_SIZE };

static const uint8_t acl[] = {
	2,    0, 0, 0,			       /* version */
	0x01, 0, 6, 0, 0xff, 0xff, 0xff, 0xff, /* user_obj */
	0x02, 0, 6, 0, 0xe9, 0x03, 0,	 0,    /* user 1001 */
	0x04, 0, 4, 0, 0xff, 0xff, 0xff, 0xff, /* group_obj */
	0x10, 0, 6, 0, 0xff, 0xff, 0xff, 0xff, /* mask */
	0x20, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, /* other */
};

static struct cfs_commit new_commit(cfs_ino_t ino, uint64_t off, uint32_t len)
{
	struct cfs_commit k = {
		.ino = ino,
		.indx = (uint32_t)(off / CHUNK),
		.slice = {.pos = (uint32_t)(off % CHUNK), .size = len, .len = len},
		.mtime = {7000, 1003},
	};
	struct cfs_ctx c = as_root();

	OK(cfs_meta_new_slice(vol.m, &c, &k.slice.id));
	return k;
}

/* The list of the commit's chunk, with zeros for the ids of slices. */
static void list_of(const struct cfs_commit *k, char ret[512])
{
	const size_t record = CFS_SLICE_BYTES * 2 + 1;

	snprintf(ret, 512, "%s", records_hex(k->ino, k->indx));
	for (size_t i = 0; ret[i]; i++)
		if (i % record >= 8 && i % record < 24)
			ret[i] = '0';
}

/* The inode is as after the commit of another file, and the caller was told so. */
static void same_as(const struct cfs_commit *k, const struct cfs_commit *other)
{
	uint8_t got[CFS_ATTR_BYTES_MAX] = {0}, want[CFS_ATTR_BYTES_MAX] = {0};
	char list[512], list_of_other[512];
	struct cfs_attr a = attr_of(k->ino), b = attr_of(other->ino);

	assert_int_equal(cfs_attr_encode(&k->attr, got), cfs_attr_encode(&a, want));
	assert_memory_equal(got, want, sizeof(want));
	memset(got, 0, sizeof(got));
	if (!k->attrs || !(k->attrs->set & CFS_SET_ATIME))
		b.atime = a.atime; /* when they were made */
	assert_int_equal(cfs_attr_encode(&a, want), cfs_attr_encode(&b, got));
	assert_memory_equal(got, want, sizeof(want));
	list_of(k, list);
	list_of(other, list_of_other);
	assert_string_equal(list, list_of_other);
}

/* The changes of the i-th file's attributes. */
static struct cfs_attr_change *change_of(size_t i, struct cfs_attr_change *ret)
{
	*ret = (struct cfs_attr_change){
		.mode = 04751, .uid = 11 + (uint32_t)i, .gid = 12, .atime = {6000, 5}};
	switch (i % 5) {
	case 0:
		return NULL;
	case 1:
		ret->set = CFS_SET_MODE;
		break;
	case 2:
		ret->set = CFS_SET_UID | CFS_SET_GID;
		break;
	case 3:
		ret->set = CFS_SET_ATIME;
		break;
	default:
		ret->set = CFS_SET_MODE | CFS_SET_UID | CFS_SET_GID | CFS_SET_ATIME;
	}
	return ret;
}

/* Files of each kind: new, with bytes before and behind, in a later chunk, with other attributes. */
static struct cfs_commit commit_for(cfs_ino_t dir, const char *prefix, size_t i,
				    struct cfs_attr_change *change)
{
	struct cfs_commit k;
	char name[32];
	cfs_ino_t ino;

	snprintf(name, sizeof(name), "%s%zu", prefix, i);
	ino = make_file(dir, name);
	if (i % 7 == 1)
		write_at(ino, 0, 50);
	if (i % 7 == 2)
		write_at(ino, 3 * (uint64_t)CHUNK, 9);
	k = new_commit(ino, i % 3 ? i : 2 * (uint64_t)CHUNK + i, 10 + (uint32_t)i);
	k.attrs = change_of(i, change);
	return k;
}

static void commit_group(struct cfs_ctx *c, struct cfs_commit *v, size_t n, int *err)
{
	struct cfs_commit *commits[CFS_COMMITS_MAX];

	for (size_t i = 0; i < n; i++) {
		commits[i] = &v[i];
		err[i] = 1;
	}
	cfs_meta_commit_group(vol.m, c, commits, n, err);
}

static void test_group(void **state)
{
	enum { N = CFS_COMMITS_MAX };
	struct cfs_commit *v = calloc(2 * N, sizeof(*v));
	struct cfs_attr_change change[N];
	cfs_ino_t d = test_dir("commits");
	struct cfs_ctx c = at_time(8000, 4);
	int err[N];

	assert_non_null(v);
	for (size_t i = 0; i < 2 * N; i++)
		v[i] = commit_for(d, i < N ? "a" : "b", i % N, &change[i % N]);
	commit_group(&c, v, N, err);
	for (size_t i = 0; i < N; i++) {
		OK(err[i]);
		OK(cfs_meta_commit(vol.m, &c, &v[N + i]));
		same_as(&v[i], &v[N + i]);
	}
	free(v);
}

/* As if the answer to a group was lost: each commit is found, and is not made twice. */
static void test_repeated(void **state)
{
	enum { N = 8 };
	cfs_ino_t d = test_dir("commits-repeated");
	struct cfs_ctx c = as_root();
	struct cfs_commit v[N];
	char name[8];
	int err[N];

	for (size_t i = 0; i < N; i++) {
		snprintf(name, sizeof(name), "f%zu", i);
		v[i] = new_commit(make_file(d, name), i, 10);
	}
	for (size_t turn = 0; turn < 3; turn++) {
		commit_group(&c, v, N, err);
		for (size_t i = 0; i < N; i++) {
			OK(err[i]);
			assert_int_equal(strlen(records_hex(v[i].ino, 0)), 2 * CFS_SLICE_BYTES);
			assert_int_equal(attr_of(v[i].ino).length, 10 + i);
			/* The second time there are other commits beside them. */
			v[i].repeated = turn || i % 2;
			snprintf(name, sizeof(name), "g%zu", i);
			if (!v[i].repeated)
				v[i] = new_commit(make_file(d, name), i, 10);
		}
	}
}

/* One file of a group is like none of the others: it gets its own result, and they get theirs. */

static cfs_ino_t odd_gone(cfs_ino_t dir, struct cfs_commit *k, int *ret)
{
	k->ino = make_file(dir, "odd");
	unlink_name(dir, "odd");
	*ret = -ENOENT;
	return k->ino;
}

static cfs_ino_t odd_dir(cfs_ino_t dir, struct cfs_commit *k, int *ret)
{
	k->ino = make_dir(dir, "odd");
	*ret = -EPERM;
	return k->ino;
}

static cfs_ino_t odd_two_names(cfs_ino_t dir, struct cfs_commit *k, int *ret)
{
	struct cfs_ctx c = as_root();

	k->ino = make_file(dir, "odd");
	OK(try_link(&c, k->ino, dir, "second"));
	return k->ino;
}

static cfs_ino_t odd_acl(cfs_ino_t dir, struct cfs_commit *k, int *ret)
{
	static struct cfs_attr_change mode = {.set = CFS_SET_MODE, .mode = 0604};
	struct cfs_ctx c = as_root();

	k->ino = make_file(dir, "odd");
	OK(cfs_meta_setxattr(vol.m, &c, k->ino, "system.posix_acl_access", acl, sizeof(acl), 0));
	k->attrs = &mode;
	return k->ino;
}

static cfs_ino_t odd_repeated(cfs_ino_t dir, struct cfs_commit *k, int *ret)
{
	struct cfs_ctx c = as_root();

	k->ino = make_file(dir, "odd");
	OK(cfs_meta_commit(vol.m, &c, k));
	k->repeated = true;
	return k->ino;
}

static cfs_ino_t odd_too_long(cfs_ino_t dir, struct cfs_commit *k, int *ret)
{
	k->ino = make_file(dir, "odd");
	k->indx = UINT32_MAX;
	*ret = -EFBIG;
	return k->ino;
}

static cfs_ino_t odd_over_quota(cfs_ino_t dir, struct cfs_commit *k, int *ret)
{
	struct cfs_ctx c = as_root();
	cfs_ino_t sub = make_dir(dir, "small");
	struct cfs_quota q = {.kind = CFS_QUOTA_DIR, .key = sub, .max_space = 8192};

	k->ino = make_file(sub, "odd");
	OK(vol.m->eng->ops->put_quota(vol.m->eng, &c, &q));
	OK(cfs_quotas_load(vol.m->quotas, &c));
	k->slice.size = k->slice.len = 100000;
	*ret = -EDQUOT;
	return k->ino;
}

static void group_with(cfs_ino_t d, cfs_ino_t (*odd)(cfs_ino_t, struct cfs_commit *, int *),
		       size_t place, size_t number)
{
	enum { N = 5 };
	struct cfs_attr_change change[N];
	struct cfs_ctx c = at_time(8000, 4);
	struct cfs_commit v[N], same[N];
	int err[N], want = 0;
	char name[32];
	cfs_ino_t dir;

	snprintf(name, sizeof(name), "odd%zu.%zu", number, place);
	dir = make_dir(d, name);
	for (size_t i = 0; i < N; i++) {
		v[i] = commit_for(dir, "f", i, &change[i]);
		same[i] = commit_for(dir, "same", i, &change[i]);
	}
	v[place] = new_commit(0, 5, 4000);
	odd(dir, &v[place], &want);
	commit_group(&c, v, N, err);
	for (size_t i = 0; i < N; i++) {
		assert_int_equal(err[i], i == place ? want : 0);
		if (i == place)
			continue;
		OK(cfs_meta_commit(vol.m, &c, &same[i]));
		same_as(&v[i], &same[i]);
	}
	if (!want) {
		assert_int_equal(attr_of(v[place].ino).length, 4005);
		assert_int_equal(v[place].attr.length, 4005);
		assert_int_equal(strlen(records_hex(v[place].ino, 0)), 2 * CFS_SLICE_BYTES);
	}
	if (v[place].attrs)
		assert_int_equal(attr_of(v[place].ino).mode, 0604);
	if (want == -EDQUOT) {
		OK(vol.m->eng->ops->del_quota(vol.m->eng, &c, CFS_QUOTA_DIR, find(dir, "small")));
		OK(cfs_quotas_load(vol.m->quotas, &c));
	}
}

static void test_odd_members(void **state)
{
	static cfs_ino_t (*const odds[])(cfs_ino_t, struct cfs_commit *, int *) = {
		odd_gone,     odd_dir,	    odd_two_names, odd_acl,
		odd_repeated, odd_too_long, odd_over_quota};
	cfs_ino_t d = test_dir("odd-members");

	for (size_t i = 0; i < sizeof(odds) / sizeof(odds[0]); i++)
		for (size_t place = 0; place < 5; place += 2)
			group_with(d, odds[i], place, i);
}

static int no_room(struct cfs_engine *e)
{
	return -ENOSPC;
}

/* A group leaves the space that removals need, as a single commit does. */
static void test_no_room(void **state)
{
	const struct cfs_engine_ops *real = vol.m->eng->ops;
	struct cfs_engine_ops full = *real;
	struct cfs_ctx c = as_root();
	cfs_ino_t dir = test_dir("no-room");
	struct cfs_attr_change change[3];
	struct cfs_commit v[3];
	int err[3];

	for (size_t i = 0; i < 3; i++)
		v[i] = commit_for(dir, "f", i, &change[i]);
	full.room = no_room;
	vol.m->eng->ops = &full;
	commit_group(&c, v, 3, err);
	vol.m->eng->ops = real;
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(err[i], -ENOSPC);
}

TEST_LIST(commit, T(test_group), T(test_repeated), T(test_odd_members), T(test_no_room));
