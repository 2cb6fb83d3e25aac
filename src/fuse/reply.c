/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/bytes.h"
#include "fuse-internal.h"

#define BLKSIZE	   65536
#define IOV_INLINE 32
/* libfuse needs one of the vectors that writev(2) takes for the header; it never answers a request
 * whose reply is refused. */
#define IOV_REPLY (IOV_MAX - 1)

static int positive_errno(int r)
{
	return r == -ETIMEDOUT ? EIO : -r;
}

mode_t type_mode(uint8_t type)
{
	static const mode_t modes[] = {
		[CFS_TYPE_FILE] = S_IFREG,    [CFS_TYPE_DIR] = S_IFDIR,
		[CFS_TYPE_SYMLINK] = S_IFLNK, [CFS_TYPE_FIFO] = S_IFIFO,
		[CFS_TYPE_BLOCK] = S_IFBLK,   [CFS_TYPE_CHAR] = S_IFCHR,
		[CFS_TYPE_SOCKET] = S_IFSOCK,
	};

	return type < CFS_ARRAY_SIZE(modes) ? modes[type] : 0;
}

/* volume-format section 5: blocks count 512 bytes each of the length; only types with data have
 * any. */
static void fill_stat(struct stat *st, cfs_ino_t ino, const struct cfs_attr *a)
{
	memset(st, 0, sizeof(*st));
	st->st_ino = ino;
	st->st_mode = type_mode(a->type) | a->mode;
	st->st_nlink = a->nlink;
	st->st_uid = a->uid;
	st->st_gid = a->gid;
	st->st_blksize = BLKSIZE;
	st->st_atim = a->atime;
	st->st_mtim = a->mtime;
	st->st_ctim = a->ctime;
	switch (a->type) {
	case CFS_TYPE_FILE:
	case CFS_TYPE_DIR:
	case CFS_TYPE_SYMLINK:
		st->st_size = (off_t)a->length;
		st->st_blocks = (blkcnt_t)CFS_DIV_UP(a->length, 512);
		break;
	case CFS_TYPE_BLOCK:
	case CFS_TYPE_CHAR:
		/* The same encoding as the kernel's. */
		st->st_rdev = a->rdev;
		break;
	}
}

void fill_entry(struct fuse_entry_param *ret, const struct cfs_vfs_entry *e)
{
	memset(ret, 0, sizeof(*ret));
	ret->ino = e->ino;
	fill_stat(&ret->attr, e->ino, &e->attr);
	ret->attr_timeout = e->attr_ms / 1000.0;
	ret->entry_timeout = e->entry_ms / 1000.0;
}

void reply_status(struct call *c, int r)
{
	fuse_reply_err(c->req, positive_errno(r));
	call_end(c, r);
}

void reply_entry(struct call *c, int r, const struct cfs_vfs_entry *e)
{
	struct fuse_entry_param p;

	if (r < 0) {
		reply_status(c, r);
		return;
	}
	fill_entry(&p, e);
	fuse_reply_entry(c->req, &p);
	call_end(c, 0);
}

void reply_attr(struct call *c, int r, const struct cfs_vfs_attr *a)
{
	struct stat st;

	if (r < 0) {
		reply_status(c, r);
		return;
	}
	fill_stat(&st, a->ino, &a->attr);
	fuse_reply_attr(c->req, &st, a->attr_ms / 1000.0);
	call_end(c, 0);
}

static void fill_open(struct fuse_file_info *fi, const struct cfs_vfs_open *o)
{
	fi->fh = o->fh;
	fi->keep_cache = o->keep_cache;
	fi->direct_io = o->direct_io;
}

void reply_open(struct call *c, int r, const struct cfs_vfs_open *o, struct fuse_file_info *fi)
{
	if (r < 0) {
		reply_status(c, r);
		return;
	}
	fill_open(fi, o);
	/* -ENOENT: the caller was interrupted, no release will come. */
	if (fuse_reply_open(c->req, fi) == -ENOENT)
		cfs_vfs_release(c->vfs, &c->ctx, o->fh);
	call_end(c, 0);
}

void reply_create(struct call *c, int r, const struct cfs_vfs_entry *e,
		  const struct cfs_vfs_open *o, struct fuse_file_info *fi)
{
	struct fuse_entry_param p;

	if (r < 0) {
		reply_status(c, r);
		return;
	}
	fill_entry(&p, e);
	fill_open(fi, o);
	if (fuse_reply_create(c->req, &p, fi) == -ENOENT)
		cfs_vfs_release(c->vfs, &c->ctx, o->fh);
	call_end(c, 0);
}

/* True when each piece has a page and all fit into iov: the reply then needs no memory. */
static bool inline_iov(const struct cfs_segs *s, struct iovec iov[IOV_INLINE])
{
	size_t i;

	if (s->n > IOV_INLINE)
		return false;
	for (i = 0; i < s->n; i++) {
		if (!s->v[i].page)
			return false;
		iov[i].iov_base = s->v[i].page->data + s->v[i].off;
		iov[i].iov_len = s->v[i].len;
	}
	return true;
}

static int reply_joined(struct call *c, const struct cfs_segs *s)
{
	char *bytes = malloc(s->len);

	if (!bytes)
		return -ENOMEM;
	cfs_segs_copy_out(s, 0, bytes, s->len);
	fuse_reply_buf(c->req, bytes, s->len);
	free(bytes);
	return 0;
}

/* Copies the pieces into one allocation. */
static int reply_copied_iov(struct call *c, const struct cfs_segs *s)
{
	struct iovec *iov;
	int n = cfs_segs_iov(s, &iov), r = 0;

	if (n < 0)
		return n;
	if (n > IOV_REPLY)
		r = reply_joined(c, s);
	else
		fuse_reply_iov(c->req, iov, n);
	free(iov);
	return r;
}

void reply_segs(struct call *c, int r, struct cfs_segs *s)
{
	struct iovec iov[IOV_INLINE];

	if (r == 0 && !inline_iov(s, iov))
		r = reply_copied_iov(c, s);
	else if (r == 0 && s->n == 1)
		fuse_reply_buf(c->req, iov[0].iov_base, iov[0].iov_len);
	else if (r == 0)
		fuse_reply_iov(c->req, iov, (int)s->n);
	if (r < 0)
		reply_status(c, r);
	else
		call_end(c, 0);
	cfs_segs_release(s);
}
