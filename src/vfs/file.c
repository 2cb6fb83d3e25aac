/* SPDX-License-Identifier: Apache-2.0 */
/* Open files. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/array.h"
#include "base/bytes.h"
#include "base/log.h"
#include "vfs-internal.h"

static bool writable(int flags)
{
	return (flags & O_ACCMODE) != O_RDONLY;
}

bool keeps_atime(const struct cfs_vfs *v, cfs_ino_t ino)
{
	return v->conf.atime != CFS_NOATIME && !v->conf.read_only && !cfs_ino_is_trash(ino);
}

void touch_atime(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino, struct cfs_attr *attr)
{
	/* The access is not refused when its time cannot be stored. */
	if (cfs_meta_touch_atime(v->conf.meta, ctx, ino, v->conf.atime, attr) == 0)
		cache_changed(&v->cache, 0, 0, ino, NULL);
}

/* Called for a read; looks at the stored access time at most once a second. */
static void read_touches(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct handle *h)
{
	int64_t last = atomic_load_explicit(&h->atime_s, memory_order_relaxed);
	cfs_ino_t ino = h->vnode->node.key;
	struct cfs_attr attr;
	uint32_t ms;

	if ((h->flags & O_NOATIME) || last == ctx->now.tv_sec || !keeps_atime(v, ino) ||
	    !atomic_compare_exchange_strong(&h->atime_s, &last, ctx->now.tv_sec))
		return;
	if (get_attr(v, ctx, ino, &attr, &ms) == 0)
		touch_atime(v, ctx, ino, &attr);
}

int cfs_vfs_drop_set_id(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh)
{
	struct handle *h = handle_find(&v->handles, fh, HANDLE_FILE);
	struct cfs_ctx own = permitted(ctx);
	struct cfs_attr attr;
	uint64_t seq, asked_ns;
	uint32_t set, ms;
	cfs_ino_t ino;
	int r;

	if (!h || !atomic_load_explicit(&h->vnode->set_id, memory_order_relaxed))
		return 0;
	ino = h->vnode->node.key;
	r = cfs_file_store_change(vnode_file(h->vnode), ctx);
	own.now = cfs_wall();
	seq = cache_seq(&v->cache);
	asked_ns = cfs_now_ns();
	if (r == 0)
		r = get_attr(v, &own, ino, &attr, &ms);
	set = r == 0 ? dropped_set_id(ctx, &attr) : 0;
	if (!set)
		return r;
	r = cfs_meta_setattr(v->conf.meta, &own, ino, set, &attr, &attr);
	if (r < 0)
		return r;
	inode_changed(v, ino, seq, asked_ns, &attr);
	return 1;
}

/*
 * When the kernel has us truncate at open, it leaves set-id bits and times to us. The engine does
 * not change the times of a file that is already empty.
 */
static int truncate_at_open(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct vnode *n,
			    struct cfs_attr *attr)
{
	uint32_t set = cfs_file_length(vnode_file(n)) ? 0 : CFS_SET_MTIME_NOW;
	struct cfs_ctx own = permitted(ctx);
	int r;

	atomic_store_explicit(&n->written, true, memory_order_relaxed);
	r = cfs_file_truncate(vnode_file(n), &own, 0, attr);
	if ((attr->mode & (S_ISUID | S_ISGID)) && !caller_keeps_set_id(ctx))
		set |= dropped_set_id(ctx, attr);
	if (r == 0 && set)
		r = cfs_meta_setattr(v->conf.meta, &own, n->node.key, set, attr, attr);
	inode_changed(v, n->node.key, 0, 0, NULL);
	return r;
}

/* The answer of the metadata to an open. */
struct answer {
	struct cfs_attr attr;
	uint64_t asked_ns, seq; /* from before the request */
	/* The records of the first chunk; n < 0: not asked for, or not usable. */
	struct cfs_slice *recs;
	ssize_t n;
};

/*
 * Asks the metadata for the attributes, always: an open sees changes that others have closed
 * (close-to-open). An open for reading gets the list of the first chunk in the same round trip,
 * unless that is known.
 */
static int ask(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct vnode *n, int flags,
	       struct answer *ret)
{
	struct cfs_file *file = vnode_file(n);
	bool reads = (flags & O_ACCMODE) != O_WRONLY && !(flags & O_TRUNC);
	int r = file ? cfs_file_store_change(file, ctx) : 0;

	if (r < 0)
		return r;
	*ret = (struct answer){.asked_ns = cfs_now_ns(), .seq = cache_seq(&v->cache), .n = -1};
	if (reads && !(file && cfs_file_has_list(file)))
		return cfs_meta_open_file(v->conf.meta, ctx, n->node.key, &ret->attr, &ret->recs,
					  &ret->n);
	return cfs_meta_getattr(v->conf.meta, ctx, n->node.key, &ret->attr);
}

/* Instead of the node in the kernel's request: the reply tells the kernel the node. */
enum { ANY_NODE = -1 };

/*
 * A handle that is reserved before anything else is done: an open that fails for want of one
 * neither makes nor truncates a file.
 */
struct reserved {
	struct handle *h; /* NULL: none is left to be used or freed */
	uint64_t fh;
};

static int reserve(struct cfs_vfs *v, struct reserved *ret)
{
	return handle_alloc(&v->handles, &ret->h, &ret->fh);
}

static void unreserve(struct cfs_vfs *v, struct reserved *res)
{
	if (res->h)
		handle_free(&v->handles, res->fh, res->h);
}

/* The node of a handle in cache_opened(): each has pages of its own. */
static cfs_ino_t node_of(const struct handle *h)
{
	cfs_ino_t ino = h->vnode->node.key;

	return h->passthrough.node ? ino | CFS_VFS_OTHER_NODE : ino;
}

/*
 * Called for requests of the handle. They follow its open, at whose end the kernel has dropped the
 * pages that it had before. Another open may not keep them any earlier, and the end of the open may
 * never come: a killed program's.
 */
static void note_opened(struct cfs_vfs *v, struct handle *h)
{
	if (!atomic_load_explicit(&h->opened_noted, memory_order_relaxed) &&
	    !atomic_exchange(&h->opened_noted, true))
		cache_note_opened(&v->cache, node_of(h), h->ctime);
}

/* The last steps of an open, after passthrough_open(). On success the handle is used. */
static int open_handle(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct vnode *n, int flags,
		       struct answer *answer, const struct handle_passthrough *passthrough,
		       struct reserved *res, struct cfs_vfs_open *ret)
{
	struct cfs_attr *attr = &answer->attr;
	cfs_ino_t ino = n->node.key;
	struct handle *h = res->h;
	bool same;
	int r;

	/*
	 * The kernel keeps a running program from being written. An open that truncates and cannot
	 * write is the exception: the kernel refuses it after it was carried out here.
	 */
	if ((flags & O_TRUNC) && !writable(flags) && atomic_load(&n->executed))
		return -ETXTBSY;
	/* A handle is recorded after that. */
	r = (flags & O_TRUNC) && !recorded_fh(ctx) ? truncate_at_open(v, ctx, n, attr) : 0;
	if (r < 0)
		return r;
	ret->fh = res->fh;
	res->h = NULL;
	h->vnode = n;
	h->flags = flags;
	h->passthrough = *passthrough;
	vnode_count(n, flags, 1);
	atomic_store(&h->err_seq, cfs_file_err_seq(vnode_file(n)));
	record_fh(ctx, ret->fh);
	h->ctime = attr->ctime;
	same = cache_opened(&v->cache, node_of(h), h->ctime);
	atomic_store(&h->opened_noted, same);
	handle_publish(h, ret->fh, ino, HANDLE_FILE);
	/* A handle that passes through uses no pages of the node. */
	ret->keep_cache = same && !passthrough->passed;
	ret->cache_dir = ret->direct_io = false;
	atomic_store(&h->atime_s, ctx->now.tv_sec);
	if (keeps_atime(v, ino) && !(flags & O_NOATIME) && (flags & O_ACCMODE) != O_WRONLY)
		touch_atime(v, ctx, ino, attr);
	return 0;
}

/* Takes over the caller's reference to n, on success. */
static int open_vnode(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct vnode *n, int node,
		      int flags, struct answer *answer, struct reserved *res,
		      struct cfs_vfs_open *ret)
{
	struct handle_passthrough passthrough = {.node = node == 1};
	struct cfs_attr *attr = &answer->attr;
	int r;

	if (attr->type != CFS_TYPE_FILE)
		return attr->type == CFS_TYPE_DIR ? -EISDIR : -ENXIO;
	if (v->conf.read_only && (writable(flags) || (flags & O_TRUNC)))
		return -EROFS;
	r = cfs_meta_open_check(v->conf.meta, ctx, attr, flags, vnode_file(n) != NULL);
	if (r < 0)
		return r;
	r = vnode_attach(n, attr, answer->asked_ns);
	if (r < 0)
		return r;
	if (answer->n >= 0) {
		cfs_file_take_list(vnode_file(n), attr, answer->asked_ns, answer->recs,
				   (size_t)answer->n);
		answer->recs = NULL;
	}
	r = passthrough_open(n, flags, attr, answer->asked_ns, node == ANY_NODE, &passthrough,
			     &ret->backing);
	if (r < 0)
		return r;
	r = open_handle(v, ctx, n, flags, answer, &passthrough, res, ret);
	if (r < 0)
		passthrough_close(n, &passthrough);
	return r;
}

int cfs_vfs_open(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino, int flags,
		 struct cfs_vfs_open *ret)
{
	int node = ino & CFS_VFS_OTHER_NODE ? 1 : 0;
	struct reserved res;
	struct answer answer;
	struct vnode *n;
	int r;

	ino &= ~CFS_VFS_OTHER_NODE;
	if (ino_is_special(ino))
		return special_open(v, ctx, ino, flags, ret);
	r = reserve(v, &res);
	if (r < 0)
		return r;
	n = vnode_get(v, ino);
	if (!n) {
		unreserve(v, &res);
		return -ENOMEM;
	}
	r = ask(v, ctx, n, flags, &answer);
	if (r == 0)
		r = open_vnode(v, ctx, n, node, flags, &answer, &res, ret);
	unreserve(v, &res);
	free(answer.recs);
	if (r == 0 && !writable(flags))
		ahead_opened(v, ino, &answer.attr);
	/* A stat of the open file must not see older attributes, nor a read end at an older length. */
	if (r == 0) {
		ret->attr_old = cache_kernel_may_differ(&v->cache, ino, &answer.attr);
		if (ret->attr_old)
			cache_forget(&v->cache, ino);
		accept_attr(v, ino, answer.seq, answer.asked_ns, &answer.attr);
	}
	if (r < 0)
		vnode_put(n);
	return stale_if_gone(v, ino, r);
}

/*
 * Opens a file that appeared after the kernel's look-up. The kernel believes that this caller has
 * just created it, and checks no permission.
 */
static int open_appeared(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct vnode *n, int flags,
			 struct answer *answer, struct reserved *res, struct cfs_vfs_open *ret)
{
	struct cfs_ctx judged = *ctx;

	if (!ctx->check && ctx->uid != 0)
		caller_groups(&judged, true);
	judged.check = true;
	return open_vnode(v, &judged, n, ANY_NODE, flags, answer, res, ret);
}

/* The inode has no name: a successor finds it by the recorded number. */
static int make_unnamed(struct cfs_vfs *v, const struct cfs_ctx *ctx, const struct cfs_mknod *req,
			struct cfs_vfs_entry *ret)
{
	struct cfs_entry e = {.ino = recorded_ino(ctx)};
	struct cfs_mknod in = *req;
	int r = 0;

	in.parent = ino_in(v, req->parent);
	in.note_ino = ctx->record ? &ctx->record->ino : NULL;
	if (ctx->record)
		atomic_fetch_or(&ctx->record->flags, CFS_HANDOFF_UNNAMED);
	if (!e.ino || cfs_meta_getattr(v->conf.meta, ctx, e.ino, &e.attr) < 0)
		r = cfs_meta_make_unnamed(v->conf.meta, ctx, &in, &e);
	if (r < 0)
		return stale_if_gone(v, in.parent, r);
	*ret = (struct cfs_vfs_entry){
		.ino = e.ino,
		.attr = e.attr,
		.attr_ms = (uint32_t)v->conf.attr_timeout_ms,
	};
	return 0;
}

void file_drop_unnamed(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino)
{
	int r = cfs_meta_close_ino(v->conf.meta, ctx, ino);

	if (r < 0 && r != -ENOENT)
		cfs_warn("file without a name could not be released, its space comes back later: "
			 "inode=%llu error=%s",
			 (unsigned long long)ino, cfs_errname(r));
}

static int create(struct cfs_vfs *v, const struct cfs_ctx *ctx, const struct cfs_mknod *req,
		  int flags, struct reserved *res, struct cfs_vfs_entry *ret,
		  struct cfs_vfs_open *ret_open)
{
	bool unnamed = !req->name_len;
	struct answer answer = {.asked_ns = cfs_now_ns(), .n = -1};
	struct cfs_ctx own;
	struct vnode *n;
	bool existed;
	int r;

	r = unnamed ? make_unnamed(v, ctx, req, ret) : cfs_vfs_mknod(v, ctx, req, ret);
	existed = r == -EEXIST && ret->ino && !(flags & O_EXCL);
	if (r < 0 && !existed)
		return r;
	/* Another mount has created a link or a pipe, which the kernel looks up again. */
	if (existed && ret->attr.type != CFS_TYPE_FILE)
		return ret->attr.type == CFS_TYPE_DIR ? -EISDIR : -ESTALE;
	n = vnode_get(v, ret->ino);
	if (!n && unnamed)
		file_drop_unnamed(v, ctx, ret->ino);
	if (!n)
		return -ENOMEM;
	if (unnamed) {
		flags |= __O_TMPFILE; /* tells a successor that it has no name */
		atomic_store(&n->sustained, true);
		atomic_store(&n->unnamed, true);
	}
	answer.attr = ret->attr;
	/* The mode of a new file does not restrict the open that creates it. */
	own = permitted(ctx);
	r = existed ? open_appeared(v, ctx, n, flags, &answer, res, ret_open)
		    : open_vnode(v, &own, n, ANY_NODE, flags & ~O_TRUNC, &answer, res, ret_open);
	if (r < 0) {
		vnode_put(n);
		return stale_if_gone(v, ret->ino, r);
	}
	ret->attr = answer.attr;
	if (existed)
		vnode_overlay(n, &ret->attr, answer.asked_ns);
	return 0;
}

int cfs_vfs_create_file(struct cfs_vfs *v, const struct cfs_ctx *ctx, const struct cfs_mknod *req,
			int flags, struct cfs_vfs_entry *ret, struct cfs_vfs_open *ret_open)
{
	struct reserved res;
	int r = reserve(v, &res);

	if (r < 0)
		return r;
	r = create(v, ctx, req, flags, &res, ret, ret_open);
	unreserve(v, &res);
	return r;
}

int cfs_vfs_read(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh, uint64_t off,
		 uint32_t size, struct cfs_async *async, struct cfs_segs *ret)
{
	struct handle *h = handle_find(&v->handles, fh, HANDLE_FILE);
	uint64_t n;
	int r;

	if (h) {
		if (lock_lost(h))
			return -EIO;
		note_opened(v, h);
		read_touches(v, ctx, h);
		r = cfs_file_read(vnode_file(h->vnode), ctx, fh, off, size, async, ret);
		n = r == -EINPROGRESS ? async->len : r >= 0 ? ret->len : 0;
		atomic_fetch_add_explicit(&v->read_bytes, n, memory_order_relaxed);
		return r;
	}
	h = handle_find(&v->handles, fh, HANDLE_SPECIAL);
	return h ? special_read(v, ctx, h, off, size, ret) : -EBADF;
}

int cfs_vfs_write(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh, uint64_t off,
		  bool append, const struct iovec *src, int n_src, uint64_t *ret_off)
{
	struct handle *h = handle_find(&v->handles, fh, HANDLE_FILE);
	int r, i;

	if (!h) {
		h = handle_find(&v->handles, fh, HANDLE_SPECIAL);
		*ret_off = off;
		return h ? special_write(v, ctx, h, off, src, n_src) : -EBADF;
	}
	if (!writable(h->flags))
		return -EBADF;
	if (lock_lost(h))
		return -EIO;
	if (!atomic_load_explicit(&h->vnode->written, memory_order_relaxed))
		atomic_store_explicit(&h->vnode->written, true, memory_order_relaxed);
	if (h->record && !atomic_load_explicit(&h->record->wrote, memory_order_relaxed))
		atomic_store(&h->record->wrote, 1);
	if (append && replay_appended(ctx, vnode_file(h->vnode), off, src, n_src)) {
		*ret_off = off;
		return 0;
	}
	r = cfs_file_write(vnode_file(h->vnode), ctx, off, append, src, n_src, ret_off);
	for (i = 0; r >= 0 && i < n_src; i++)
		atomic_fetch_add_explicit(&v->written_bytes, src[i].iov_len, memory_order_relaxed);
	return r;
}

/*
 * A descriptor of the handle is closed. An error is reported here and stays for the writers' fsync,
 * as a process that only inherited the descriptor may ignore the result.
 */
static int commit_at_close(struct cfs_vfs *v, struct handle *h, const struct cfs_ctx *ctx)
{
	int r;

	if (v->conf.commit_later)
		r = closed_add(v, ctx, h);
	else
		r = cfs_file_flush(vnode_file(h->vnode), ctx, atomic_load(&h->err_seq));
	if (r == 0 && !v->conf.commit_later && atomic_load(&h->vnode->written))
		r = cfs_meta_await_copy(v->conf.meta, ctx);

	/* Bytes that were written through this handle were lost with the previous process. */
	if (r == 0 && h->record && atomic_load(&h->record->lost) == CFS_HANDOFF_LOST)
		r = -EIO;
	return r;
}

int cfs_vfs_flush_file(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh,
		       uint64_t lock_owner)
{
	struct handle *h = handle_find(&v->handles, fh, HANDLE_FILE);
	int r = 0;

	if (!h)
		return handle_find(&v->handles, fh, HANDLE_SPECIAL) ? 0 : -EBADF;
	note_opened(v, h);
	if (writable(h->flags))
		r = commit_at_close(v, h, ctx);
	if (r == 0 && lock_lost(h))
		r = -EIO;
	/* Unlocks after the commit: the next holder must read what was written under the lock. */
	locks_flush(v, ctx, h, lock_owner);
	return r;
}

ssize_t cfs_vfs_open_for_writing(struct cfs_vfs *v, cfs_ino_t **ret)
{
	size_t n = 0, room = 0;
	enum handle_kind kind;
	cfs_ino_t *node = NULL;
	struct handle *h;
	struct vnode *vn;
	uint32_t pos = 0;
	uint64_t fh;

	while ((fh = handle_next(&v->handles, &pos, &kind)) != 0) {
		vn = kind == HANDLE_FILE ? vnode_of_handle(v, fh) : NULL;
		if (!vn)
			continue;
		h = handle_find(&v->handles, fh, HANDLE_FILE);
		if (CFS_ARRAY_ROOM(node, n, room) < 0) {
			vnode_put(vn);
			free(node);
			return -ENOMEM;
		}
		if (h && writable(h->flags))
			node[n++] = ino_out(v, vn->node.key) |
				    (h->passthrough.node ? CFS_VFS_OTHER_NODE : 0);
		vnode_put(vn);
	}
	*ret = node;
	return (ssize_t)n;
}

bool cfs_vfs_is_dirty(struct cfs_vfs *v, uint64_t fh)
{
	struct handle *h = handle_find(&v->handles, fh, HANDLE_FILE);
	bool locked, dirty;

	if (!h)
		return false;
	locked = atomic_load(&h->flocked) || atomic_load(&h->vnode->plocked);
	dirty = cfs_file_dirty(vnode_file(h->vnode));
	return (dirty && (locked || writable(h->flags))) || (locked && cfs_vfs_has_closed(v));
}

bool cfs_vfs_has_closed(struct cfs_vfs *v)
{
	return cfs_data_has_closed(v->conf.data);
}

bool cfs_vfs_has_unstored(struct cfs_vfs *v, cfs_ino_t ino)
{
	auto_vnode struct vnode *n = vnode_find(v, ino_in(v, ino));
	struct cfs_file *file = n ? vnode_file(n) : NULL;

	return file && cfs_file_dirty(file);
}

bool cfs_vfs_setattr_waits(struct cfs_vfs *v, cfs_ino_t ino, uint32_t set)
{
	auto_vnode struct vnode *n = NULL;

	if (set & CFS_VFS_SET_SIZE)
		return cfs_vfs_has_unstored(v, ino);
	if (!(set & (CFS_SET_MTIME | CFS_SET_MTIME_NOW)))
		return false;
	n = vnode_find(v, ino_in(v, ino));
	return n && vnode_file(n) && cfs_file_dirty(vnode_file(n)) &&
	       !cfs_file_takes_change(vnode_file(n));
}

int cfs_vfs_release(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh)
{
	struct handle *h = handle_find(&v->handles, fh, HANDLE_FILE);
	struct cfs_attr attr;
	struct cfs_file *file;
	uint32_t err_seq;
	struct vnode *n;
	int r = 0;

	if (handle_defer_close(&v->handles, fh))
		return 0;
	if (!h) {
		h = handle_find(&v->handles, fh, HANDLE_SPECIAL);
		if (!h)
			return -EBADF;
		special_release(v, h);
		handle_free(&v->handles, fh, h);
		return 0;
	}
	n = h->vnode;
	file = vnode_file(n);
	/* Data was written through a mapping after the close, or the close failed to store it. */
	if (writable(h->flags) && cfs_file_dirty(file)) {
		err_seq = cfs_file_err_seq(file);
		r = commit_at_close(v, h, ctx);
		/*
		 * A dirty file is tried again. An older error is returned although the bytes
		 * are stored since. Data of an unlinked file does not count.
		 */
		if (r < 0 && !cfs_file_dirty(file) && cfs_file_err_seq(file) != err_seq &&
		    cfs_meta_getattr(v->conf.meta, ctx, n->node.key, &attr) != -ENOENT)
			cfs_err("data could not be stored after its file was closed, it is lost: "
				"inode=%llu error=%s",
				(unsigned long long)n->node.key, cfs_errname(r));
	}
	/* The close may have returned 0 before the death that lost the bytes. */
	if (v->conf.commit_later && writable(h->flags) && h->record &&
	    atomic_load(&h->record->lost) == CFS_HANDOFF_LOST)
		closed_lost(v, n->node.key, -EIO);
	locks_release(v, ctx, h);
	cfs_file_end_stream(file, fh);
	handle_hide(h);
	vnode_count(n, h->flags, -1);
	passthrough_close(n, &h->passthrough);
	vnode_put(n);
	handle_free(&v->handles, fh, h);
	return r;
}

bool cfs_vfs_pin(struct cfs_vfs *v, uint64_t fh)
{
	return handle_pin(&v->handles, fh);
}

void cfs_vfs_unpin(struct cfs_vfs *v, uint64_t fh)
{
	struct cfs_ctx ctx;

	if (!handle_unpin(&v->handles, fh))
		return;
	ctx = internal_ctx(v);
	if (handle_find(&v->handles, fh, HANDLE_DIR))
		cfs_vfs_releasedir(v, &ctx, fh);
	else
		cfs_vfs_release(v, &ctx, fh);
}

int cfs_vfs_fsync(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh)
{
	struct handle *h = handle_find(&v->handles, fh, HANDLE_FILE);
	uint32_t err_seq;
	int r;

	if (!h)
		return handle_find(&v->handles, fh, HANDLE_SPECIAL) ? 0 : -EBADF;
	/* Of two threads that do this with one handle, at least one gets each error. */
	err_seq = atomic_load(&h->err_seq);
	r = cfs_file_fsync(vnode_file(h->vnode), ctx, &err_seq);
	atomic_store(&h->err_seq, err_seq);
	if (h->record && cfs_handoff_report_loss(h->record) && r == 0)
		r = -EIO;
	if (closed_take_loss(v, h->vnode->node.key) && r == 0)
		r = -EIO;
	return r == 0 && lock_lost(h) ? -EIO : r;
}

int cfs_vfs_fallocate(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh, unsigned mode,
		      uint64_t off, uint64_t len)
{
	struct handle *h = handle_find(&v->handles, fh, HANDLE_FILE);
	struct cfs_attr attr;
	struct cfs_ctx own;

	if (!h || !writable(h->flags))
		return -EBADF;
	if (lock_lost(h))
		return -EIO;
	if (!len)
		return -EINVAL;
	if (off > CFS_FILE_MAX || len > CFS_FILE_MAX - off)
		return -EFBIG;
	own = permitted(ctx);
	atomic_store_explicit(&h->vnode->written, true, memory_order_relaxed);
	return cfs_file_fallocate(vnode_file(h->vnode), &own, mode, off, len, &attr);
}

int cfs_vfs_copy_range(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t src_fh,
		       uint64_t src_off, uint64_t dst_fh, uint64_t dst_off, uint64_t len,
		       uint64_t *ret_copied)
{
	struct handle *src = handle_find(&v->handles, src_fh, HANDLE_FILE);
	struct handle *dst = handle_find(&v->handles, dst_fh, HANDLE_FILE);
	struct cfs_attr attr;
	struct cfs_ctx own;

	if (!src || !dst || !writable(dst->flags))
		return -EBADF;
	if (lock_lost(src) || lock_lost(dst))
		return -EIO;
	if (dst_off > CFS_FILE_MAX || len > CFS_FILE_MAX - dst_off)
		return -EFBIG;
	own = permitted(ctx);
	atomic_store_explicit(&dst->vnode->written, true, memory_order_relaxed);
	return cfs_file_copy_range(vnode_file(src->vnode), src_off, vnode_file(dst->vnode), dst_off,
				   len, &own, ret_copied, &attr);
}

int cfs_vfs_seek(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh, uint64_t off,
		 int whence, uint64_t *ret_off)
{
	struct handle *h = handle_find(&v->handles, fh, HANDLE_FILE);

	if (!h)
		return -EBADF;
	return cfs_file_seek(vnode_file(h->vnode), ctx, off, whence, ret_off);
}
