/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuse-internal.h"

#define WRITE_IOV 8

void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct cfs_vfs_open o;
	struct call c;
	int r;

	call_begin_once(&c, req, "open");
	call_args(&c, "%" PRIu64 ",%#x", ino, (unsigned)fi->flags);
	r = cfs_vfs_open(c.vfs, &c.ctx, ino, fi->flags, &o);
	reply_open(&c, r, &o, fi);
}

void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
	       struct fuse_file_info *fi)
{
	struct cfs_vfs_entry e;
	struct cfs_vfs_open o;
	struct cfs_mknod in;
	struct call c;
	int r;

	call_begin_once(&c, req, "create");
	call_args(&c, "%" PRIu64 ",%s,%#o,%#x", parent, name, mode, (unsigned)fi->flags);
	in = make_request(&c, parent, name, (mode & 07777) | S_IFREG);
	r = cfs_vfs_create_file(c.vfs, &c.ctx, &in, fi->flags, &e, &o);
	reply_create(&c, r, &e, &o, fi);
}

void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	struct cfs_segs segs;
	struct call c;
	int r;

	call_begin(&c, req, "read");
	call_args(&c, "%" PRIu64 ",%zu,%lld,%#" PRIx64, ino, size, (long long)off, fi->fh);
	/* Who reads the log would else never come to its end. */
	if (ino >= CFS_SPECIAL_INO && ino < CFS_SPECIAL_INO_END)
		c.logged = false;
	cfs_segs_init(&segs);
	r = cfs_vfs_read(c.vfs, &c.ctx, fi->fh, (uint64_t)off, (uint32_t)size, &segs);
	reply_segs(&c, r, &segs);
}

void op_write_buf(fuse_req_t req, fuse_ino_t ino, struct fuse_bufvec *src, off_t off,
		  struct fuse_file_info *fi)
{
	size_t size = fuse_buf_size(src), i, n = 0;
	struct iovec iov[WRITE_IOV];
	uint64_t at = (uint64_t)off;
	struct call c;
	bool append;
	int r;

	if (fi->flags & O_APPEND)
		call_begin_once(&c, req, "write");
	else
		call_begin(&c, req, "write");
	call_args(&c, "%" PRIu64 ",%zu,%lld,%#" PRIx64, ino, size, (long long)off, fi->fh);
	for (i = src->idx; i < src->count && n < WRITE_IOV; i++, n++) {
		if (src->buf[i].flags & FUSE_BUF_IS_FD)
			break;
		iov[n].iov_base = src->buf[i].mem;
		iov[n].iov_len = src->buf[i].size;
	}
	/* Splicing has not been asked for, so that one piece of memory is what comes. */
	if (i < src->count || src->off) {
		reply_status(&c, -EIO);
		return;
	}
	/* With the kernel's write-back cache pages come at the offsets that the kernel chose. */
	append = (fi->flags & O_APPEND) && !fi->writepage && !c.fuse->conf.writeback_cache;
	r = cfs_vfs_write(c.vfs, &c.ctx, fi->fh, at, append, iov, (int)n, &at);
	if (r < 0) {
		reply_status(&c, r);
		return;
	}
	fuse_reply_write(req, size);
	call_end(&c, 0);
	/* Another mount has made the file longer: the kernel's pages are for the wrong place. */
	if (at != (uint64_t)off)
		fuse_lowlevel_notify_inval_inode(c.fuse->session, ino, 0, 0);
}

void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct call c;

	call_begin(&c, req, "flush");
	call_args(&c, "%" PRIu64 ",%#" PRIx64, ino, fi->fh);
	reply_status(&c, cfs_vfs_flush_file(c.vfs, &c.ctx, fi->fh, fi->lock_owner));
}

void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct call c;

	call_begin(&c, req, "release");
	call_args(&c, "%" PRIu64 ",%#" PRIx64, ino, fi->fh);
	reply_status(&c, cfs_vfs_release(c.vfs, &c.ctx, fi->fh));
}

void op_fsync(fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *fi)
{
	struct call c;

	call_begin(&c, req, "fsync");
	call_args(&c, "%" PRIu64 ",%d,%#" PRIx64, ino, data_only, fi->fh);
	reply_status(&c, cfs_vfs_fsync(c.vfs, &c.ctx, fi->fh, data_only));
}

void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len,
		  struct fuse_file_info *fi)
{
	struct call c;

	call_begin(&c, req, "fallocate");
	call_args(&c, "%" PRIu64 ",%#x,%lld,%lld", ino, (unsigned)mode, (long long)off,
		  (long long)len);
	reply_status(&c, cfs_vfs_fallocate(c.vfs, &c.ctx, fi->fh, (unsigned)mode, (uint64_t)off,
					   (uint64_t)len));
}

void op_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
			struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t off_out,
			struct fuse_file_info *fi_out, size_t len, int flags)
{
	uint64_t copied = 0;
	struct call c;
	int r;

	call_begin(&c, req, "copy_file_range");
	call_args(&c, "%" PRIu64 ",%lld,%" PRIu64 ",%lld,%zu", ino_in, (long long)off_in, ino_out,
		  (long long)off_out, len);
	/* The reply has 32 bits; the caller comes back for the rest. */
	if (len > (1u << 30))
		len = 1u << 30;
	r = cfs_vfs_copy_range(c.vfs, &c.ctx, fi_in->fh, (uint64_t)off_in, fi_out->fh,
			       (uint64_t)off_out, len, &copied);
	if (r < 0) {
		reply_status(&c, r);
		return;
	}
	fuse_reply_write(req, copied);
	call_end(&c, 0);
}

void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi)
{
	uint64_t at = 0;
	struct call c;
	int r;

	call_begin(&c, req, "lseek");
	call_args(&c, "%" PRIu64 ",%lld,%d", ino, (long long)off, whence);
	if (whence != SEEK_DATA && whence != SEEK_HOLE)
		r = -EINVAL;
	else if (off < 0)
		r = -ENXIO;
	else
		r = cfs_vfs_seek(c.vfs, &c.ctx, fi->fh, (uint64_t)off, whence, &at);
	if (r < 0) {
		reply_status(&c, r);
		return;
	}
	fuse_reply_lseek(req, (off_t)at);
	call_end(&c, 0);
}
