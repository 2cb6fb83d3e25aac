/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that the kernel reads without the mount: their ids, and the second node id of a file
 * (cfs_vfs_node). Handlers know inode numbers only: the bit that distinguishes both nodes of a file
 * is taken off a request before it is decoded. An open and a look-up of "." ask for it
 * (node_of_request).
 */
#include <errno.h>
#include <sys/ioctl.h>

#include "agreement.h"
#include "base/log.h"
#include "fuse-internal.h"

/* Interface 7.40; the headers at build time may lack it. */
struct backing_map {
	int32_t fd;
	uint32_t flags;
	uint64_t padding;
};
#define BACKING_OPEN  _IOW(FUSE_DEV_IOC_MAGIC, 1, struct backing_map)
#define BACKING_CLOSE _IOW(FUSE_DEV_IOC_MAGIC, 2, uint32_t)

static const char *reason(int err)
{
	switch (err) {
	case EPERM:
		return "the mount lacks CAP_SYS_ADMIN";
	case ELOOP:
		return "the cache directory is on a stacked file system";
	case EOPNOTSUPP:
	case ENOTTY:
	case EINVAL:
		return "the kernel cannot read the files of the cache directory";
	default:
		return NULL;
	}
}

static int open_backing(void *arg, int fd)
{
	struct cfs_fuse *f = arg;
	struct backing_map map = {.fd = fd};
	int id, err;

	if (atomic_load(&f->backing_refused))
		return -EOPNOTSUPP;
	id = ioctl(f->device.fd, BACKING_OPEN, &map);
	if (id > 0)
		return id;
	err = id < 0 ? errno : EIO;
	if (!reason(err))
		return -err;
	if (!atomic_exchange(&f->backing_refused, true))
		cfs_warn("passthrough is off, files are read through the mount: mount=%s "
			 "error=%s reason=\"%s\"",
			 f->mount_point, cfs_errname(err), reason(err));
	return -EOPNOTSUPP;
}

static void close_backing(void *arg, int id)
{
	const struct cfs_fuse *f = arg;
	uint32_t number = (uint32_t)id;

	/* ENOENT: a process that has died had closed it. */
	if (ioctl(f->device.fd, BACKING_CLOSE, &number) < 0 && errno != ENOENT)
		cfs_debug("a file that the kernel reads stays open until the mount ends: mount=%s "
			  "error=%s",
			  f->mount_point, cfs_errname(errno));
}

void passthrough_begin(struct cfs_fuse *f)
{
	f->backing =
		(struct cfs_vfs_backing){.open = open_backing, .close = close_backing, .arg = f};
	if (f->conf.agreement && (f->conf.agreement->sent & INIT_PASSTHROUGH)) {
		cfs_vfs_pass_through(f->vfs, &f->backing);
		return;
	}
	cfs_vfs_pass_through(f->vfs, NULL);
	if (f->conf.passthrough)
		cfs_info("passthrough is off, files are read through the mount: mount=%s "
			 "reason=\"%s\"",
			 f->mount_point,
			 f->conf.writeback_cache ? "writeback_cache"
						 : "not agreed on with the kernel");
}

/* ---- nodes ---- */

static void lengthen(void *arg, cfs_ino_t node, uint64_t length)
{
	const struct cfs_fuse *f = arg;

	channel_lengthen(f->channel, node, length);
}

void lengthen_begin(struct cfs_fuse *f)
{
	/* With writeback_cache the kernel would keep a length that is wrong by a race. */
	cfs_vfs_on_longer(f->vfs, f->conf.writeback_cache ? NULL : lengthen, f);
}

cfs_ino_t node_of_request(const struct cfs_request *rq, fuse_ino_t ino)
{
	return rq->other_node ? ino | CFS_VFS_OTHER_NODE : ino;
}

void take_node(struct cfs_request *rq)
{
	rq->other_node = rq->in->nodeid & CFS_VFS_OTHER_NODE;
	rq->in->nodeid &= ~CFS_VFS_OTHER_NODE;
}

void drop_inode(const struct cfs_fuse *f, fuse_ino_t ino, int64_t off)
{
	channel_drop_inode(f->channel, ino, off);
	if (cfs_vfs_has_other_nodes(f->vfs))
		channel_drop_inode(f->channel, ino | CFS_VFS_OTHER_NODE, off);
}
