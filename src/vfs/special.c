/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names in the root that the mount keeps for itself. .control takes one request per write and gives
 * the answer to the reads behind it, on the same descriptor.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "vfs-internal.h"

#define INO_CONTROL CFS_SPECIAL_INO
#define REQUEST_MAX (1u << 20)

struct control {
	pthread_mutex_t lock; /* protects reply; a leaf */
	uint64_t reply_off;   /* in the file: behind the request */
	size_t reply_len;
	char *reply;
};

bool name_is_reserved(const struct cfs_vfs *v, cfs_ino_t parent, const char *name, size_t len)
{
	static const char *const names[] = {".control", ".accesslog", ".stats", ".config",
					    ".trash"};
	bool in_root = parent == v->conf.root || parent == CFS_ROOT_INO;
	size_t i;

	if (!in_root || len < 6 || name[0] != '.')
		return false;
	for (i = 0; i < CFS_ARRAY_SIZE(names); i++) {
		if (len == strlen(names[i]) && !memcmp(name, names[i], len))
			return true;
	}
	return false;
}

int special_getattr(struct cfs_vfs *v, cfs_ino_t ino, struct cfs_attr *ret)
{
	if (ino != INO_CONTROL || !v->conf.control)
		return -ENOENT;
	*ret = (struct cfs_attr){
		.type = CFS_TYPE_FILE,
		.mode = 0600,
		.uid = v->conf.uid,
		.gid = v->conf.gid,
		.nlink = 1,
		.atime = v->started,
		.mtime = v->started,
		.ctime = v->started,
		.parent = v->conf.root,
	};
	return 0;
}

int special_lookup(struct cfs_vfs *v, const struct cfs_ctx *ctx, const char *name, size_t len,
		   struct cfs_vfs_entry *ret)
{
	*ret = (struct cfs_vfs_entry){0};
	if (len == 6 && !memcmp(name, ".trash", 6) && v->conf.root == CFS_ROOT_INO) {
		ret->ino = CFS_TRASH_INO;
		return get_attr(v, ctx, CFS_TRASH_INO, &ret->attr, &ret->attr_ms);
	}
	if (len == 8 && !memcmp(name, ".control", 8)) {
		ret->ino = INO_CONTROL;
		return special_getattr(v, INO_CONTROL, &ret->attr);
	}
	return -ENOENT;
}

int special_open(struct cfs_vfs *v, cfs_ino_t ino, struct cfs_vfs_open *ret)
{
	struct control *c;
	struct handle *h;
	int r;

	if (ino != INO_CONTROL || !v->conf.control)
		return -ENOENT;
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	*ret = (struct cfs_vfs_open){.direct_io = true};
	r = handle_alloc(&v->handles, &h, &ret->fh);
	if (r < 0) {
		free(c);
		return r;
	}
	pthread_mutex_init(&c->lock, NULL);
	h->control = c;
	handle_publish(h, HANDLE_CONTROL);
	return 0;
}

int special_write(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct handle *h, uint64_t off,
		  const struct iovec *src, int n_src)
{
	struct control *c = h->control;
	size_t len = 0, reply_len = 0;
	char *req, *reply = NULL;
	int i, r;

	for (i = 0; i < n_src; i++)
		len += src[i].iov_len;
	if (len > REQUEST_MAX)
		return -E2BIG;
	req = malloc(len + 1);
	if (!req)
		return -ENOMEM;
	for (i = 0, len = 0; i < n_src; len += src[i].iov_len, i++)
		memcpy(req + len, src[i].iov_base, src[i].iov_len);
	req[len] = '\0';
	r = v->conf.control(v->conf.control_arg, ctx, req, len, &reply, &reply_len);
	free(req);
	if (r < 0)
		return r;
	pthread_mutex_lock(&c->lock);
	free(c->reply);
	c->reply = reply;
	c->reply_len = reply_len;
	c->reply_off = off + len;
	pthread_mutex_unlock(&c->lock);
	return 0;
}

static int copy_to_segs(struct cfs_vfs *v, const struct cfs_ctx *ctx, const char *src, size_t len,
			struct cfs_segs *ret)
{
	struct cfs_page *page;
	uint32_t n;
	int r;

	while (len) {
		n = (uint32_t)CFS_MIN(len, (size_t)CFS_PAGE_LARGE);
		r = cfs_page_get(v->conf.pool, n, CFS_USE_READ, ctx->deadline, &page);
		if (r < 0)
			return r;
		memcpy(page->data, src, n);
		r = cfs_segs_add(ret, page, 0, n);
		if (r < 0) {
			cfs_page_unref(page);
			return r;
		}
		src += n;
		len -= n;
	}
	return 0;
}

int special_read(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct handle *h, uint64_t off,
		 uint32_t size, struct cfs_segs *ret)
{
	struct control *c = h->control;
	char *copy = NULL;
	size_t len = 0;
	int r = 0;

	pthread_mutex_lock(&c->lock);
	if (c->reply && off >= c->reply_off && off - c->reply_off < c->reply_len) {
		len = CFS_MIN((size_t)size, c->reply_len - (size_t)(off - c->reply_off));
		copy = malloc(len);
		if (copy)
			memcpy(copy, c->reply + (off - c->reply_off), len);
		else
			r = -ENOMEM;
	}
	pthread_mutex_unlock(&c->lock);
	if (copy) {
		r = copy_to_segs(v, ctx, copy, len, ret);
		if (r < 0)
			cfs_segs_release(ret);
		free(copy);
	}
	return r;
}

void special_release(struct handle *h)
{
	struct control *c = h->control;

	pthread_mutex_destroy(&c->lock);
	free(c->reply);
	free(c);
}
