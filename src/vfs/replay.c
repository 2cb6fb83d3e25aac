/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replay of requests that a process had taken before it died: the metadata shows whether it had
 * carried them out. Only requests that it had begun (ctx->replay) are checked.
 *
 *	making		the inode number, recorded before the call, is under the name
 *	linking		the name exists, and is the inode's
 *	removing	the name is gone
 *	renaming	the source is gone, and the target's inode is not the one recorded before,
 *			which the entry cache has: the kernel has just looked it up
 *	exchanging	the inode recorded as the source is under the target's name
 *	xattrs		the value is there, or gone
 *	appending	the bytes are at the offset where the kernel saw the end
 *	truncating	the handle of the open that does it was recorded
 *
 * All others can be carried out twice: reads, writes at an offset, attributes, locks of the same
 * owner, closes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "vfs-internal.h"

bool replay_made(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t parent, const char *name,
		 size_t len, cfs_ino_t ino, struct cfs_entry *ret)
{
	return ino && cfs_meta_lookup(v->conf.meta, ctx, parent, name, len, ret) == 0 &&
	       ret->ino == ino;
}

int replay_linked(struct cfs_vfs *v, const struct cfs_ctx *ctx, int r, cfs_ino_t ino,
		  cfs_ino_t parent, const char *name, size_t len, struct cfs_attr *ret)
{
	struct cfs_entry e;

	if (!ctx->replay || r != -EEXIST || !replay_made(v, ctx, parent, name, len, ino, &e))
		return r;
	*ret = e.attr;
	return 0;
}

int replay_removed(const struct cfs_ctx *ctx, int r, int gone)
{
	return ctx->replay && r == gone ? 0 : r;
}

void replay_record_target(struct cfs_vfs *v, const struct cfs_ctx *ctx,
			  const struct cfs_rename *req)
{
	if (ctx->record && !ctx->replay)
		record_ino(ctx, cache_peek_name(&v->cache, req->dst_parent, req->dst_name,
						req->dst_len, cfs_now_ms()));
}

int replay_renamed(struct cfs_vfs *v, const struct cfs_ctx *ctx, int r,
		   const struct cfs_rename *req)
{
	struct cfs_entry e;

	if (!ctx->replay || r != -ENOENT)
		return r;
	if (cfs_meta_lookup(v->conf.meta, ctx, req->dst_parent, req->dst_name, req->dst_len, &e) <
	    0)
		return r;
	/* The target is unchanged: another client removed the source. */
	return e.ino == recorded_ino(ctx) ? r : 0;
}

int replay_exchange(struct cfs_vfs *v, const struct cfs_ctx *ctx, const struct cfs_rename *req,
		    bool *ret_done)
{
	struct cfs_entry e;
	int r;

	*ret_done = false;
	if (!(req->flags & CFS_RENAME_EXCHANGE) || !ctx->record)
		return 0;
	*ret_done = replay_made(v, ctx, req->dst_parent, req->dst_name, req->dst_len,
				recorded_ino(ctx), &e);
	if (*ret_done)
		return 0;
	r = cfs_meta_lookup(v->conf.meta, ctx, req->src_parent, req->src_name, req->src_len, &e);
	if (r == 0)
		record_ino(ctx, e.ino);
	return r;
}

int replay_set_xattr(struct cfs_vfs *v, const struct cfs_ctx *ctx, int r, cfs_ino_t ino,
		     const char *name, const void *value, size_t size)
{
	char *have;

	if (!ctx->replay || r != -EEXIST)
		return r;
	have = malloc(size + 1);
	if (!have)
		return -ENOMEM;
	if (cfs_meta_getxattr(v->conf.meta, ctx, ino, name, have, size + 1) == (ssize_t)size &&
	    !memcmp(have, value, size))
		r = 0;
	free(have);
	return r;
}

/* Compares the pieces with the vector, which has the same length. */
static bool same_bytes(const struct cfs_segs *have, const struct iovec *src)
{
	size_t i, done = 0, n;
	uint32_t at;

	for (i = 0; i < have->n; i++) {
		if (!have->v[i].page)
			return false;
		for (at = 0; at < have->v[i].len; at += (uint32_t)n, done += n) {
			while (done == src->iov_len) {
				src++;
				done = 0;
			}
			n = have->v[i].len - at;
			n = n < src->iov_len - done ? n : src->iov_len - done;
			if (memcmp(have->v[i].page->data + have->v[i].off + at,
				   (const char *)src->iov_base + done, n) != 0)
				return false;
		}
	}
	return true;
}

bool replay_appended(const struct cfs_ctx *ctx, struct cfs_file *f, uint64_t off,
		     const struct iovec *src, int n_src)
{
	struct cfs_segs have;
	uint64_t size = cfs_iov_len(src, n_src);
	bool same = false;

	if (!ctx->replay)
		return false;
	if (!size || cfs_file_length(f) < off + size)
		return false;
	cfs_segs_init(&have);
	if (cfs_file_read(f, ctx, 0, off, (uint32_t)size, NULL, &have) == 0)
		same = have.len == size && same_bytes(&have, src);
	cfs_segs_release(&have);
	return same;
}
