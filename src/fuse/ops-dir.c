/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "base/bytes.h"
#include "fuse-internal.h"

#define LISTING_MAX (32u << 10) /* bytes of a reply, which is made on the stack */

struct dir_reply {
	struct cfs_vfs *vfs;
	uint8_t *buf;
	size_t size, used;
	bool plus;
};

void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct cfs_vfs_open o;
	struct call c;
	int r;

	call_begin_once(&c, req, "opendir");
	call_args(&c, "%" PRIu64, ino);
	r = cfs_vfs_opendir(c.vfs, &c.ctx, ino, &o);
	reply_opendir(&c, r, &o);
}

static int add_entry(void *arg, const struct cfs_vfs_dirent *d)
{
	struct dir_reply *l = arg;
	size_t before = l->plus ? offsetof(struct fuse_direntplus, dirent) : 0;
	size_t used = before + FUSE_NAME_OFFSET + d->name_len, size = FUSE_DIRENT_ALIGN(used);
	uint8_t *at = l->buf + l->used;
	/* Node id 0 makes the kernel look the name up. */
	struct fuse_entry_out e = {.attr = {.ino = d->ino, .mode = type_mode(d->type)}};
	struct fuse_dirent head;

	if (size > l->size - l->used)
		return 1;
	if (d->entry)
		fill_entry(l->vfs, &e, d->entry);
	head = (struct fuse_dirent){
		.ino = e.attr.ino,
		.off = d->next_off,
		.namelen = (uint32_t)d->name_len,
		.type = (e.attr.mode & S_IFMT) >> 12,
	};
	memcpy(at, &e, before);
	memcpy(at + before, &head, FUSE_NAME_OFFSET);
	memcpy(at + before + FUSE_NAME_OFFSET, d->name, d->name_len);
	memset(at + used, 0, size - used);
	l->used += size;
	return 0;
}

static void list(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, uint64_t fh, bool plus)
{
	uint8_t buf[LISTING_MAX];
	struct dir_reply l = {
		.buf = buf,
		.size = CFS_MIN(size, sizeof(buf)),
		.plus = plus,
	};
	struct call c;
	int r;

	call_begin(&c, req, plus ? "readdirplus" : "readdir");
	l.vfs = c.vfs;
	call_args(&c, "%" PRIu64 ",%zu,%lld", ino, size, (long long)off);
	r = cfs_vfs_readdir(c.vfs, &c.ctx, fh, (uint64_t)off, plus, add_entry, &l);
	if (r < 0)
		reply_status(&c, r);
	else
		reply_bytes(&c, l.buf, l.used);
}

void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	list(req, ino, size, off, fi->fh, false);
}

void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi)
{
	list(req, ino, size, off, fi->fh, true);
}

void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct call c;

	call_begin(&c, req, "releasedir");
	call_args(&c, "%" PRIu64 ",%#" PRIx64, ino, fi->fh);
	reply_status(&c, cfs_vfs_releasedir(c.vfs, &c.ctx, fi->fh));
}

static void apply_fsyncdir(struct blocking *b)
{
	struct call *c = &b->call;

	reply_status(c, cfs_vfs_fsyncdir(c->vfs, &c->ctx, b->fh));
}

void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *fi)
{
	struct blocking b = {.apply = apply_fsyncdir, .fh = fi->fh};

	call_begin(&b.call, req, "fsyncdir");
	call_args(&b.call, "%" PRIu64, ino);
	blocking_run(&b, cfs_vfs_has_closed(b.call.vfs));
}
