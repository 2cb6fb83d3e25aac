/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/wouldblock.h"
#include "fuse-internal.h"

static void apply_open(struct blocking *b)
{
	struct call *c = &b->call;
	struct cfs_vfs_open o;
	int r;

	r = cfs_vfs_open(c->vfs, &c->ctx, b->ino, b->open_flags, &o);
	if (r == 0 && o.attr_old)
		drop_inode(c->fuse, b->ino & ~CFS_VFS_OTHER_NODE, -1);
	reply_open(c, r, &o);
}

void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct blocking b = {
		.apply = apply_open,
		.ino = node_of_request(request_of(req), ino),
		.open_flags = fi->flags,
	};

	call_begin_once(&b.call, req, "open");
	call_args(&b.call, "%" PRIu64 ",%#x", ino, (unsigned)fi->flags);
	blocking_run(&b, (fi->flags & O_TRUNC) && cfs_vfs_has_unstored(b.call.vfs, ino));
}

void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
	       struct fuse_file_info *fi)
{
	bool unnamed = request_of(req)->opcode == CFS_FUSE_TMPFILE;
	struct cfs_vfs_entry e;
	struct cfs_vfs_open o;
	struct cfs_mknod in;
	struct call c;
	int r;

	if (unnamed)
		name = "";
	call_begin_once(&c, req, unnamed ? "tmpfile" : "create");
	call_args(&c, "%" PRIu64 ",%s,%#o,%#x", parent, name, mode, (unsigned)fi->flags);
	in = make_request(&c, parent, name, (mode & 07777) | S_IFREG);
	r = cfs_vfs_create_file(c.vfs, &c.ctx, &in, fi->flags, &e, &o);
	reply_create(&c, r, &e, &o);
}

/* ---- requests that may block ---- */

/* The slot of a read, which takes one only when it has to wait for remote data. */
struct read_slot {
	struct cfs_fuse *fuse;
	bool mine, refused;
};

static bool take_read_slot(void *arg)
{
	struct read_slot *slot = arg;

	if (!slot->mine && !slot->refused) {
		slot->mine = admission_try(slot->fuse);
		slot->refused = !slot->mine;
	}
	return slot->mine;
}

/* The program was killed, another process is to serve it, or the file system is unmounted. */
static bool is_abandoned(void *arg)
{
	const struct call *c = arg;

	return killable_was_answered(c->killable) || atomic_load(&c->fuse->handing_over) ||
	       cfs_fuse_has_ended(c->fuse->device.fd);
}

static int read_file(struct blocking *b, struct cfs_async *async, struct cfs_segs *ret)
{
	struct call *c = &b->call;
	int r;

	cfs_abandoned_hook(is_abandoned, c);
	r = cfs_vfs_read(c->vfs, &c->ctx, b->fh, b->off, b->want, async, ret);
	cfs_abandoned_hook(NULL, NULL);
	return r;
}

/* A handover ends the waits of reads: the kernel resends them to the next process. */
static void reply_read(struct call *c, int r, struct cfs_segs *segs)
{
	if (r < 0 && atomic_load(&c->fuse->handing_over)) {
		call_drop(c);
		cfs_segs_release(segs);
	} else {
		reply_segs(c, r, segs);
	}
}

static void apply_read(struct blocking *b)
{
	struct call *c = &b->call;
	struct cfs_segs segs;
	int r;

	cfs_segs_init(&segs);
	cfs_set_repeated(true);
	r = read_file(b, NULL, &segs);
	cfs_set_repeated(false);
	reply_read(c, r, &segs);
}

void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	struct blocking b = {
		.apply = apply_read,
		.fh = fi->fh,
		.off = (uint64_t)off,
		.want = (uint32_t)size,
		.async.keep = async_keep,
	};
	struct call *c = &b.call;
	struct read_slot slot = {0};
	struct cfs_segs segs;
	int r;

	call_begin(c, req, "read");
	call_args(c, "%" PRIu64 ",%zu,%lld,%#" PRIx64, ino, size, (long long)off, fi->fh);
	/* Reads of .accesslog are not logged: they would feed themselves. */
	if (ino >= CFS_SPECIAL_INO && ino < CFS_SPECIAL_INO_END)
		c->logged = false;
	cfs_segs_init(&segs);
	slot.fuse = c->fuse;
	cfs_would_block_hook(take_read_slot, &slot);
	r = read_file(&b, c->id.entry ? NULL : &b.async, &segs);
	cfs_would_block_hook(NULL, NULL);
	if (r == -EBUSY && slot.refused) {
		blocking_queue(&b);
		return;
	}
	if (r == -EINPROGRESS)
		call_leave();
	else
		reply_read(c, r, &segs);
	if (slot.mine)
		admission_release(slot.fuse);
}

static int drop_set_id(struct call *c, fuse_ino_t ino, uint64_t fh)
{
	int r = cfs_vfs_drop_set_id(c->vfs, &c->ctx, fh);

	if (r > 0) /* the kernel's attributes are old; its pages are not */
		drop_inode(c->fuse, ino, -1);
	return r < 0 ? r : 0;
}

static void apply_write(struct blocking *b)
{
	struct call *c = &b->call;
	uint64_t at = b->off;
	int r = 0;

	if (b->drops_set_id)
		r = drop_set_id(c, b->ino, b->fh);
	if (r == 0)
		r = cfs_vfs_write(c->vfs, &c->ctx, b->fh, at, b->append, b->iov, b->n_iov, &at);
	reply_written(c, r, b->size);
	/* Another mount has extended the file: the kernel has the data at the wrong offset. */
	if (r == 0 && at != b->off)
		drop_inode(c->fuse, b->ino, (int64_t)b->off);
}

void op_write_buf(fuse_req_t req, fuse_ino_t ino, struct fuse_bufvec *src, off_t off,
		  struct fuse_file_info *fi)
{
	struct blocking b = {
		.apply = apply_write,
		.ino = ino,
		.fh = fi->fh,
		.off = (uint64_t)off,
		.size = fuse_buf_size(src),
		.drops_set_id = request_drops_set_id(request_of(req)),
	};
	struct call *c = &b.call;
	size_t i;

	if (fi->flags & O_APPEND)
		call_begin_once(c, req, "write");
	else
		call_begin(c, req, "write");
	call_args(c, "%" PRIu64 ",%zu,%lld,%#" PRIx64, ino, b.size, (long long)off, fi->fh);
	for (i = src->idx; i < src->count && b.n_iov < BLOCKING_IOV; i++, b.n_iov++) {
		if (src->buf[i].flags & FUSE_BUF_IS_FD)
			break;
		b.iov[b.n_iov].iov_base = src->buf[i].mem;
		b.iov[b.n_iov].iov_len = src->buf[i].size;
	}
	/* Splicing is off, so the data arrives as one piece of memory. */
	if (i < src->count || src->off) {
		reply_status(c, -EIO);
		return;
	}
	/* With the write-back cache the kernel chooses the offsets of pages, even for O_APPEND. */
	b.append = (fi->flags & O_APPEND) && !fi->writepage && !c->fuse->conf.writeback_cache;
	blocking_run(&b, true);
}

static void apply_flush(struct blocking *b)
{
	struct call *c = &b->call;

	reply_status(c, cfs_vfs_flush_file(c->vfs, &c->ctx, b->fh, b->owner));
}

void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct blocking b = {.apply = apply_flush, .fh = fi->fh, .owner = fi->lock_owner};

	call_begin(&b.call, req, "flush");
	call_args(&b.call, "%" PRIu64 ",%#" PRIx64, ino, fi->fh);
	blocking_run(&b, cfs_vfs_is_dirty(b.call.vfs, fi->fh));
}

static void apply_fsync(struct blocking *b)
{
	struct call *c = &b->call;

	reply_status(c, cfs_vfs_fsync(c->vfs, &c->ctx, b->fh));
}

void op_fsync(fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *fi)
{
	struct blocking b = {.apply = apply_fsync, .fh = fi->fh};

	call_begin(&b.call, req, "fsync");
	call_args(&b.call, "%" PRIu64 ",%d,%#" PRIx64, ino, data_only, fi->fh);
	blocking_run(&b, true);
}

static void apply_release(struct blocking *b)
{
	struct call *c = &b->call;

	reply_status(c, cfs_vfs_release(c->vfs, &c->ctx, b->fh));
}

void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct blocking b = {.apply = apply_release, .fh = fi->fh};

	call_begin(&b.call, req, "release");
	call_args(&b.call, "%" PRIu64 ",%#" PRIx64, ino, fi->fh);
	blocking_run(&b, cfs_vfs_is_dirty(b.call.vfs, fi->fh));
}

static void apply_fallocate(struct blocking *b)
{
	struct call *c = &b->call;
	int r = 0;

	if (c->ctx.uid != 0)
		r = drop_set_id(c, b->ino, b->fh);
	if (r == 0)
		r = cfs_vfs_fallocate(c->vfs, &c->ctx, b->fh, b->fallocate.mode, b->off,
				      b->fallocate.len);
	reply_status(c, r);
}

void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len,
		  struct fuse_file_info *fi)
{
	struct blocking b = {
		.apply = apply_fallocate,
		.ino = ino,
		.fh = fi->fh,
		.off = (uint64_t)off,
		.fallocate = {.mode = (unsigned)mode, .len = (uint64_t)len},
	};

	call_begin(&b.call, req, "fallocate");
	call_args(&b.call, "%" PRIu64 ",%#x,%lld,%lld", ino, (unsigned)mode, (long long)off,
		  (long long)len);
	blocking_run(&b, cfs_vfs_has_unstored(b.call.vfs, ino));
}

#define COPY_STEP ((uint64_t)1 << 30) /* bounds the metadata transactions of a copy */

/* Ends early at the end of the source, when the caller is interrupted, and at an error after some
 * bytes: the caller goes on with the rest, and gets the error then. */
static int copy_range(struct blocking *b, uint64_t *ret_copied)
{
	const struct cfs_ctx *ctx = &b->call.ctx;
	uint64_t done = 0, want, n;
	int r;

	do {
		n = 0;
		want = CFS_MIN(b->copy.len - done, COPY_STEP);
		r = cfs_vfs_copy_range(b->call.vfs, ctx, b->copy.src_fh, b->copy.src_off + done,
				       b->fh, b->off + done, want, &n);
		done += n;
	} while (r == 0 && n == want && done < b->copy.len &&
		 !ctx->interrupted(ctx->interrupted_arg));
	*ret_copied = done;
	return done ? 0 : r;
}

static void apply_copy(struct blocking *b)
{
	struct call *c = &b->call;
	uint64_t copied = 0;
	int r = 0;

	if (c->ctx.uid != 0)
		r = drop_set_id(c, b->ino, b->fh);
	if (r == 0)
		r = copy_range(b, &copied);
	reply_copied(c, r, copied, b->copy.wide);
}

void op_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
			struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t off_out,
			struct fuse_file_info *fi_out, size_t len, int flags)
{
	bool wide = request_of(req)->opcode == CFS_FUSE_COPY_FILE_RANGE_64;
	fuse_ino_t dst = ino_out & ~CFS_VFS_OTHER_NODE;
	struct blocking b = {
		.apply = apply_copy,
		.ino = dst,
		.fh = fi_out->fh,
		.off = (uint64_t)off_out,
		.copy =
			{
				.src_fh = fi_in->fh,
				.src_off = (uint64_t)off_in,
				.len = wide ? len : CFS_MIN(len, COPY_STEP),
				.wide = wide,
			},
	};
	struct cfs_vfs *v;

	call_begin(&b.call, req, "copy_file_range");
	call_args(&b.call, "%" PRIu64 ",%lld,%" PRIu64 ",%lld,%zu", ino_in, (long long)off_in, dst,
		  (long long)off_out, len);
	v = b.call.vfs;
	blocking_run(&b, cfs_vfs_has_unstored(v, ino_in) || cfs_vfs_has_unstored(v, dst));
}

/* ---- other operations ---- */

void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi)
{
	uint64_t at = 0;
	struct call c;
	int r;

	call_begin(&c, req, "lseek");
	call_args(&c, "%" PRIu64 ",%lld,%d", ino, (long long)off, whence);
	if (whence != SEEK_DATA && whence != SEEK_HOLE)
		r = -EINVAL;
	/* Only the kernel knows its dirty pages. ENOSYS makes it answer itself: all is data. */
	else if (c.fuse->conf.writeback_cache)
		r = -ENOSYS;
	else if (off < 0)
		r = -ENXIO;
	else
		r = cfs_vfs_seek(c.vfs, &c.ctx, fi->fh, (uint64_t)off, whence, &at);
	reply_seek(&c, r, at);
}
