/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/bytes.h"
#include "fuse-internal.h"

#define LISTING_MAX (32u << 10) /* on the stack; larger replies get this much */

struct listing {
	fuse_req_t req;
	char *buf;
	size_t size, used;
	bool plus;
};

void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct call c;
	uint64_t fh;
	int r;

	call_begin_once(&c, req, "opendir");
	call_args(&c, "%" PRIu64, ino);
	r = cfs_vfs_opendir(c.vfs, &c.ctx, ino, &fh);
	if (r < 0) {
		reply_status(&c, r);
		return;
	}
	fi->fh = fh;
	if (fuse_reply_open(req, fi) == -ENOENT)
		cfs_vfs_releasedir(c.vfs, &c.ctx, fh);
	call_end(&c, 0);
}

static int add_entry(void *arg, const struct cfs_vfs_dirent *d)
{
	struct listing *l = arg;
	struct fuse_entry_param e;
	char name[CFS_NAME_MAX + 1];
	size_t n, left = l->size - l->used;

	memcpy(name, d->name, d->name_len);
	name[d->name_len] = '\0';
	if (d->entry) {
		fill_entry(&e, d->entry);
	} else {
		/* Node id 0 in a listing with attributes: "not known", the kernel looks it up. */
		memset(&e, 0, sizeof(e));
		e.attr.st_ino = d->ino;
		e.attr.st_mode = type_mode(d->type);
	}
	if (l->plus)
		n = fuse_add_direntry_plus(l->req, l->buf + l->used, left, name, &e,
					   (off_t)d->next_off);
	else
		n = fuse_add_direntry(l->req, l->buf + l->used, left, name, &e.attr,
				      (off_t)d->next_off);
	if (n > left)
		return 1;
	l->used += n;
	return 0;
}

static void list(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, uint64_t fh, bool plus)
{
	char buf[LISTING_MAX];
	struct listing l = {
		.req = req,
		.buf = buf,
		.size = CFS_MIN(size, sizeof(buf)),
		.plus = plus,
	};
	struct call c;
	int r;

	call_begin(&c, req, plus ? "readdirplus" : "readdir");
	call_args(&c, "%" PRIu64 ",%zu,%lld", ino, size, (long long)off);
	r = cfs_vfs_readdir(c.vfs, &c.ctx, fh, (uint64_t)off, plus, add_entry, &l);
	if (r < 0) {
		reply_status(&c, r);
		return;
	}
	fuse_reply_buf(req, l.buf, l.used);
	call_end(&c, 0);
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

void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *fi)
{
	struct call c;

	call_begin(&c, req, "fsyncdir");
	call_args(&c, "%" PRIu64, ino);
	reply_status(&c, cfs_vfs_fsyncdir(c.vfs, &c.ctx, fi->fh));
}
