/* SPDX-License-Identifier: Apache-2.0 */
/* Replies in the format of fuse(4), sent through the channel. libfuse only frees its request. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "fuse-internal.h"

#define BLKSIZE		   65536
#define STATFS_BSIZE	   4096
#define NO_MEMORY_AGAIN_MS 60000
#define IOV_INLINE	   32
#define IOV_REPLY	   (IOV_MAX - 1) /* pieces of one writev(2), beside the header */

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

/* Traces a reply as libfuse does. */
static void trace(const struct call *c, int error, const struct iovec *iov, int n)
{
	fuse_log(FUSE_LOG_DEBUG, "   unique: %llu, error: %d, outsize: %zu\n",
		 (unsigned long long)c->id.unique, error,
		 sizeof(struct fuse_out_header) + cfs_iov_len(iov + 1, n - 1));
}

/* iov[0] is left free. Negative: nothing of the reply has arrived. */
static int answer(struct call *c, int error, struct iovec *iov, int n)
{
	int r;

	if (c->fuse->conf.debug)
		trace(c, error, iov, n);
	r = channel_reply(c->fuse->channel, &c->id, c->op, error, iov, n);
	fuse_reply_none(c->req);
	return r;
}

/* len 0: sends the header only. */
static int answer_bytes(struct call *c, const void *buf, size_t len)
{
	struct iovec iov[2] = {{0}, {.iov_base = (void *)buf, .iov_len = len}};

	return answer(c, 0, iov, len ? 2 : 1);
}

/* Volume format, section 5: blocks of 512 bytes are counted from the length, not from what is
 * stored. */
static void fill_attr(struct fuse_attr *ret, cfs_ino_t ino, const struct cfs_attr *a)
{
	memset(ret, 0, sizeof(*ret));
	ret->ino = ino;
	ret->mode = type_mode(a->type) | a->mode;
	ret->nlink = a->nlink;
	ret->uid = a->uid;
	ret->gid = a->gid;
	ret->blksize = BLKSIZE;
	ret->atime = (uint64_t)a->atime.tv_sec;
	ret->mtime = (uint64_t)a->mtime.tv_sec;
	ret->ctime = (uint64_t)a->ctime.tv_sec;
	ret->atimensec = (uint32_t)a->atime.tv_nsec;
	ret->mtimensec = (uint32_t)a->mtime.tv_nsec;
	ret->ctimensec = (uint32_t)a->ctime.tv_nsec;
	switch (a->type) {
	case CFS_TYPE_FILE:
	case CFS_TYPE_DIR:
	case CFS_TYPE_SYMLINK:
		ret->size = a->length;
		ret->blocks = CFS_DIV_UP(a->length, 512);
		break;
	case CFS_TYPE_BLOCK:
	case CFS_TYPE_CHAR:
		/* The same encoding as the kernel's. */
		ret->rdev = a->rdev;
		break;
	}
}

void fill_entry(struct cfs_vfs *v, struct fuse_entry_out *ret, const struct cfs_vfs_entry *e)
{
	*ret = (struct fuse_entry_out){
		.nodeid = cfs_vfs_node(v, e->ino),
		.entry_valid = e->entry_ms / 1000,
		.entry_valid_nsec = e->entry_ms % 1000 * 1000000,
		.attr_valid = e->attr_ms / 1000,
		.attr_valid_nsec = e->attr_ms % 1000 * 1000000,
	};
	fill_attr(&ret->attr, e->ino, &e->attr);
}

/* A line a minute: a program that meets ENOMEM tries again and again. */
static void tell_no_memory(struct cfs_fuse *f)
{
	uint64_t now_ms = cfs_now_ms(), told_ms = atomic_load(&f->no_memory_ms);

	if ((!told_ms || now_ms - told_ms >= NO_MEMORY_AGAIN_MS) &&
	    atomic_compare_exchange_strong(&f->no_memory_ms, &told_ms, now_ms))
		cfs_err("requests fail with ENOMEM, as the system gives this process no memory "
			"or threads (limits: ulimit -d, ulimit -v, ulimit -u, pids.max): mount=%s",
			f->mount_point);
}

void reply_status(struct call *c, int r)
{
	struct iovec head;

	if (r == -ENOMEM)
		tell_no_memory(c->fuse);
	answer(c, r == -ETIMEDOUT ? -EIO : r, &head, 1);
	call_end(c, r);
}

/* The reply has a struct of fixed size, unless r is an error. */
static void reply_struct(struct call *c, int r, const void *out, size_t size)
{
	if (r < 0) {
		reply_status(c, r);
		return;
	}
	answer_bytes(c, out, size);
	call_end(c, 0);
}

void reply_entry(struct call *c, int r, const struct cfs_vfs_entry *e)
{
	reply_node(c, r, e, 0);
}

void reply_node(struct call *c, int r, const struct cfs_vfs_entry *e, cfs_ino_t node)
{
	struct fuse_entry_out out;

	if (r == 0)
		fill_entry(c->vfs, &out, e);
	if (r == 0 && node)
		out.nodeid = node;
	reply_struct(c, r, &out, sizeof(out));
}

void reply_absent(struct call *c, uint32_t entry_ms)
{
	const struct fuse_entry_out out = {
		.entry_valid = entry_ms / 1000,
		.entry_valid_nsec = entry_ms % 1000 * 1000000,
	};

	answer_bytes(c, &out, sizeof(out));
	call_end(c, -ENOENT);
}

void reply_attr(struct call *c, int r, const struct cfs_vfs_attr *a)
{
	struct fuse_attr_out out = {0};

	if (r == 0) {
		out.attr_valid = a->attr_ms / 1000;
		out.attr_valid_nsec = a->attr_ms % 1000 * 1000000;
		fill_attr(&out.attr, a->ino, &a->attr);
	}
	reply_struct(c, r, &out, sizeof(out));
}

/* Interface 7.40; the headers at build time may lack it. */
#define OPEN_PASSTHROUGH (1u << 7)
struct open_out {
	uint64_t fh;
	uint32_t open_flags;
	int32_t backing_id;
};
_Static_assert(sizeof(struct open_out) == sizeof(struct fuse_open_out),
	       "the layout is the kernel's");

static struct open_out to_open(const struct cfs_vfs_open *o)
{
	return (struct open_out){
		.fh = o->fh,
		.open_flags = (o->keep_cache ? FOPEN_KEEP_CACHE : 0) |
			      (o->cache_dir ? FOPEN_CACHE_DIR : 0) |
			      (o->direct_io ? FOPEN_DIRECT_IO : 0) |
			      (o->backing ? OPEN_PASSTHROUGH : 0),
		.backing_id = o->backing,
	};
}

/* release: closes the handle. When the reply does not arrive, the kernel sends no release. */
static void reply_handle(struct call *c, int r, const struct cfs_vfs_open *o,
			 int (*release)(struct cfs_vfs *, const struct cfs_ctx *, uint64_t))
{
	struct open_out out;

	if (r < 0) {
		reply_status(c, r);
		return;
	}
	out = to_open(o);
	if (answer_bytes(c, &out, sizeof(out)) < 0)
		release(c->vfs, &c->ctx, o->fh);
	call_end(c, 0);
}

void reply_open(struct call *c, int r, const struct cfs_vfs_open *o)
{
	reply_handle(c, r, o, cfs_vfs_release);
}

void reply_opendir(struct call *c, int r, const struct cfs_vfs_open *o)
{
	reply_handle(c, r, o, cfs_vfs_releasedir);
}

void reply_create(struct call *c, int r, const struct cfs_vfs_entry *e,
		  const struct cfs_vfs_open *o)
{
	struct fuse_entry_out entry;
	struct open_out open;
	struct iovec iov[3] = {
		{0},
		{.iov_base = &entry, .iov_len = sizeof(entry)},
		{.iov_base = &open, .iov_len = sizeof(open)},
	};

	if (r < 0) {
		reply_status(c, r);
		return;
	}
	fill_entry(c->vfs, &entry, e);
	open = to_open(o);
	if (answer(c, 0, iov, 3) < 0)
		cfs_vfs_release(c->vfs, &c->ctx, o->fh);
	call_end(c, 0);
}

void reply_written(struct call *c, int r, uint64_t n)
{
	const struct fuse_write_out out = {.size = (uint32_t)n};

	reply_struct(c, r, &out, sizeof(out));
}

void reply_copied(struct call *c, int r, uint64_t n, bool wide)
{
	const struct cfs_copy_file_range_out out = {.bytes_copied = n};

	if (wide)
		reply_struct(c, r, &out, sizeof(out));
	else
		reply_written(c, r, n);
}

void reply_seek(struct call *c, int r, uint64_t off)
{
	const struct fuse_lseek_out out = {.offset = off};

	reply_struct(c, r, &out, sizeof(out));
}

void reply_statfs(struct call *c, int r, const struct cfs_statfs *s)
{
	struct fuse_statfs_out out = {0};

	if (r == 0)
		out.st = (struct fuse_kstatfs){
			.bsize = STATFS_BSIZE,
			.frsize = STATFS_BSIZE,
			.blocks = s->total_bytes / STATFS_BSIZE,
			.bfree = s->avail_bytes / STATFS_BSIZE,
			.bavail = s->avail_bytes / STATFS_BSIZE,
			.files = s->total_inodes,
			.ffree = s->avail_inodes,
			.namelen = CFS_NAME_MAX,
		};
	reply_struct(c, r, &out, sizeof(out));
}

void reply_lock(struct call *c, int r, const struct cfs_plock *p)
{
	static const uint32_t types[] = {
		[CFS_LOCK_READ] = F_RDLCK,
		[CFS_LOCK_WRITE] = F_WRLCK,
		[CFS_LOCK_NONE] = F_UNLCK,
	};
	struct fuse_lk_out out = {.lk.type = F_UNLCK};

	if (r == 0 && p->type != CFS_LOCK_NONE)
		out.lk = (struct fuse_file_lock){
			.start = p->start,
			.end = CFS_MIN(p->end, (uint64_t)INT64_MAX),
			.type = types[p->type],
			.pid = p->pid,
		};
	reply_struct(c, r, &out, sizeof(out));
}

void reply_size(struct call *c, uint64_t n)
{
	const struct fuse_getxattr_out out = {.size = (uint32_t)n};

	reply_struct(c, 0, &out, sizeof(out));
}

void reply_ioctl(struct call *c, const void *buf, size_t len)
{
	struct fuse_ioctl_out out = {0};
	struct iovec iov[3] = {
		{0},
		{.iov_base = &out, .iov_len = sizeof(out)},
		{.iov_base = (void *)buf, .iov_len = len},
	};

	answer(c, 0, iov, len ? 3 : 2);
	call_end(c, 0);
}

void reply_bytes(struct call *c, const void *buf, size_t len)
{
	reply_struct(c, 0, buf, len);
}

/* Lists the pieces in iov[1] and on. False: there are too many, or one has no page. */
static bool inline_iov(const struct cfs_segs *s, struct iovec iov[1 + IOV_INLINE])
{
	size_t i;

	if (s->n > IOV_INLINE)
		return false;
	for (i = 0; i < s->n; i++) {
		if (!s->v[i].page)
			return false;
		iov[1 + i].iov_base = s->v[i].page->data + s->v[i].off;
		iov[1 + i].iov_len = s->v[i].len;
	}
	return true;
}

static int answer_joined(struct call *c, const struct cfs_segs *s)
{
	char *bytes = malloc(s->len);

	if (!bytes)
		return -ENOMEM;
	cfs_segs_copy_out(s, 0, bytes, s->len);
	answer_bytes(c, bytes, s->len);
	free(bytes);
	return 0;
}

/* Replies from an allocated vector. Joins the pieces when writev(2) does not take so many. */
static int answer_copied(struct call *c, const struct cfs_segs *s)
{
	cfs_auto_free struct iovec *pieces = NULL, *iov = NULL;
	int n = cfs_segs_iov(s, &pieces);

	if (n < 0)
		return n;
	iov = n > IOV_REPLY ? NULL : malloc((size_t)(1 + n) * sizeof(*iov));
	if (!iov)
		return answer_joined(c, s);
	memcpy(iov + 1, pieces, (size_t)n * sizeof(*iov));
	answer(c, 0, iov, 1 + n);
	return 0;
}

void reply_segs(struct call *c, int r, struct cfs_segs *s)
{
	struct iovec iov[1 + IOV_INLINE];

	if (r == 0 && inline_iov(s, iov))
		answer(c, 0, iov, 1 + (int)s->n);
	else if (r == 0)
		r = answer_copied(c, s);
	if (r < 0)
		reply_status(c, r);
	else
		call_end(c, 0);
	cfs_segs_release(s);
}
