/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names in the root that the mount keeps for itself. A write to .control is one request, and the
 * reads behind it on the same descriptor return the answer. The first read carries the request out,
 * not the write: the kernel lets only one write to a file run at a time. Until the answer is read to
 * its end further writes fail with EBUSY: threads that share the descriptor would get each other's.
 * .stats and .config show the state at their open.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "vfs-internal.h"

#define REQUEST_MAX (1u << 20)
#define TRASH_NAME  ".trash"
/* Limit for other users: each open file holds some 30 KiB of text, and any user may open it. */
#define STATS_MAX 512

enum special_kind { SPECIAL_LOG, SPECIAL_CONTROL, SPECIAL_STATS, SPECIAL_CONFIG, SPECIAL_COUNT };

/* By inode number. */
static const struct {
	const char *name;
	uint16_t mode;
	bool listed;
} specials[SPECIAL_COUNT] = {
	[SPECIAL_LOG] = {".accesslog", 0400, true},
	[SPECIAL_CONTROL] = {".control", 0600, false},
	[SPECIAL_STATS] = {".stats", 0444, true},
	[SPECIAL_CONFIG] = {".config", 0400, true},
};

struct special_open {
	enum special_kind kind;
	struct log_reader *reader; /* .accesslog */
	pthread_mutex_t lock;	   /* protects the rest; a leaf */
	uint64_t text_off; /* where the text is in the file: an answer is behind its request */
	size_t text_len;
	char *text;
	size_t request_len;
	char *request; /* not yet carried out */
	bool asked;    /* the answer is not read to its end */
};

static cfs_ino_t special_ino(enum special_kind kind)
{
	return CFS_SPECIAL_INO + (cfs_ino_t)kind;
}

static bool exists(const struct cfs_vfs *v, enum special_kind kind)
{
	switch (kind) {
	case SPECIAL_CONTROL:
		return v->conf.control != NULL;
	case SPECIAL_CONFIG:
		return v->conf.config != NULL;
	case SPECIAL_COUNT:
		return false;
	default:
		return true;
	}
}

/* SPECIAL_COUNT: it is the name of none. */
static enum special_kind kind_of(const char *name, size_t len)
{
	unsigned i;

	for (i = 0; i < SPECIAL_COUNT; i++) {
		if (len == strlen(specials[i].name) && !memcmp(name, specials[i].name, len))
			break;
	}
	return i;
}

static bool is_trash(const char *name, size_t len)
{
	return len == strlen(TRASH_NAME) && !memcmp(name, TRASH_NAME, len);
}

bool name_is_reserved(const struct cfs_vfs *v, cfs_ino_t parent, const char *name, size_t len)
{
	if ((parent != v->conf.root && parent != CFS_ROOT_INO) || len < 6 || name[0] != '.')
		return false;
	return kind_of(name, len) != SPECIAL_COUNT || is_trash(name, len);
}

int special_getattr(struct cfs_vfs *v, cfs_ino_t ino, struct cfs_attr *ret)
{
	unsigned kind = (unsigned)(ino - CFS_SPECIAL_INO);

	if (kind >= SPECIAL_COUNT || !exists(v, kind))
		return -ENOENT;
	*ret = (struct cfs_attr){
		.type = CFS_TYPE_FILE,
		.mode = specials[kind].mode,
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
	enum special_kind kind;

	*ret = (struct cfs_vfs_entry){0};
	if (is_trash(name, len) && v->conf.root == CFS_ROOT_INO) {
		ret->ino = CFS_TRASH_INO;
		return get_attr(v, ctx, CFS_TRASH_INO, &ret->attr, &ret->attr_ms);
	}
	kind = kind_of(name, len);
	if (!exists(v, kind))
		return -ENOENT;
	ret->ino = special_ino(kind);
	return special_getattr(v, ret->ino, &ret->attr);
}

bool special_listed(struct cfs_vfs *v, const struct cfs_ctx *ctx, unsigned i,
		    struct cfs_vfs_dirent *ret)
{
	struct cfs_attr attr;
	unsigned kind;
	uint32_t ms;

	if (v->conf.hide_internal)
		return false;
	for (kind = 0; kind < SPECIAL_COUNT; kind++) {
		if (!specials[kind].listed || !exists(v, kind) || i-- > 0)
			continue;
		ret->name = specials[kind].name;
		ret->ino = special_ino(kind);
		ret->type = CFS_TYPE_FILE;
		ret->name_len = strlen(ret->name);
		return true;
	}
	if (i > 0 || v->conf.root != CFS_ROOT_INO ||
	    get_attr(v, ctx, CFS_TRASH_INO, &attr, &ms) < 0)
		return false;
	ret->name = TRASH_NAME;
	ret->ino = CFS_TRASH_INO;
	ret->type = CFS_TYPE_DIR;
	ret->name_len = strlen(ret->name);
	return true;
}

static int fill(struct cfs_vfs *v, struct special_open *s)
{
	switch (s->kind) {
	case SPECIAL_LOG:
		return access_log_open(&v->log, &s->reader);
	case SPECIAL_STATS:
		return cfs_vfs_show_metrics(v, NULL, &s->text, &s->text_len);
	case SPECIAL_CONFIG:
		return v->conf.config(v->conf.config_arg, &s->text, &s->text_len);
	default:
		return 0;
	}
}

static void free_open(struct cfs_vfs *v, struct special_open *s)
{
	if (s->reader)
		access_log_close(&v->log, s->reader);
	if (s->kind == SPECIAL_STATS)
		atomic_fetch_sub(&v->n_stats, 1);
	pthread_mutex_destroy(&s->lock);
	free(s->request);
	free(s->text);
	free(s);
}

/* The kernel may be told not to check permissions, so they are always checked here. */
static int check_open(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino, int flags)
{
	struct cfs_attr attr;
	int r = special_getattr(v, ino, &attr);

	if (r < 0 || ctx->admin)
		return r;
	if ((flags & O_ACCMODE) != O_RDONLY || !(attr.mode & 04))
		return -EACCES;
	return atomic_load(&v->n_stats) >= STATS_MAX ? -EBUSY : 0;
}

static int new_open(struct cfs_vfs *v, cfs_ino_t ino, struct special_open **ret)
{
	struct special_open *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return -ENOMEM;
	s->kind = (enum special_kind)(ino - CFS_SPECIAL_INO);
	pthread_mutex_init(&s->lock, NULL);
	if (s->kind == SPECIAL_STATS)
		atomic_fetch_add(&v->n_stats, 1);
	r = fill(v, s);
	if (r < 0) {
		free_open(v, s);
		return r;
	}
	*ret = s;
	return 0;
}

int special_restore(struct cfs_vfs *v, struct handle *h, cfs_ino_t ino)
{
	return new_open(v, ino, &h->special);
}

int special_open(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino, int flags,
		 struct cfs_vfs_open *ret)
{
	struct special_open *s;
	struct handle *h;
	int r;

	*ret = (struct cfs_vfs_open){.direct_io = true};
	r = check_open(v, ctx, ino, flags);
	if (r < 0)
		return r;
	r = new_open(v, ino, &s);
	if (r < 0)
		return r;
	r = handle_alloc(&v->handles, &h, &ret->fh);
	if (r < 0) {
		free_open(v, s);
		return r;
	}
	h->special = s;
	record_fh(ctx, ret->fh);
	handle_publish(h, ret->fh, ino, HANDLE_SPECIAL);
	return 0;
}

int special_write(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct handle *h, uint64_t off,
		  const struct iovec *src, int n_src)
{
	struct special_open *s = h->special;
	size_t len = cfs_iov_len(src, n_src);
	char *req;

	if (s->kind != SPECIAL_CONTROL)
		return -EBADF;
	if (len > REQUEST_MAX)
		return -E2BIG;
	req = malloc(len + 1);
	if (!req)
		return -ENOMEM;
	cfs_iov_gather(src, n_src, req);
	req[len] = '\0';
	pthread_mutex_lock(&s->lock);
	if (s->asked) {
		pthread_mutex_unlock(&s->lock);
		free(req);
		return -EBUSY;
	}
	s->asked = true;
	s->request = req;
	s->request_len = len;
	free(s->text);
	s->text = NULL;
	s->text_off = off + len;
	pthread_mutex_unlock(&s->lock);
	return 0;
}

static int carry_out(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct special_open *s)
{
	size_t len, reply_len = 0;
	char *req, *reply = NULL;
	int r;

	pthread_mutex_lock(&s->lock);
	req = s->request;
	len = s->request_len;
	s->request = NULL;
	pthread_mutex_unlock(&s->lock);
	if (!req)
		return 0;
	r = v->conf.control(v->conf.control_arg, ctx, req, len, &reply, &reply_len);
	free(req);
	pthread_mutex_lock(&s->lock);
	s->asked = r == 0 && reply_len > 0;
	if (r == 0) {
		s->text = reply;
		s->text_len = reply_len;
	}
	pthread_mutex_unlock(&s->lock);
	return r;
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

/* The part of the text that lies at off of the file. */
static size_t copy_text(struct special_open *s, uint64_t off, char *buf, size_t size)
{
	size_t len;
	CFS_LOCK_GUARD(&s->lock);

	if (!s->text || off < s->text_off || off - s->text_off >= s->text_len)
		return 0;
	off -= s->text_off;
	len = CFS_MIN(size, s->text_len - (size_t)off);
	memcpy(buf, s->text + off, len);
	s->asked &= off + len < s->text_len;
	return len;
}

int special_read(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct handle *h, uint64_t off,
		 uint32_t size, struct cfs_segs *ret)
{
	struct special_open *s = h->special;
	cfs_auto_free char *buf = malloc(size ? size : 1);
	size_t len;
	int r = 0;

	if (!buf)
		return -ENOMEM;
	if (s->kind == SPECIAL_CONTROL)
		r = carry_out(v, ctx, s);
	if (r < 0)
		return r;
	if (s->kind == SPECIAL_LOG)
		len = access_log_read(&v->log, s->reader, ctx->deadline, buf, size);
	else
		len = copy_text(s, off, buf, size);
	r = copy_to_segs(v, ctx, buf, len, ret);
	if (r < 0)
		cfs_segs_release(ret);
	return r;
}

void special_release(struct cfs_vfs *v, struct handle *h)
{
	free_open(v, h->special);
}
