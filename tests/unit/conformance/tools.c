/* SPDX-License-Identifier: Apache-2.0 */
/* Short forms of the calls that tests make all the time. */
#include <stdio.h>
#include <unistd.h>

#include "conformance.h"

enum { TIMEOUT_MS = 10000 };

struct cfs_ctx as_root(void)
{
	return cfs_ctx_internal(TIMEOUT_MS);
}

struct cfs_ctx as_user(uint32_t uid, uint32_t gid)
{
	struct cfs_ctx c = as_root();

	c.uid = uid;
	c.gid = gid;
	c.check = true;
	return c;
}

struct cfs_ctx at_time(int64_t s, long ns)
{
	struct cfs_ctx c = as_root();

	c.now = (struct timespec){s, ns};
	return c;
}

int try_make(const struct cfs_ctx *ctx, cfs_ino_t parent, const char *name, uint8_t type,
	     uint16_t mode, struct cfs_entry *ret)
{
	struct cfs_mknod req = {
		.parent = parent,
		.name = name,
		.name_len = strlen(name),
		.type = type,
		.mode = mode,
		.target = "target",
		.target_len = 6,
	};
	struct cfs_entry e;

	return cfs_meta_mknod(vol.m, ctx, &req, ret ? ret : &e);
}

cfs_ino_t make(cfs_ino_t parent, const char *name, uint8_t type)
{
	struct cfs_ctx c = as_root();
	struct cfs_entry e = {0};

	OK(try_make(&c, parent, name, type, type == CFS_TYPE_DIR ? 0777 : 0644, &e));
	assert_int_equal(e.attr.type, type);
	return e.ino;
}

cfs_ino_t make_file(cfs_ino_t parent, const char *name)
{
	return make(parent, name, CFS_TYPE_FILE);
}

cfs_ino_t make_dir(cfs_ino_t parent, const char *name)
{
	return make(parent, name, CFS_TYPE_DIR);
}

cfs_ino_t test_dir(const char *name)
{
	return make_dir(CFS_ROOT_INO, name);
}

struct cfs_attr attr_of(cfs_ino_t ino)
{
	struct cfs_ctx c = as_root();
	struct cfs_attr a = {0};

	OK(cfs_meta_getattr(vol.m, &c, ino, &a));
	return a;
}

int try_getattr(cfs_ino_t ino)
{
	struct cfs_ctx c = as_root();
	struct cfs_attr a;

	return cfs_meta_getattr(vol.m, &c, ino, &a);
}

int try_lookup(cfs_ino_t parent, const char *name)
{
	struct cfs_ctx c = as_root();
	struct cfs_entry e;

	return cfs_meta_lookup(vol.m, &c, parent, name, strlen(name), &e);
}

cfs_ino_t find(cfs_ino_t parent, const char *name)
{
	struct cfs_ctx c = as_root();
	struct cfs_entry e = {0};

	OK(cfs_meta_lookup(vol.m, &c, parent, name, strlen(name), &e));
	return e.ino;
}

int try_unlink(const struct cfs_ctx *ctx, cfs_ino_t parent, const char *name)
{
	struct cfs_removed r;

	return cfs_meta_unlink(vol.m, ctx, parent, name, strlen(name), 0, &r);
}

int try_rmdir(const struct cfs_ctx *ctx, cfs_ino_t parent, const char *name)
{
	struct cfs_removed r;

	return cfs_meta_rmdir(vol.m, ctx, parent, name, strlen(name), 0, &r);
}

struct cfs_removed unlink_name(cfs_ino_t parent, const char *name)
{
	struct cfs_ctx c = as_root();
	struct cfs_removed r = {0};

	OK(cfs_meta_unlink(vol.m, &c, parent, name, strlen(name), 0, &r));
	return r;
}

struct cfs_removed rmdir_name(cfs_ino_t parent, const char *name)
{
	struct cfs_ctx c = as_root();
	struct cfs_removed r = {0};

	OK(cfs_meta_rmdir(vol.m, &c, parent, name, strlen(name), 0, &r));
	return r;
}

int try_link(const struct cfs_ctx *ctx, cfs_ino_t ino, cfs_ino_t parent, const char *name)
{
	struct cfs_attr a;

	return cfs_meta_link(vol.m, ctx, ino, parent, name, strlen(name), &a);
}

int try_rename(const struct cfs_ctx *ctx, cfs_ino_t from, const char *old, cfs_ino_t to,
	       const char *name, unsigned flags, struct cfs_renamed *ret)
{
	struct cfs_rename req = {
		.src_parent = from,
		.src_name = old,
		.src_len = strlen(old),
		.dst_parent = to,
		.dst_name = name,
		.dst_len = strlen(name),
		.flags = flags,
	};
	struct cfs_renamed r;

	return cfs_meta_rename(vol.m, ctx, &req, ret ? ret : &r);
}

void set_flags(cfs_ino_t ino, uint8_t flags)
{
	struct cfs_attr in = {.flags = flags}, after;
	struct cfs_ctx c = as_root();

	OK(cfs_meta_setattr(vol.m, &c, ino, CFS_SET_FLAGS, &in, &after));
	assert_int_equal(after.flags, flags);
}

int commit_slice(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, uint32_t indx,
		 const struct cfs_slice *s, struct timespec mtime, struct cfs_attr *ret)
{
	struct cfs_commit c = {.ino = ino, .indx = indx, .slice = *s, .mtime = mtime};
	int r = cfs_meta_commit(m, ctx, &c);

	if (!r)
		*ret = c.attr;
	return r;
}

uint64_t write_at(cfs_ino_t ino, uint64_t off, uint32_t len)
{
	struct cfs_slice s = {.pos = (uint32_t)(off % CFS_CHUNK_SIZE), .size = len, .len = len};
	struct cfs_ctx c = as_root();
	struct cfs_attr after;

	OK(cfs_meta_new_slice(vol.m, &c, &s.id));
	OK(commit_slice(vol.m, &c, ino, (uint32_t)(off >> CFS_CHUNK_BITS), &s, c.now, &after));
	assert_true(after.length >= off + len);
	return s.id;
}

const char *records_hex(cfs_ino_t ino, uint32_t indx)
{
	static char text[64 * (CFS_SLICE_BYTES * 2 + 1) + 1];
	struct cfs_ctx c = as_root();
	struct cfs_slice *v = NULL;
	ssize_t i, n = cfs_meta_read_chunk(vol.m, &c, ino, indx, &v);
	char *p = text;

	assert_in_range(n, 0, 64);
	for (i = 0; i < n; i++) {
		uint8_t raw[CFS_SLICE_BYTES];
		size_t k;

		cfs_slice_encode(&v[i], raw);
		for (k = 0; k < sizeof(raw); k++)
			p += snprintf(p, 3, "%02x", raw[k]);
		*p++ = i + 1 < n ? ' ' : '\0';
	}
	*p = '\0';
	free(v);
	return text;
}

static int count_delfile(void *arg, cfs_ino_t ino, uint64_t length, int64_t when_s)
{
	(void)ino;
	(void)length;
	(void)when_s;
	++*(size_t *)arg;
	return 0;
}

void wait_deletions(void)
{
	cfs_deadline_t end = cfs_deadline_in(20000);
	size_t left;

	do {
		struct cfs_ctx c = as_root();

		left = 0;
		assert_true(vol.m->eng->ops->each_delfile(vol.m->eng, &c, c.now.tv_sec + 60, 1000,
							  count_delfile, &left) >= 0);
		if (left)
			usleep(2000);
	} while (left && !cfs_deadline_passed(end));
	assert_int_equal(left, 0);
}

struct cfs_meta *open_third(const struct cfs_meta_conf *conf)
{
	struct cfs_setting *s;
	struct cfs_meta *m;
	char err[256];

	OK(cfs_meta_open(vol.url, conf, &m, err));
	OK(cfs_meta_load(m, &s, err));
	cfs_setting_free(s);
	return m;
}
