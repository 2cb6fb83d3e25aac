/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "fuse-internal.h"

#define SMALL 1024

/* The value of `name`, or the list of names for NULL. size 0 asks for the length only. */
static void get(struct call *c, fuse_ino_t ino, const char *name, size_t size)
{
	size_t room = CFS_MIN(size, (size_t)CFS_XATTR_VALUE_MAX);
	char small[SMALL], *buf = room > sizeof(small) ? malloc(room) : small;
	ssize_t n = -ENOMEM;

	if (buf)
		n = name ? cfs_vfs_getxattr(c->vfs, &c->ctx, ino, name, buf, room)
			 : cfs_vfs_listxattr(c->vfs, &c->ctx, ino, buf, room);
	if (n < 0)
		reply_status(c, (int)n);
	else if (size == 0)
		reply_size(c, (uint64_t)n);
	else
		reply_bytes(c, buf, (size_t)n);
	if (buf != small)
		free(buf);
}

void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	struct call c;

	call_begin(&c, req, "getxattr");
	call_args(&c, "%" PRIu64 ",%s,%zu", ino, name, size);
	get(&c, ino, name, size);
}

void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	struct call c;

	call_begin(&c, req, "listxattr");
	call_args(&c, "%" PRIu64 ",%zu", ino, size);
	get(&c, ino, NULL, size);
}

void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size,
		 int flags)
{
	struct call c;

	call_begin_once(&c, req, "setxattr");
	call_args(&c, "%" PRIu64 ",%s,%zu,%#x", ino, name, size, (unsigned)flags);
	reply_status(&c, cfs_vfs_setxattr(c.vfs, &c.ctx, ino, name, value, size, flags));
}

void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	struct call c;

	call_begin_once(&c, req, "removexattr");
	call_args(&c, "%" PRIu64 ",%s", ino, name);
	reply_status(&c, cfs_vfs_removexattr(c.vfs, &c.ctx, ino, name));
}

/* ---- inode flags: chattr(1), lsattr(1). Each function replies, unless it returns an error ---- */

/* Flags are an int, although the ioctl's number says long: ioctl_iflags(2). */
#define FLAGS_SIZE sizeof(uint32_t)

static int get_flags(struct call *c, fuse_ino_t ino, size_t out_size)
{
	uint32_t flags;
	int r;

	if (out_size < FLAGS_SIZE)
		return -EINVAL;
	r = cfs_vfs_get_flags(c->vfs, &c->ctx, ino, &flags);
	if (r == 0)
		reply_ioctl(c, &flags, FLAGS_SIZE);
	return r;
}

static int set_flags(struct call *c, fuse_ino_t ino, const void *in, size_t in_size)
{
	uint32_t flags;
	int r;

	if (in_size < FLAGS_SIZE)
		return -EINVAL;
	memcpy(&flags, in, FLAGS_SIZE);
	r = cfs_vfs_set_flags(c->vfs, &c->ctx, ino, flags);
	if (r == 0)
		reply_ioctl(c, NULL, 0);
	return r;
}

static int get_fsxattr(struct call *c, fuse_ino_t ino, size_t out_size)
{
	struct fsxattr x = {0};
	uint32_t flags;
	int r;

	if (out_size < sizeof(x))
		return -EINVAL;
	r = cfs_vfs_get_flags(c->vfs, &c->ctx, ino, &flags);
	if (r < 0)
		return r;
	if (flags & FS_IMMUTABLE_FL)
		x.fsx_xflags |= FS_XFLAG_IMMUTABLE;
	if (flags & FS_APPEND_FL)
		x.fsx_xflags |= FS_XFLAG_APPEND;
	reply_ioctl(c, &x, sizeof(x));
	return 0;
}

/* The format has no flag for secure deletion; that bit stays as it is. */
static int set_fsxattr(struct call *c, fuse_ino_t ino, const void *in, size_t in_size)
{
	struct fsxattr x;
	uint32_t flags;
	int r;

	if (in_size < sizeof(x))
		return -EINVAL;
	memcpy(&x, in, sizeof(x));
	if ((x.fsx_xflags & ~(uint32_t)(FS_XFLAG_IMMUTABLE | FS_XFLAG_APPEND)) || x.fsx_extsize ||
	    x.fsx_projid || x.fsx_cowextsize)
		return -EOPNOTSUPP;
	r = cfs_vfs_get_flags(c->vfs, &c->ctx, ino, &flags);
	if (r < 0)
		return r;
	flags &= FS_SECRM_FL;
	if (x.fsx_xflags & FS_XFLAG_IMMUTABLE)
		flags |= FS_IMMUTABLE_FL;
	if (x.fsx_xflags & FS_XFLAG_APPEND)
		flags |= FS_APPEND_FL;
	r = cfs_vfs_set_flags(c->vfs, &c->ctx, ino, flags);
	if (r == 0)
		reply_ioctl(c, NULL, 0);
	return r;
}

void op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned int cmd, void *arg,
	      struct fuse_file_info *fi, unsigned flags, const void *in, size_t in_size,
	      size_t out_size)
{
	struct call c;
	int r;

	call_begin(&c, req, "ioctl");
	call_args(&c, "%" PRIu64 ",%#x", ino, cmd);
	switch (cmd) {
	case FS_IOC_GETFLAGS:
	case FS_IOC32_GETFLAGS:
		r = get_flags(&c, ino, out_size);
		break;
	case FS_IOC_SETFLAGS:
	case FS_IOC32_SETFLAGS:
		r = set_flags(&c, ino, in, in_size);
		break;
	case FS_IOC_FSGETXATTR:
		r = get_fsxattr(&c, ino, out_size);
		break;
	case FS_IOC_FSSETXATTR:
		r = set_fsxattr(&c, ino, in, in_size);
		break;
	default:
		r = -ENOTTY;
	}
	if (r < 0)
		reply_status(&c, r);
}
