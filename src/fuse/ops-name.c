/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "fuse-internal.h"

void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct cfs_vfs_entry e;
	struct call c;
	int r;

	call_begin(&c, req, "lookup");
	call_args(&c, "%" PRIu64 ",%s", parent, name);
	if (mapped_is_writer(c.fuse, c.ctx.pid) && mapped_lookup(&c, name))
		return;
	r = cfs_vfs_lookup(c.vfs, &c.ctx, parent, name, strlen(name), &e);
	if (r == -ENOENT && e.entry_ms)
		reply_absent(&c, e.entry_ms);
	/* The kernel asks for the node id of an exported file handle, and accepts no other. */
	else if (!strcmp(name, "."))
		reply_node(&c, r, &e, node_of_request(request_of(req), e.ino));
	else
		reply_entry(&c, r, &e);
}

void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t count)
{
	struct cfs_fuse *f = fuse_req_userdata(req);

	cfs_vfs_forget(f->vfs, ino);
	fuse_reply_none(req);
}

void op_forget_multi(fuse_req_t req, size_t n, struct fuse_forget_data *forgets)
{
	struct cfs_fuse *f = fuse_req_userdata(req);
	size_t i;

	for (i = 0; i < n; i++)
		cfs_vfs_forget(f->vfs, forgets[i].ino & ~CFS_VFS_OTHER_NODE);
	fuse_reply_none(req);
}

void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct cfs_vfs_attr a;
	uint32_t listing;
	struct call c;
	int r;

	call_begin(&c, req, "getattr");
	call_args(&c, "%" PRIu64, ino);
	r = cfs_vfs_getattr(c.vfs, &c.ctx, ino, &a);
	if (r == 0 && cfs_vfs_listing_expired(c.vfs, ino, &listing)) {
		channel_drop_inode(c.fuse->channel, ino, 0);
		cfs_vfs_listing_dropped(c.vfs, ino, listing);
	}
	reply_attr(&c, r, &a);
}

static void apply_setattr(struct blocking *b)
{
	struct call *c = &b->call;
	struct cfs_vfs_attr a;
	int r;

	r = cfs_vfs_setattr(c->vfs, &c->ctx, b->ino, b->fh, b->setattr.set, &b->setattr.attr, &a);
	reply_attr(c, r, &a);
}

void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *st, int to_set,
		struct fuse_file_info *fi)
{
	static const struct {
		int fuse;
		uint32_t vfs;
	} map[] = {
		{FUSE_SET_ATTR_MODE, CFS_SET_MODE},   {FUSE_SET_ATTR_UID, CFS_SET_UID},
		{FUSE_SET_ATTR_GID, CFS_SET_GID},     {FUSE_SET_ATTR_SIZE, CFS_VFS_SET_SIZE},
		{FUSE_SET_ATTR_CTIME, CFS_SET_CTIME},
	};
	struct blocking b = {
		.apply = apply_setattr,
		.ino = ino,
		.fh = fi ? fi->fh : 0,
	};
	struct call *c = &b.call;
	uint32_t set = 0;
	size_t i;

	b.setattr.attr = (struct cfs_attr){
		.mode = st->st_mode & 07777,
		.uid = st->st_uid,
		.gid = st->st_gid,
		.length = (uint64_t)st->st_size,
		.atime = st->st_atim,
		.mtime = st->st_mtim,
		.ctime = st->st_ctim,
	};
	call_begin(c, req, "setattr");
	call_args(c, "%" PRIu64 ",%#x", ino, (unsigned)to_set);
	for (i = 0; i < sizeof(map) / sizeof(map[0]); i++) {
		if (to_set & map[i].fuse)
			set |= map[i].vfs;
	}
	if (to_set & FUSE_SET_ATTR_ATIME)
		set |= to_set & FUSE_SET_ATTR_ATIME_NOW ? CFS_SET_ATIME_NOW : CFS_SET_ATIME;
	if (to_set & FUSE_SET_ATTR_MTIME)
		set |= to_set & FUSE_SET_ATTR_MTIME_NOW ? CFS_SET_MTIME_NOW : CFS_SET_MTIME;
	if (request_drops_set_id(request_of(req)))
		set |= CFS_SET_KILL_SUID;
	b.setattr.set = set;
	blocking_run(&b, cfs_vfs_setattr_waits(c->vfs, ino, set));
}

void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	char buf[CFS_SYMLINK_MAX + 1];
	struct call c;
	int r;

	call_begin(&c, req, "readlink");
	call_args(&c, "%" PRIu64, ino);
	r = cfs_vfs_readlink(c.vfs, &c.ctx, ino, buf);
	if (r < 0)
		reply_status(&c, r);
	else
		reply_bytes(&c, buf, strlen(buf));
}

static uint8_t mode_type(mode_t mode)
{
	switch (mode & S_IFMT) {
	case 0: /* mknod(2): zero means a regular file */
	case S_IFREG:
		return CFS_TYPE_FILE;
	case S_IFDIR:
		return CFS_TYPE_DIR;
	case S_IFLNK:
		return CFS_TYPE_SYMLINK;
	case S_IFIFO:
		return CFS_TYPE_FIFO;
	case S_IFBLK:
		return CFS_TYPE_BLOCK;
	case S_IFCHR:
		return CFS_TYPE_CHAR;
	case S_IFSOCK:
		return CFS_TYPE_SOCKET;
	default:
		return 0;
	}
}

struct cfs_mknod make_request(const struct call *c, fuse_ino_t parent, const char *name,
			      mode_t mode)
{
	return (struct cfs_mknod){
		.parent = parent,
		.name = name,
		.name_len = strlen(name),
		.type = mode_type(mode),
		.mode = mode & 07777,
		.umask = (uint16_t)(c->umask & 0777),
	};
}

static void make(struct call *c, const struct cfs_mknod *in)
{
	struct cfs_vfs_entry e;
	int r = in->type ? cfs_vfs_mknod(c->vfs, &c->ctx, in, &e) : -EINVAL;

	reply_entry(c, r, &e);
}

void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
	struct cfs_mknod in;
	struct call c;

	call_begin_once(&c, req, "mknod");
	call_args(&c, "%" PRIu64 ",%s,%#o,%#x", parent, name, mode, (unsigned)rdev);
	in = make_request(&c, parent, name, mode);
	in.rdev = (uint32_t)rdev;
	make(&c, &in);
}

void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	struct cfs_mknod in;
	struct call c;

	call_begin_once(&c, req, "mkdir");
	call_args(&c, "%" PRIu64 ",%s,%#o", parent, name, mode);
	in = make_request(&c, parent, name, (mode & 07777) | S_IFDIR);
	make(&c, &in);
}

void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
	struct cfs_mknod in;
	struct call c;

	call_begin_once(&c, req, "symlink");
	call_args(&c, "%" PRIu64 ",%s,%s", parent, name, target);
	in = make_request(&c, parent, name, S_IFLNK | 0777);
	in.umask = 0;
	in.target = target;
	in.target_len = strlen(target);
	make(&c, &in);
}

void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct call c;

	call_begin_once(&c, req, "unlink");
	call_args(&c, "%" PRIu64 ",%s", parent, name);
	reply_status(&c, cfs_vfs_unlink(c.vfs, &c.ctx, parent, name, strlen(name)));
}

void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct call c;

	call_begin_once(&c, req, "rmdir");
	call_args(&c, "%" PRIu64 ",%s", parent, name);
	reply_status(&c, cfs_vfs_rmdir(c.vfs, &c.ctx, parent, name, strlen(name)));
}

static void apply_rename(struct blocking *b)
{
	struct call *c = &b->call;
	struct cfs_rename in = b->rename;

	in.src_name = b->iov[0].iov_base;
	in.dst_name = in.src_name + in.src_len + 1;
	if (b->n_iov > 1) /* it was not queued, which joins the names */
		in.dst_name = b->iov[1].iov_base;
	reply_status(c, cfs_vfs_rename(c->vfs, &c->ctx, &in));
}

void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
	       const char *new_name, unsigned int flags)
{
	size_t len = strlen(name), new_len = strlen(new_name);
	struct blocking b = {
		.apply = apply_rename,
		.iov = {{(void *)(uintptr_t)name, len + 1},
			{(void *)(uintptr_t)new_name, new_len + 1}},
		.n_iov = 2,
		.size = len + new_len + 2,
		.rename =
			{
				.src_parent = parent,
				.dst_parent = new_parent,
				.src_len = len,
				.dst_len = new_len,
				.flags = flags,
			},
	};

	call_begin_once(&b.call, req, "rename");
	call_args(&b.call, "%" PRIu64 ",%s,%" PRIu64 ",%s,%u", parent, name, new_parent, new_name,
		  flags);
	/* RENAME_WHITEOUT has no meaning in the format. */
	if (flags & ~(unsigned)(CFS_RENAME_NOREPLACE | CFS_RENAME_EXCHANGE))
		reply_status(&b.call, -EINVAL);
	else
		blocking_run(&b, cfs_vfs_has_closed(b.call.vfs));
}

void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
	struct cfs_vfs_entry e;
	struct call c;
	int r;

	ino &= ~CFS_VFS_OTHER_NODE;
	call_begin_once(&c, req, "link");
	call_args(&c, "%" PRIu64 ",%" PRIu64 ",%s", ino, parent, name);
	r = cfs_vfs_link(c.vfs, &c.ctx, ino, parent, name, strlen(name), &e);
	reply_entry(&c, r, &e);
}

void op_access(fuse_req_t req, fuse_ino_t ino, int mask)
{
	struct call c;

	call_begin(&c, req, "access");
	call_args(&c, "%" PRIu64 ",%#x", ino, (unsigned)mask);
	reply_status(&c, cfs_vfs_access(c.vfs, &c.ctx, ino, mask));
}

void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct cfs_statfs s;
	struct call c;
	int r;

	call_begin(&c, req, "statfs");
	call_args(&c, "%" PRIu64, ino);
	r = cfs_vfs_statfs(c.vfs, &c.ctx, ino, &s);
	reply_statfs(&c, r, &s);
}
